//! Buffers that can be sent or received into.

use std::ffi::c_void;
use std::marker::PhantomData;

use cableway_common_cuda::DeviceAllocation;
use cableway_datatype::Layout;
use cableway_pml::Buffer;

use crate::data::Data;
use crate::device::{DeviceMemory, DeviceMemoryMut};
use crate::{Error, ErrorKind};

/// A buffer that can be sent: slices, arrays and vectors of [`Data`], [`DeviceMemory`], and typed memory.
pub trait SendBuffer: sealed::Readable {}

/// A buffer that can be received into: the same kinds as [`SendBuffer`], borrowed exclusively.
pub trait RecvBuffer: sealed::Writable {}

impl<B: sealed::Readable + ?Sized> SendBuffer for B {}
impl<B: sealed::Writable + ?Sized> RecvBuffer for B {}

pub(crate) mod sealed {
    use cableway_pml::Buffer;

    use crate::Error;

    /// # Safety
    /// The buffer's memory stays readable and unchanged for as long as `self` is borrowed.
    pub unsafe trait Readable {
        /// Describes the memory, once work that is queued on its device can no longer change it.
        fn readable(&self) -> Result<Buffer<'_>, Error>;

        /// Returns the bytes of what counts of parts count, unless the buffer has a layout.
        fn unit(&self) -> u64 {
            1
        }
    }

    /// # Safety
    /// The buffer's memory stays writable for as long as `self` is borrowed. Nobody else accesses it meanwhile, and any
    /// bytes may be stored there.
    pub unsafe trait Writable {
        /// Describes the memory, once no work that is queued on its device uses it.
        fn writable(&mut self) -> Result<Buffer<'_>, Error>;

        /// As that of [`Readable`].
        fn unit(&self) -> u64 {
            1
        }
    }
}

use sealed::{Readable, Writable};

// SAFETY: a shared borrow of data without interior mutability or padding.
unsafe impl<T: Data> Readable for [T] {
    fn readable(&self) -> Result<Buffer<'_>, Error> {
        Ok(Buffer::bytes(self.as_ptr().cast(), size_of_val(self) as u64))
    }

    fn unit(&self) -> u64 {
        size_of::<T>() as u64
    }
}

// SAFETY: an exclusive borrow of data for which any bytes are a valid value.
unsafe impl<T: Data> Writable for [T] {
    fn writable(&mut self) -> Result<Buffer<'_>, Error> {
        Ok(Buffer::bytes(self.as_mut_ptr().cast(), size_of_val(self) as u64))
    }

    fn unit(&self) -> u64 {
        size_of::<T>() as u64
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data, const N: usize> Readable for [T; N] {
    fn readable(&self) -> Result<Buffer<'_>, Error> {
        self.as_slice().readable()
    }

    fn unit(&self) -> u64 {
        size_of::<T>() as u64
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data, const N: usize> Writable for [T; N] {
    fn writable(&mut self) -> Result<Buffer<'_>, Error> {
        self.as_mut_slice().writable()
    }

    fn unit(&self) -> u64 {
        size_of::<T>() as u64
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data> Readable for Vec<T> {
    fn readable(&self) -> Result<Buffer<'_>, Error> {
        self.as_slice().readable()
    }

    fn unit(&self) -> u64 {
        size_of::<T>() as u64
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data> Writable for Vec<T> {
    fn writable(&mut self) -> Result<Buffer<'_>, Error> {
        self.as_mut_slice().writable()
    }

    fn unit(&self) -> u64 {
        size_of::<T>() as u64
    }
}

/// Host or device memory by its address: memory of `cudaMalloc`, of a pool, or of another library.
///
/// The library looks up where the memory resides at each use, unless its allocation is known ([`within`](Self::within)), or that it
/// is memory of the host ([`in_host`](Self::in_host)). Work in the legacy default stream is ordered before the message. Synchronize with other streams that use the memory before sending or receiving.
#[derive(Debug)]
pub struct RawBuffer<'a> {
    buffer: Buffer<'a>,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: an address; the promise given to its constructor holds on every thread.
unsafe impl Send for RawBuffer<'_> {}
// SAFETY: a shared borrow only lets the memory be read.
unsafe impl Sync for RawBuffer<'_> {}

impl<'a> RawBuffer<'a> {
    /// Describes `len` bytes at `address`. The address is ignored if `len` is 0.
    ///
    /// # Safety
    /// For as long as `'a`, the memory stays allocated, and nobody writes to it other than through this value. Nobody
    /// reads it while a message is received into it. Others may read memory that is only sent from.
    pub unsafe fn new(address: *mut c_void, len: u64) -> Self {
        RawBuffer { buffer: Buffer::bytes(address.cast(), len), life: PhantomData }
    }

    /// Describes the same bytes in the allocation that [`World::allocation_of`](crate::World::allocation_of) has found, so that
    /// messages do not ask the driver where they lie. `None` has no effect.
    ///
    /// # Safety
    /// This process's `allocation_of` found the allocation. It exists for as long as `'a`, and holds all of the bytes.
    pub unsafe fn within(mut self, allocation: Option<DeviceAllocation>) -> Self {
        self.buffer = self.buffer.within(allocation);
        self
    }

    /// Describes the same bytes in host memory, so that messages of less than 16 KiB do not ask the driver where they lie. For longer
    /// ones it matters whether the memory is page-locked. The library recognizes small buffers on the stack, in the heap of the
    /// main thread and in static memory by itself.
    ///
    /// # Safety
    /// For as long as `'a`, the CPU can access all of the bytes, and no stream is ordered before the message: the memory is not
    /// managed memory that a kernel writes.
    pub unsafe fn in_host(mut self) -> Self {
        self.buffer = self.buffer.in_host();
        self
    }

    /// Describes `count` elements of `layout`, whose offsets count from `address`.
    ///
    /// # Safety
    /// The same as [`new`](Self::new), for every byte of the elements. Gaps between them are not accessed.
    pub unsafe fn typed(address: *mut c_void, count: u64, layout: &'a Layout) -> Self {
        RawBuffer { buffer: Buffer::typed(address.cast(), count, layout), life: PhantomData }
    }
}

// SAFETY: the caller of the constructor promised it.
unsafe impl Readable for RawBuffer<'_> {
    fn readable(&self) -> Result<Buffer<'_>, Error> {
        Ok(self.buffer)
    }
}

// SAFETY: the caller of the constructor promised it.
unsafe impl Writable for RawBuffer<'_> {
    fn writable(&mut self) -> Result<Buffer<'_>, Error> {
        Ok(self.buffer)
    }
}

