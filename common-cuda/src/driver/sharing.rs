//! Memory shared between processes.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Failure, Pool};
use crate::exported::{Exported, Given};
use crate::location::DeviceIndex;

/// Exports and imports. A vendor that shares nothing exports nothing.
pub(crate) trait Sharing {
    /// The export of the allocation around an address; none if memory of its kind is not shared. Of memory of a pool,
    /// [`Exported::pool`] is the driver's handle of that. The context is current.
    fn export(&self, _device: DeviceIndex, _address: u64, _buffer_id: u64) -> Result<Option<Exported>, Failure> {
        Ok(None)
    }

    /// A descriptor of what was exported; none if other memory, or none, is there by now. The context is current.
    fn descriptor(&self, _exported: &Exported) -> Result<Option<OwnedFd>, Failure> {
        Err(Failure::missing("descriptor"))
    }

    /// A descriptor of a pool in which memory is allocated now, by its handle. The context is current.
    fn pool_descriptor(&self, _pool: u64) -> Result<OwnedFd, Failure> {
        Err(Failure::missing("pool_descriptor"))
    }

    /// Opens the handle of another process's allocation in the current context.
    fn open_handle(&self, _handle: &[u8; 64]) -> Result<u64, Failure> {
        Err(Failure::missing("open_handle"))
    }

    /// Closes it. The context in which it was opened is current.
    ///
    /// # Safety
    /// The mapping is no longer in use.
    unsafe fn close_handle(&self, _address: u64) -> Result<(), Failure> {
        Err(Failure::missing("close_handle"))
    }

    /// Maps what descriptors stand for, side by side, for a device; [`unmap`](super::Memory::unmap) takes it back.
    fn map_descriptors(&self, _given: &[Given], _user: DeviceIndex) -> Result<u64, Failure> {
        Err(Failure::missing("map_descriptors"))
    }

    /// Imports another process's pool, for a device.
    fn import_pool(&self, _descriptor: BorrowedFd<'_>, _user: DeviceIndex) -> Result<Pool, Failure> {
        Err(Failure::missing("import_pool"))
    }

    /// The address of an allocation in an imported pool, to be freed once.
    fn import_pointer(&self, _pool: &Pool, _handle: &[u8; 64]) -> Result<u64, Failure> {
        Err(Failure::missing("import_pointer"))
    }

    /// Destroys a pool that we have made or imported. What is allocated in it stays until it is freed.
    fn destroy_pool(&self, _pool: Pool) -> Result<(), Failure> {
        Err(Failure::missing("destroy_pool"))
    }
}
