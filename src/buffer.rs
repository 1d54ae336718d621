//! What can be sent, and what can be received into.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use cableway_common_cuda::DeviceBuffer;
use cableway_datatype::Layout;
use cableway_pml::Buffer;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Error, ErrorKind};

/// Plain data: any bytes are a value, any value is bytes. Implemented for every type that is so by `zerocopy`'s
/// account, which derives it: `#[derive(FromBytes, IntoBytes, Immutable)]`.
pub trait Data: FromBytes + IntoBytes + Immutable {}

impl<T: FromBytes + IntoBytes + Immutable> Data for T {}

/// Something whose bytes can be sent: slices, arrays and vectors of [`Data`], device memory, typed memory.
pub trait SendBuffer: sealed::Readable {}

/// Something that can be received into, as [`SendBuffer`].
pub trait RecvBuffer: sealed::Writable {}

impl<B: sealed::Readable + ?Sized> SendBuffer for B {}
impl<B: sealed::Writable + ?Sized> RecvBuffer for B {}

pub(crate) mod sealed {
    use cableway_pml::Buffer;

    /// # Safety
    /// The buffer's memory can be read as long as `self` is borrowed, and does not change meanwhile.
    pub unsafe trait Readable {
        fn readable(&self) -> Buffer<'_>;
    }

    /// # Safety
    /// The buffer's memory can be written as long as `self` is borrowed, nobody else has access to it meanwhile, and
    /// any bytes may be stored there.
    pub unsafe trait Writable {
        fn writable(&mut self) -> Buffer<'_>;
    }
}

use sealed::{Readable, Writable};

// SAFETY: a shared borrow of data without interior mutability or padding.
unsafe impl<T: Data> Readable for [T] {
    fn readable(&self) -> Buffer<'_> {
        Buffer::bytes(self.as_ptr().cast(), size_of_val(self) as u64)
    }
}

// SAFETY: an exclusive borrow of data that any bytes are a value of.
unsafe impl<T: Data> Writable for [T] {
    fn writable(&mut self) -> Buffer<'_> {
        Buffer::bytes(self.as_mut_ptr().cast(), size_of_val(self) as u64)
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data, const N: usize> Readable for [T; N] {
    fn readable(&self) -> Buffer<'_> {
        self.as_slice().readable()
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data, const N: usize> Writable for [T; N] {
    fn writable(&mut self) -> Buffer<'_> {
        self.as_mut_slice().writable()
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data> Readable for Vec<T> {
    fn readable(&self) -> Buffer<'_> {
        self.as_slice().readable()
    }
}

// SAFETY: as the slice.
unsafe impl<T: Data> Writable for Vec<T> {
    fn writable(&mut self) -> Buffer<'_> {
        self.as_mut_slice().writable()
    }
}

/// Memory by its address, host or device memory alike: `cudaMalloc`'s, a pool's, another library's.
///
/// Where it lives is found out at each use. Work on it in streams other than the legacy default one is the program's
/// to finish before it is sent or received into.
#[derive(Debug)]
pub struct RawBuffer<'a> {
    buffer: Buffer<'a>,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: an address and the promise of its constructor, which holds on every thread.
unsafe impl Send for RawBuffer<'_> {}
// SAFETY: a shared borrow only lets the memory be read.
unsafe impl Sync for RawBuffer<'_> {}

impl<'a> RawBuffer<'a> {
    /// `len` bytes at `address`, which is not looked at if `len` is 0.
    ///
    /// # Safety
    /// For as long as `'a`: the memory stays allocated, and nobody writes to it, nor reads what is being received,
    /// other than through this value (so that borrowing the value is borrowing the memory). Memory that is only sent
    /// from may be read by others.
    pub unsafe fn new(address: *mut c_void, len: u64) -> Self {
        RawBuffer { buffer: Buffer::bytes(address.cast(), len), life: PhantomData }
    }

    /// `count` elements laid out as `layout` says, counted from `address`.
    ///
    /// # Safety
    /// As [`new`](Self::new), for every byte of the elements; gaps are not touched.
    pub unsafe fn typed(address: *mut c_void, count: u64, layout: &'a Layout) -> Self {
        RawBuffer { buffer: Buffer::typed(address.cast(), count, layout), life: PhantomData }
    }
}

// SAFETY: the constructor's promise.
unsafe impl Readable for RawBuffer<'_> {
    fn readable(&self) -> Buffer<'_> {
        self.buffer
    }
}

// SAFETY: the constructor's promise.
unsafe impl Writable for RawBuffer<'_> {
    fn writable(&mut self) -> Buffer<'_> {
        self.buffer
    }
}

/// Elements of a datatype within a slice, to be sent.
#[derive(Debug)]
pub struct TypedSlice<'a> {
    raw: RawBuffer<'a>,
}

impl<'a> TypedSlice<'a> {
    /// `count` elements, the first at the beginning of `memory`.
    ///
    /// # Errors
    /// They reach beyond the slice.
    pub fn new<T: Data>(memory: &'a [T], count: u64, layout: &'a Layout) -> Result<Self, Error> {
        within(size_of_val(memory), count, layout)?;
        // SAFETY: in bounds; the memory is borrowed for `'a` and is only read.
        Ok(TypedSlice { raw: unsafe { RawBuffer::typed(memory.as_ptr().cast_mut().cast(), count, layout) } })
    }
}

