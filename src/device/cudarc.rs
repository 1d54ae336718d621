//! Device memory of the crate `cudarc`.
//!
//! Each slice of that crate has a stream, and events for its last read and its last write in any stream. A message has no
//! stream, so the CPU waits before it begins: the slice's stream waits for the events, and the CPU for the stream. From
//! then on the borrow keeps other work from being queued, and the message is complete on the device when its call or its
//! request is. So work that is queued later needs no event of the message.

use std::ffi::c_void;

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, DriverError};

use super::{DeviceMemory, DeviceMemoryMut};
use crate::data::Data;
use crate::registration::sealed::Region;
use crate::{Error, ErrorKind};

/// Waits for writes of the memory that were queued in any stream, as far as cudarc knows of them.
fn finish_writes<T>(memory: &impl DevicePtr<T>) -> Result<(), Error> {
    let stream = memory.stream();
    // The guard tells cudarc of a read, which is over when the guard is dropped.
    let (_, _guard) = memory.device_ptr(stream);
    // An error of queueing the wait is returned here, too.
    stream.synchronize().map_err(refused)
}

/// Waits for reads and writes.
fn finish_uses<T>(memory: &mut impl DevicePtrMut<T>) -> Result<(), Error> {
    let stream = memory.stream().clone();
    let (_, _guard) = memory.device_ptr_mut(&stream);
    stream.synchronize().map_err(refused)
}

fn address<T>(memory: &impl DevicePtr<T>) -> *mut c_void {
    let (address, _guard) = memory.device_ptr(memory.stream());
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[cold]
fn refused(error: DriverError) -> Error {
    ErrorKind::DeviceOrder(format!("cudarc's stream could not be waited for: {error}")).into()
}

macro_rules! memory {
    ($($memory:ty),+) => { $(
        // SAFETY: one allocation, or a part of it, which cudarc aligns for its elements. The slice's stream, which waits
        // for writes in all others, was waited for. Safe code queues writes only by an exclusive borrow.
        unsafe impl<T: Data> DeviceMemory for $memory {
            type Item = T;

            fn address(&self) -> *mut c_void {
                address(self)
            }

            fn len(&self) -> usize {
                DeviceSlice::len(self)
            }

            fn finish_writes(&self) -> Result<(), Error> {
                finish_writes(self)
            }
        }
    )+ };
}
memory!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);

// SAFETY: any bytes are elements. The stream, which waits for reads and writes in all others, was waited for.
unsafe impl<T: Data> DeviceMemoryMut for CudaSlice<T> {
    fn finish_uses(&mut self) -> Result<(), Error> {
        finish_uses(self)
    }
}

// SAFETY: as above.
unsafe impl<T: Data> DeviceMemoryMut for CudaViewMut<'_, T> {
    fn finish_uses(&mut self) -> Result<(), Error> {
        finish_uses(self)
    }
}

// SAFETY: the slice owns its allocation, which stays where it is when the slice is moved. The registration keeps the slice
// to itself. Any bytes are elements.
unsafe impl<T: Data> Region for CudaSlice<T> {
    fn region(&mut self) -> Result<(*mut u8, u64), Error> {
        self.finish_uses()?;
        Ok((self.address().cast(), self.num_bytes() as u64))
    }
}
