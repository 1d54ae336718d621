//! Sharing memory between processes.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Failure, Pool};
use crate::exported::{Exported, PieceDescriptor};
use crate::location::DeviceIndex;

/// Exports and imports. A vendor without sharing exports nothing.
pub(crate) trait Sharing {
    /// Returns the export of the allocation around an address, or `None` if memory of its kind is not shared. For pool
    /// memory, [`Exported::pool`] is the driver's handle of the pool. The context is current.
    fn export(&self, _device: DeviceIndex, _address: u64, _buffer_id: u64) -> Result<Option<Exported>, Failure> {
        Ok(None)
    }

    /// Returns a descriptor of exported memory, or `None` if that memory is no longer there. The context is current.
    fn descriptor(&self, _exported: &Exported) -> Result<Option<OwnedFd>, Failure> {
        Err(Failure::missing("descriptor"))
    }

    /// Returns a descriptor of a pool by its handle. The pool has an allocation. The context is current.
    fn pool_descriptor(&self, _pool: u64) -> Result<OwnedFd, Failure> {
        Err(Failure::missing("pool_descriptor"))
    }

    /// Opens the handle of another process's allocation in the current context.
    fn open_handle(&self, _handle: &[u8; 64]) -> Result<u64, Failure> {
        Err(Failure::missing("open_handle"))
    }

    /// Closes a mapping. The context in which it was opened is current.
    ///
    /// # Safety
    /// The mapping is not in use.
    unsafe fn close_handle(&self, _address: u64) -> Result<(), Failure> {
        Err(Failure::missing("close_handle"))
    }

    /// Maps the memory of descriptors side by side, for a device. [`unmap`](super::Memory::unmap) undoes it.
    fn map_descriptors(&self, _given: &[PieceDescriptor], _user: DeviceIndex) -> Result<u64, Failure> {
        Err(Failure::missing("map_descriptors"))
    }

    /// Imports another process's pool, for a device.
    fn import_pool(&self, _descriptor: BorrowedFd<'_>, _user: DeviceIndex) -> Result<Pool, Failure> {
        Err(Failure::missing("import_pool"))
    }

    /// Returns the address of an allocation in an imported pool. Free it once.
    fn import_pointer(&self, _pool: &Pool, _handle: &[u8; 64]) -> Result<u64, Failure> {
        Err(Failure::missing("import_pointer"))
    }

    /// Destroys a created or imported pool. Its allocations stay until they are freed.
    fn destroy_pool(&self, _pool: Pool) -> Result<(), Failure> {
        Err(Failure::missing("destroy_pool"))
    }
}