/// Elements of a datatype within a slice, to be received into.
#[derive(Debug)]
pub struct TypedSliceMut<'a> {
    raw: RawBuffer<'a>,
}

impl<'a> TypedSliceMut<'a> {
    /// `count` elements, the first at the beginning of `memory`.
    ///
    /// # Errors
    /// They reach beyond the slice.
    pub fn new<T: Data>(memory: &'a mut [T], count: u64, layout: &'a Layout) -> Result<Self, Error> {
        within(size_of_val(memory), count, layout)?;
        // SAFETY: in bounds; the memory is borrowed exclusively for `'a`, and any bytes are values of its type.
        Ok(TypedSliceMut { raw: unsafe { RawBuffer::typed(memory.as_mut_ptr().cast(), count, layout) } })
    }
}

fn within(bytes: usize, count: u64, layout: &Layout) -> Result<(), Error> {
    if count == 0 || layout.size() == 0 {
        return Ok(());
    }
    let outside =
        || ErrorKind::BadBuffer(format!("{count} elements of a datatype reach beyond their memory of {bytes} bytes"));
    let (offset, len) = layout.span(count).ok_or_else(outside)?;
    let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
    Ok(end.filter(|&end| end <= bytes as u64).map(drop).ok_or_else(outside)?)
}

// SAFETY: the raw buffer's promise, kept by the borrow.
unsafe impl Readable for TypedSlice<'_> {
    fn readable(&self) -> Buffer<'_> {
        self.raw.readable()
    }
}

// SAFETY: as above.
unsafe impl Readable for TypedSliceMut<'_> {
    fn readable(&self) -> Buffer<'_> {
        self.raw.readable()
    }
}

// SAFETY: as above, borrowed exclusively.
unsafe impl Writable for TypedSliceMut<'_> {
    fn writable(&mut self) -> Buffer<'_> {
        self.raw.writable()
    }
}

// SAFETY: the allocation lives as long as the buffer, which lends its content by borrowing only.
unsafe impl Readable for DeviceBuffer {
    fn readable(&self) -> Buffer<'_> {
        Buffer::bytes(self.as_device_ptr(), self.len() as u64)
    }
}

// SAFETY: as above; bytes of device memory are plain.
unsafe impl Writable for DeviceBuffer {
    fn writable(&mut self) -> Buffer<'_> {
        self.readable()
    }
}

/// Some of the bytes of a [`DeviceBuffer`].
#[derive(Debug)]
pub struct DeviceSlice<'a> {
    raw: RawBuffer<'a>,
}

impl<'a> DeviceSlice<'a> {
    /// Bytes to send.
    ///
    /// # Errors
    /// The range does not lie in the buffer.
    pub fn new(buffer: &'a DeviceBuffer, range: Range<usize>) -> Result<Self, Error> {
        // SAFETY: in bounds; the buffer is borrowed for `'a`, and only `DeviceSliceMut` can be written through.
        let raw = unsafe { RawBuffer::new(start(buffer, &range)?, range.len() as u64) };
        Ok(DeviceSlice { raw })
    }
}

/// Some of the bytes of a [`DeviceBuffer`], exclusively.
#[derive(Debug)]
pub struct DeviceSliceMut<'a> {
    raw: RawBuffer<'a>,
}

impl<'a> DeviceSliceMut<'a> {
    /// Bytes to receive into, or to send.
    ///
    /// # Errors
    /// The range does not lie in the buffer.
    pub fn new(buffer: &'a mut DeviceBuffer, range: Range<usize>) -> Result<Self, Error> {
        // SAFETY: in bounds, and the buffer is borrowed exclusively for `'a`.
        let raw = unsafe { RawBuffer::new(start(buffer, &range)?, range.len() as u64) };
        Ok(DeviceSliceMut { raw })
    }
}

fn start(buffer: &DeviceBuffer, range: &Range<usize>) -> Result<*mut c_void, Error> {
    if range.start > range.end || range.end > buffer.len() {
        let len = buffer.len();
        return Err(ErrorKind::BadBuffer(format!("bytes {} to {} of a buffer of {len}", range.start, range.end)).into());
    }
    Ok(buffer.as_device_ptr().wrapping_add(range.start).cast())
}

// SAFETY: the raw buffer's promise, kept by the borrow.
unsafe impl Readable for DeviceSlice<'_> {
    fn readable(&self) -> Buffer<'_> {
        self.raw.readable()
    }
}

// SAFETY: as above.
unsafe impl Readable for DeviceSliceMut<'_> {
    fn readable(&self) -> Buffer<'_> {
        self.raw.readable()
    }
}

// SAFETY: as above, borrowed exclusively.
unsafe impl Writable for DeviceSliceMut<'_> {
    fn writable(&mut self) -> Buffer<'_> {
        self.raw.writable()
    }
}
