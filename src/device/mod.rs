//! Device memory that the library's calls accept: one trait for its own kinds and for those of other crates.

#[cfg(feature = "cudarc")]
mod cudarc;
mod slice;
mod vec;

use std::ffi::c_void;

use cableway_common_cuda::{DeviceAllocation, DeviceBuffer};

use crate::Error;
use crate::data::Data;

pub use slice::{DeviceSlice, DeviceSliceMut};
pub use vec::{Device, DeviceVec};

/// Memory of a device that can be sent and read by collective operations. Every call that takes a
/// [`SendBuffer`](crate::SendBuffer) takes it. Counts of its parts count elements.
///
/// Implemented for [`DeviceBuffer`] (elements are bytes), [`DeviceVec`], [`DeviceSlice`] and [`DeviceSliceMut`], and, by
/// the feature `cudarc`, for that crate's `CudaSlice`, `CudaView` and `CudaViewMut`. Implement it for memory of another
/// library. The memory may be on the host as well: the library asks the driver about the address at each use, unless
/// [`allocation`](Self::allocation) names its allocation.
///
/// # Safety
/// - `len` elements lie at `address`, in one allocation. The address is a multiple of their alignment.
/// - They stay there for as long as `self` is borrowed. If [`allocation`](Self::allocation) names one, this process's
///   `World::allocation_of` has found it, it exists as long, and it holds all of them.
/// - After [`finish_writes`](Self::finish_writes) has returned `Ok`, no work that was queued before changes the
///   elements, apart from synchronous copies and fills (`cudaMemcpy`, `cudaMemset`), which the library orders itself.
/// - As long as `self` is borrowed after that, nobody queues work that writes them, other than by an exclusive borrow or
///   an `unsafe` call.
pub unsafe trait DeviceMemory {
    /// The type of the elements.
    type Item: Data;

    /// Returns the address of the first element. It is not used if there are none.
    fn address(&self) -> *mut c_void;

    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the allocation that holds the memory, if [`World::allocation_of`](crate::World::allocation_of) has found it.
    /// Then messages do not ask the driver where the memory lies, which takes 0.2 us or more.
    fn allocation(&self) -> Option<DeviceAllocation> {
        None
    }

    /// Waits for queued work that writes the memory. Called before each message from it. Memory whose program waits
    /// itself needs nothing here.
    ///
    /// # Errors
    /// The device failed, or the work cannot be waited for. Nothing is sent then.
    fn finish_writes(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Memory of a device that can be received into. Every call that takes a [`RecvBuffer`](crate::RecvBuffer) takes it.
///
/// # Safety
/// - Any bytes may be stored in the elements of [`DeviceMemory`].
/// - After [`finish_uses`](Self::finish_uses) has returned `Ok`, no work that was queued before accesses them, apart from
///   synchronous copies and fills.
/// - As long as `self` is borrowed exclusively after that, nobody queues work that accesses them, other than by an
///   `unsafe` call.
pub unsafe trait DeviceMemoryMut: DeviceMemory {
    /// Waits for queued work that reads or writes the memory. Called before each receive into it.
    ///
    /// # Errors
    /// As [`finish_writes`](DeviceMemory::finish_writes). Nothing is received then.
    fn finish_uses(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

// SAFETY: the allocation lives as long as the buffer, and its content is accessed only by borrowing the buffer or by its
// address, which is unsafe. The copies and fills that it makes itself are synchronous calls.
unsafe impl DeviceMemory for DeviceBuffer {
    type Item = u8;

    fn address(&self) -> *mut c_void {
        self.as_device_ptr().cast()
    }

    fn len(&self) -> usize {
        DeviceBuffer::len(self)
    }

    fn allocation(&self) -> Option<DeviceAllocation> {
        DeviceBuffer::allocation(self)
    }
}

// SAFETY: as above; any bytes may be stored in device memory.
unsafe impl DeviceMemoryMut for DeviceBuffer {}
