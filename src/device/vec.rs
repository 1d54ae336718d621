//! Typed device memory that the library allocates.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use cableway_common_cuda::{BufferKind, DeviceAllocation, DeviceBuffer, DeviceIndex, Devices};
use zerocopy::IntoBytes;

use super::{DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut};
use crate::data::Data;
use crate::{Error, ErrorKind};

/// A device that this process can use. Made by [`World::device`](crate::World::device).
#[derive(Clone, Copy, Debug)]
pub struct Device<'w> {
    devices: &'w Devices,
    index: DeviceIndex,
}

impl<'w> Device<'w> {
    /// Initialises the driver, and checks that there is such a device.
    pub(crate) fn new(devices: &'w Devices, index: u32) -> Result<Self, Error> {
        devices.initialise()?;
        let count = devices.facts()?.devices.len();
        if index as usize >= count {
            let text = format!("device {index} does not exist: this process can use {count}, counted from 0");
            return Err(ErrorKind::BadBuffer(text).into());
        }
        Ok(Device { devices, index: DeviceIndex(index) })
    }

    /// Returns the number of the device.
    pub fn index(&self) -> DeviceIndex {
        self.index
    }

    /// Allocates `len` elements of the device's memory, set to zero. As after `cudaMemset`, the zeros are ordered in the
    /// legacy default stream, and before the library's messages.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut sums = world.device(0)?.zeroed::<f32>(1024)?;
    /// let gradients = world.device(0)?.copied(&[0.5_f32; 1024])?;
    /// everyone.allreduce(&gradients, &mut sums, cableway::ReduceOperation::Sum)?;
    /// println!("{:?}", sums.to_vec()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The memory is exhausted, or the driver refused.
    pub fn zeroed<T: Data>(&self, len: usize) -> Result<DeviceVec<T>, Error> {
        let mut vec = self.allocate(BufferKind::Device, len)?;
        vec.buffer.fill(0)?;
        Ok(vec)
    }

    /// Allocates as many elements of the device's memory as `values` has, and copies them there.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn copied<T: Data>(&self, values: &[T]) -> Result<DeviceVec<T>, Error> {
        let mut vec = self.allocate(BufferKind::Device, values.len())?;
        vec.copy_from_host(0, values)?;
        Ok(vec)
    }

    /// Allocates `len` elements of memory of this kind, whose content is undefined.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), or the device does not support the kind.
    pub fn allocate<T: Data>(&self, kind: BufferKind, len: usize) -> Result<DeviceVec<T>, Error> {
        let too_much = || ErrorKind::BadBuffer(format!("{len} elements are more than memory can hold"));
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        // Drivers refuse to allocate nothing.
        let buffer = DeviceBuffer::new(self.devices, self.index, kind, bytes.ok_or_else(too_much)?.max(1))?;
        Ok(DeviceVec { buffer, len, device: self.index, item: PhantomData })
    }
}

/// Elements of type `T` in memory of a device, which dropping it frees. Made by [`Device`].
///
/// It is sent, received into and reduced as a vector in host memory is, and registered for one-sided operations
/// ([`World::register`](crate::World::register)). Parts of it are made by [`slice`](Self::slice).
///
/// The program must wait for its own kernels and asynchronous copies that use the memory, before it passes it to the
/// library. A message is complete on the device when its call or request is.
#[derive(Debug)]
pub struct DeviceVec<T> {
    buffer: DeviceBuffer,
    len: usize,
    device: DeviceIndex,
    item: PhantomData<T>,
}

// SAFETY: the elements are in the buffer, which may move to other threads; there is no value of type `T`.
unsafe impl<T: Data> Send for DeviceVec<T> {}
// SAFETY: as above.
unsafe impl<T: Data> Sync for DeviceVec<T> {}

impl<T: Data> DeviceVec<T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device whose memory it is.
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Returns the address of the first element, for kernels. The CPU may access only [`BufferKind::Pinned`] and
    /// [`BufferKind::Managed`] memory.
    pub fn as_device_ptr(&self) -> *mut T {
        self.buffer.as_device_ptr().cast()
    }

    /// Copies `values` to the elements from `first` on. They may be changed again on return. From pageable memory they may
    /// arrive later, ordered in the legacy default stream, and so before the library's messages.
    ///
    /// # Errors
    /// There are not so many elements, or the driver refused.
    pub fn copy_from_host(&mut self, first: usize, values: &[T]) -> Result<(), Error> {
        self.check(first, values.len())?;
        Ok(self.buffer.copy_from_host(first * size_of::<T>(), values.as_bytes())?)
    }

    /// Copies the elements from `first` on to `values`. The copy is complete on return.
    ///
    /// # Errors
    /// As [`copy_from_host`](Self::copy_from_host).
    pub fn copy_to_host(&self, first: usize, values: &mut [T]) -> Result<(), Error> {
        self.check(first, values.len())?;
        let bytes = size_of_val(values);
        // SAFETY: the exclusive borrow of values for which any bytes are valid, and which have no padding.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) };
        Ok(self.buffer.copy_to_host(first * size_of::<T>(), bytes)?)
    }

    /// Returns a copy of all elements in host memory.
    ///
    /// # Errors
    /// Host memory is exhausted, or the driver refused.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut values = T::new_vec_zeroed(self.len)
            .map_err(|_| ErrorKind::BadBuffer(format!("host memory for {} elements is exhausted", self.len)))?;
        self.copy_to_host(0, &mut values)?;
        Ok(values)
    }

    /// Returns the elements of `range`, to send them.
    ///
    /// # Errors
    /// The range reaches beyond the vector.
    pub fn slice(&self, range: Range<usize>) -> Result<DeviceSlice<'_, T>, Error> {
        DeviceSlice::new(self, range)
    }

    /// Returns the elements of `range`, to receive into them.
    ///
    /// # Errors
    /// The range reaches beyond the vector.
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<DeviceSliceMut<'_, T>, Error> {
        DeviceSliceMut::new(self, range)
    }

    fn check(&self, first: usize, count: usize) -> Result<(), Error> {
        if first.checked_add(count).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let text = format!("{count} elements from {first} on are outside a vector of {} elements", self.len);
        Err(ErrorKind::BadBuffer(text).into())
    }
}

// SAFETY: the allocation lives as long as the vector, holds as many elements, and is aligned for every type of them. Its
// content is accessed only by borrowing the vector or by its address, which is unsafe.
unsafe impl<T: Data> DeviceMemory for DeviceVec<T> {
    type Item = T;

    fn address(&self) -> *mut c_void {
        self.buffer.as_device_ptr().cast()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn allocation(&self) -> Option<DeviceAllocation> {
        self.buffer.allocation()
    }
}

// SAFETY: as above; any bytes are elements.
unsafe impl<T: Data> DeviceMemoryMut for DeviceVec<T> {}
