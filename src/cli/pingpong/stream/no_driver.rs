//! What stands for a program's stream in a build without device support. No value exists.

use std::convert::Infallible;
use std::ffi::c_void;
use std::path::Path;

use cableway::{DeviceIndex, Vendor, World};

use crate::cli::Failure;

/// A stream of this program.
pub(super) struct ProgramStream(Infallible);

/// A graph that can be launched in the stream that captured it.
pub(super) struct Graph<'a>(&'a ProgramStream);

impl ProgramStream {
    /// Fails.
    pub(super) fn new(_world: &World, _device: DeviceIndex, _folders: &[&Path]) -> Result<Self, Failure> {
        Err(Failure::failed(1, "this build has no device support: build with the feature cuda or rocm"))
    }

    pub(super) fn load_kernel(&mut self, _nanoseconds: u64) -> Result<(), Failure> {
        match self.0 {}
    }

    pub(super) fn handle(&self) -> (Vendor, *mut c_void) {
        match self.0 {}
    }

    pub(super) fn wait(&self) -> Result<(), Failure> {
        match self.0 {}
    }

    pub(super) fn settle(&self) -> Result<(), Failure> {
        match self.0 {}
    }

    /// # Safety
    /// None is called.
    pub(super) unsafe fn copy(&self, _to: *mut u8, _from: *const u8, _len: usize) -> Result<(), Failure> {
        match self.0 {}
    }

    pub(super) fn spin(&self) -> Result<(), Failure> {
        match self.0 {}
    }

    pub(super) fn capture(&self, _work: impl FnOnce() -> Result<(), Failure>) -> Result<Graph<'_>, Failure> {
        match self.0 {}
    }
}

impl Graph<'_> {
    pub(super) fn launch(&self) -> Result<(), Failure> {
        match self.0.0 {}
    }
}
