//! What every job needs in its context: code, a stream, and words.

use std::ffi::CStr;

use super::job::Words;
use crate::driver::{Driver, Failure, Function, Image, Module, Priority, Stream};

/// A loaded module with its kernels.
pub(super) struct Code<const KERNELS: usize> {
    module: Module,
    functions: [Function; KERNELS],
}

impl<const KERNELS: usize> Code<KERNELS> {
    /// Loads a module, and finds the kernels of these names. The context is current.
    pub(super) fn load(driver: &dyn Driver, image: Image, names: [&CStr; KERNELS]) -> Result<Self, Failure> {
        let module = driver.load_module(image)?;
        let mut functions = [Function(0); KERNELS];
        for (function, name) in functions.iter_mut().zip(names) {
            match driver.function(&module, name) {
                Ok(found) => *function = found,
                Err(failure) => {
                    unload(driver, module);
                    return Err(failure);
                }
            }
        }
        Ok(Code { module, functions })
    }

    /// Returns the kernel of the name at this index.
    pub(super) fn function(&self, index: usize) -> Function {
        self.functions[index]
    }

    /// The context is current, and no kernel of the module runs.
    pub(super) fn unload(self, driver: &dyn Driver) {
        unload(driver, self.module);
    }
}

fn unload(driver: &dyn Driver, module: Module) {
    if let Err(failure) = driver.unload_module(module) {
        log::debug!("unloading kernels: {}", driver.reason(failure));
    }
}

/// A stream of jobs, and their words.
pub(super) struct Lane {
    /// A separate stream, so that copies never wait behind a job that has not started. It has high priority, so that
    /// jobs get room before other kernels.
    pub(super) stream: Stream,
    pub(super) words: Words,
    pub(super) multiprocessors: u32,
}

impl Lane {
    /// The context is current.
    pub(super) fn new(driver: &dyn Driver) -> Result<Lane, Failure> {
        let multiprocessors = driver.limits(driver.current_device()?)?.multiprocessors;
        let words = Words::new(driver)?;
        let stream = driver.new_stream(Priority::Highest).inspect_err(|_| words.destroy(driver))?;
        Ok(Lane { stream, words, multiprocessors })
    }

    /// Destroys stream and words. The context is current, and every job has ended.
    pub(super) fn destroy(self, driver: &dyn Driver) {
        close(driver, self.stream);
        self.words.destroy(driver);
    }
}

/// Destroys a stream in which every job has ended. The context is current.
pub(super) fn close(driver: &dyn Driver, stream: Stream) {
    let _ = driver.synchronise(&stream);
    if let Err(failure) = driver.destroy_stream(stream) {
        log::debug!("destroying a stream: {}", driver.reason(failure));
    }
}