/// Elements of a datatype within a slice, or within device memory, to send.
///
/// ```
/// use cableway::{Datatype, Predefined, TypedSlice};
///
/// # fn main() -> Result<(), cableway::Error> {
/// // Every fourth value of a slice: three blocks of one value.
/// let column = Datatype::vector(3, 1, 4, &Predefined::Double.datatype())?.commit();
/// let matrix = [0.0_f64; 12];
/// let buffer = TypedSlice::new(&matrix, 1, &column)?;
/// # drop(buffer);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TypedSlice<'a> {
    raw: RawBuffer<'a>,
}

impl<'a> TypedSlice<'a> {
    /// Describes `count` elements of `layout`, the first at the beginning of `memory`.
    ///
    /// # Errors
    /// The elements reach beyond the memory, or the memory has a layout already.
    pub fn new(memory: &'a (impl SendBuffer + ?Sized), count: u64, layout: &'a Layout) -> Result<Self, Error> {
        let address = within(&memory.readable()?, count, layout)?;
        // SAFETY: in bounds; the memory is borrowed for `'a` and is only read.
        Ok(TypedSlice { raw: unsafe { RawBuffer::typed(address, count, layout) } })
    }
}

/// Elements of a datatype within a slice, or within device memory, to receive into.
#[derive(Debug)]
pub struct TypedSliceMut<'a> {
    raw: RawBuffer<'a>,
}

impl<'a> TypedSliceMut<'a> {
    /// Describes `count` elements of `layout`, the first at the beginning of `memory`.
    ///
    /// # Errors
    /// The elements reach beyond the memory, or the memory has a layout already.
    pub fn new(memory: &'a mut (impl RecvBuffer + ?Sized), count: u64, layout: &'a Layout) -> Result<Self, Error> {
        let address = within(&memory.writable()?, count, layout)?;
        // SAFETY: in bounds; the memory is borrowed exclusively for `'a`, and any bytes are values of its type.
        Ok(TypedSliceMut { raw: unsafe { RawBuffer::typed(address, count, layout) } })
    }
}

/// Returns the address of memory that holds elements.
fn within(memory: &Buffer<'_>, count: u64, layout: &Layout) -> Result<*mut c_void, Error> {
    let (address, bytes) = (memory.address().cast(), memory.count());
    if memory.layout().is_some() {
        return Err(ErrorKind::BadBuffer("memory of a datatype cannot hold elements of another one".to_owned()).into());
    }
    if count == 0 || layout.size() == 0 {
        return Ok(address);
    }
    let outside =
        || ErrorKind::BadBuffer(format!("{count} elements of a datatype reach beyond their memory of {bytes} bytes"));
    let (offset, len) = layout.span(count).ok_or_else(outside)?;
    let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
    Ok(end.filter(|&end| end <= bytes).map(|_| address).ok_or_else(outside)?)
}

// SAFETY: the borrow keeps the promise that the raw buffer needs.
unsafe impl Readable for TypedSlice<'_> {
    fn readable(&self) -> Result<Buffer<'_>, Error> {
        self.raw.readable()
    }
}

// SAFETY: as above.
unsafe impl Readable for TypedSliceMut<'_> {
    fn readable(&self) -> Result<Buffer<'_>, Error> {
        self.raw.readable()
    }
}

// SAFETY: as above, borrowed exclusively.
unsafe impl Writable for TypedSliceMut<'_> {
    fn writable(&mut self) -> Result<Buffer<'_>, Error> {
        self.raw.writable()
    }
}

// SAFETY: what `DeviceMemory` promises.
unsafe impl<M: DeviceMemory + ?Sized> Readable for M {
    fn readable(&self) -> Result<Buffer<'_>, Error> {
        self.finish_writes()?;
        Ok(Buffer::bytes(self.address().cast(), bytes(self)).within(self.allocation()))
    }

    fn unit(&self) -> u64 {
        size_of::<M::Item>() as u64
    }
}

// SAFETY: what `DeviceMemoryMut` promises.
unsafe impl<M: DeviceMemoryMut + ?Sized> Writable for M {
    fn writable(&mut self) -> Result<Buffer<'_>, Error> {
        self.finish_uses()?;
        Ok(Buffer::bytes(self.address().cast(), bytes(self)).within(self.allocation()))
    }

    fn unit(&self) -> u64 {
        size_of::<M::Item>() as u64
    }
}

/// Returns the length in bytes, which is that of an allocation.
fn bytes<M: DeviceMemory + ?Sized>(memory: &M) -> u64 {
    memory.len() as u64 * size_of::<M::Item>() as u64
}
