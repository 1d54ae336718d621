//! The ways in which device memory is mapped.

use cudarc::driver::sys::CUdevice;

use super::dmabuf::DmaBuf;
use super::gdrcopy::Gdrcopy;
use crate::cuda::context::Context;
use crate::cuda::driver::Driver;

/// A way, in one context.
pub(super) trait Way: Send {
    fn name(&self) -> &'static str;
    /// Maps an allocation of the context, which is current.
    fn map(&self, context: &Context, base: u64, len: usize) -> Result<Box<dyn View>, Refusal>;
}

/// A mapped allocation; unmapped by dropping, with the context or after its end.
pub(super) trait View: Send {
    /// Where its first byte is.
    fn address(&self) -> *mut u8;
}

/// Why an allocation was not mapped.
pub(super) enum Refusal {
    /// Others may be.
    Memory(String),
    /// No allocation will be.
    Way(String),
}

/// The ways that there may be in a context, which is current, the best first.
pub(super) fn find(context: &Context) -> Vec<Box<dyn Way>> {
    let driver = context.driver;
    let mut device: CUdevice = 0;
    // SAFETY: fills in the current context's device.
    let known = unsafe { driver.cuCtxGetDevice(&raw mut device) }.map_err(|failure| driver.reason(failure));
    let dma_buf = known.and_then(|()| DmaBuf::find(driver, device)).map(|way| Box::new(way) as Box<dyn Way>);
    let gdrcopy = Gdrcopy::find(driver).map(|way| Box::new(way) as Box<dyn Way>);
    let mut ways = Vec::new();
    let mut reasons = Vec::new();
    for found in [dma_buf, gdrcopy] {
        match found {
            Ok(way) => ways.push(way),
            Err(reason) => reasons.push(reason),
        }
    }
    if ways.is_empty() {
        log::debug!("context {}: device memory is not mapped: {}", context.id, reasons.join("; "));
    }
    ways
}

/// For people: by what a device's memory is mapped, or why it is not.
pub(in crate::cuda) fn describe(driver: &Driver, device: CUdevice) -> Result<String, String> {
    let dma_buf = match DmaBuf::find(driver, device) {
        // Whether it refuses shows when there is memory to map.
        Ok(way) => return Ok(format!("{}, if the driver lets it be mapped", way.name())),
        Err(reason) => reason,
    };
    match Gdrcopy::find(driver) {
        Ok(way) => Ok(way.name().to_owned()),
        Err(reason) => Err(format!("{dma_buf}; {reason}")),
    }
}
