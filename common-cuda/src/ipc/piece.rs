//! Parts of memory with an id in the driver, and their export.

use parking_lot::Mutex;

use crate::devices::Devices;
use crate::error::DeviceError;
use crate::exported::{Exported, NoExport};
use crate::location::Location;
use crate::platform::Platform;

/// A part with an id in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) buffer_id: u64,
}

impl Piece {
    pub(super) fn is_there(&self, devices: &Devices) -> bool {
        devices.is_allocated(self.buffer_id, self.base as usize)
    }
}

/// Exports the allocation of this id around an address. For pool memory, the export has the driver's handle of the pool
/// instead of the pool's number. The driver may reuse that handle for other pools.
pub(super) fn export(
    platform: &Platform,
    at: &Location,
    address: *const u8,
    buffer_id: u64,
) -> Result<Exported, NoExport> {
    let device = at.device.ok_or(NoExport::Kind)?;
    let object = || format!("the allocation around {address:p} on device {}", device.0);
    let exported = platform.within(at, object, |driver| driver.export(device, address as u64, buffer_id));
    exported.map_err(NoExport::Refused)?.ok_or(NoExport::Kind)
}

/// Says once that the driver refuses to share.
pub(super) fn warn_refused(cause: &str, error: &DeviceError) {
    cableway_base::warn_once(cause, || {
        format!("device memory is copied through the host, because it cannot be shared: {error}")
    });
}

/// One line at level info for each cause.
pub(super) fn say_once(cause: &'static str, message: impl FnOnce() -> String) {
    static SAID: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut said = SAID.lock();
    if !said.contains(&cause) {
        said.push(cause);
        log::info!("{}", message());
    }
}
