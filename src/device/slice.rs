//! Parts of device memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use super::{DeviceMemory, DeviceMemoryMut};
use crate::data::Data;
use crate::{DeviceAllocation, Error, ErrorKind};

/// A range of elements of [`DeviceMemory`], to send: of bytes of a [`DeviceBuffer`](crate::DeviceBuffer), of values of a
/// [`DeviceVec`](crate::DeviceVec).
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a, T = u8> {
    start: *mut c_void,
    len: usize,
    allocation: Option<DeviceAllocation>,
    borrowed: PhantomData<&'a [T]>,
}

/// A range of elements of [`DeviceMemory`], to receive into or to send.
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T = u8> {
    start: *mut c_void,
    len: usize,
    allocation: Option<DeviceAllocation>,
    borrowed: PhantomData<&'a mut [T]>,
}

impl<'a, T: Data> DeviceSlice<'a, T> {
    /// Describes the elements of `range`, counted from the beginning of the memory. Waits for queued work that writes the
    /// memory, as [`DeviceMemory::finish_writes`] does.
    ///
    /// # Errors
    /// The range reaches beyond the memory, or the device failed.
    pub fn new(memory: &'a (impl DeviceMemory<Item = T> + ?Sized), range: Range<usize>) -> Result<Self, Error> {
        let start = start(memory, &range)?;
        memory.finish_writes()?;
        Ok(DeviceSlice { start, len: range.len(), allocation: memory.allocation(), borrowed: PhantomData })
    }
}

impl<'a, T: Data> DeviceSliceMut<'a, T> {
    /// Describes the elements of `range`, counted from the beginning of the memory. Waits for queued work that uses the
    /// memory, as [`DeviceMemoryMut::finish_uses`] does.
    ///
    /// # Errors
    /// The range reaches beyond the memory, or the device failed.
    pub fn new(memory: &'a mut (impl DeviceMemoryMut<Item = T> + ?Sized), range: Range<usize>) -> Result<Self, Error> {
        let start = start(memory, &range)?;
        memory.finish_uses()?;
        Ok(DeviceSliceMut { start, len: range.len(), allocation: memory.allocation(), borrowed: PhantomData })
    }

    /// Divides the range in two, at the element `middle`, which the second part begins with. Both can be received into at
    /// the same time.
    ///
    /// # Errors
    /// The range has fewer elements.
    pub fn split_at(self, middle: usize) -> Result<(DeviceSliceMut<'a, T>, DeviceSliceMut<'a, T>), Error> {
        let second = start(&self, &(middle..self.len))?;
        let part = |start, len| DeviceSliceMut { start, len, allocation: self.allocation, borrowed: PhantomData };
        Ok((part(self.start, middle), part(second, self.len - middle)))
    }
}

/// Returns the address of the range's first element.
fn start<T>(memory: &(impl DeviceMemory<Item = T> + ?Sized), range: &Range<usize>) -> Result<*mut c_void, Error> {
    let len = memory.len();
    if range.start > range.end || range.end > len {
        let text = format!("elements {} to {} are outside memory of {len} elements", range.start, range.end);
        return Err(ErrorKind::BadBuffer(text).into());
    }
    // The product is at most the length in bytes.
    Ok(memory.address().wrapping_byte_add(range.start * size_of::<T>()))
}

macro_rules! slices {
    ($($slice:ident),+) => { $(
        // SAFETY: an address; what is borrowed may be used from every thread, because it has neither interior mutability
        // nor a thread of its own.
        unsafe impl<T: Data> Send for $slice<'_, T> {}
        // SAFETY: a shared borrow only lets the memory be read.
        unsafe impl<T: Data> Sync for $slice<'_, T> {}

        // SAFETY: in bounds of memory that is borrowed, and whose queued work was waited for. The borrow keeps other work
        // from being queued.
        unsafe impl<T: Data> DeviceMemory for $slice<'_, T> {
            type Item = T;

            fn address(&self) -> *mut c_void {
                self.start
            }

            fn len(&self) -> usize {
                self.len
            }

            fn allocation(&self) -> Option<DeviceAllocation> {
                self.allocation
            }
        }
    )+ };
}
slices!(DeviceSlice, DeviceSliceMut);

// SAFETY: as above, borrowed exclusively from memory that may be written.
unsafe impl<T: Data> DeviceMemoryMut for DeviceSliceMut<'_, T> {}
