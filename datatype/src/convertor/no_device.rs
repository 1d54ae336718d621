//! A build without devices: all memory is host memory.

use std::ops::Range;

use cableway_common_cuda::{Completion, Devices, Location, Order};

use super::message::Message;
use crate::error::Error;

/// This type has no value in this build.
pub(super) enum DeviceSide {}

impl DeviceSide {
    #[inline]
    pub(super) fn new(_location: &Location, _devices: &Devices) -> Option<Box<DeviceSide>> {
        None
    }

    pub(super) fn by_block(
        _message: &Message<'_>,
        _size: u64,
        _devices: &Devices,
    ) -> (Location, Option<Box<DeviceSide>>) {
        (Location::HOST, None)
    }

    pub(super) fn is_mixed(&self) -> bool {
        match *self {}
    }

    pub(super) fn follow_nothing(&mut self) {
        match *self {}
    }

    pub(super) fn order(&self) -> Order {
        match *self {}
    }

    /// # Safety
    /// Never called.
    pub(super) unsafe fn transfer<const PACK: bool>(
        &mut self,
        _message: &Message<'_>,
        _range: Range<u64>,
        _packed: *mut u8,
        _order: Order,
    ) -> Result<Completion, Error> {
        match *self {}
    }
}
