//! Elements of reductions: their types, and memory that holds them.

use std::marker::PhantomData;

use cableway_common_cuda::Element;

use crate::buffer::RawBuffer;
use crate::buffer::sealed::{Readable, Writable};
use crate::device::{DeviceMemory, DeviceMemoryMut};
use crate::{Error, ErrorKind, RecvBuffer, SendBuffer};

/// A type of elements that reductions combine: integers, floating-point numbers, [`Complex`] numbers, and the pairs of a
/// value and an index ([`Located`]) that MPI defines. [`ReduceOperation::applies_to`](crate::ReduceOperation::applies_to)
/// says which operations a type has.
pub trait Reducible: sealed::Item {}

impl<T: sealed::Item> Reducible for T {}

/// Elements that a reduction reads: slices, arrays, vectors and [`DeviceMemory`] of a [`Reducible`] type, and
/// [`Elements`].
pub trait SendElements: sealed::Read<Item: Reducible> {}

/// Elements that a reduction writes: slices, arrays, vectors and [`DeviceMemoryMut`] of a [`Reducible`] type, and
/// [`ElementsMut`].
pub trait RecvElements: sealed::Write<Item: Reducible> {}

impl<E: sealed::Read + ?Sized> SendElements for E {}
impl<E: sealed::Write + ?Sized> RecvElements for E {}

pub(crate) mod sealed {
    use cableway_common_cuda::Element;

    use crate::Error;

    /// # Safety
    /// The type has the size and the fields of the element. Any bytes are a value of it.
    pub unsafe trait Item: Copy + 'static {
        const ELEMENT: Element;
    }

    /// # Safety
    /// So many elements stay readable and unchanged at the address for as long as `self` is borrowed.
    pub unsafe trait Read {
        type Item: Item;
        fn elements(&self) -> Result<(*const u8, usize), Error>;
    }

    /// # Safety
    /// So many elements stay writable at the address for as long as `self` is borrowed. Nobody else accesses them
    /// meanwhile.
    pub unsafe trait Write: Read {
        fn elements_mut(&mut self) -> Result<(*mut u8, usize), Error>;
    }
}

use sealed::{Item, Read, Write};

/// A complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
pub struct Complex<T> {
    /// The real part.
    pub re: T,
    /// The imaginary part.
    pub im: T,
}

/// A value and its index, or its owner's rank, for `MinLoc` and `MaxLoc`.
///
/// The pairs are those of MPI: `(f32, i32)`, `(f64, i32)`, `(i64, i32)`, `(i32, i32)`, `(i16, i32)`, `(f32, f32)` and
/// `(f64, f64)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Located<V, I> {
    /// The value that is compared.
    pub value: V,
    /// The index. Of equal values, the one with the lesser index is taken.
    pub index: I,
}

macro_rules! items {
    ($($type:ty = $element:ident),+ $(,)?) => { $(
        const _: () = assert!(size_of::<$type>() == Element::$element.size());
        // SAFETY: the element describes this type, which has numbers only.
        unsafe impl Item for $type {
            const ELEMENT: Element = Element::$element;
        }
    )+ };
}
items!(
    i8 = I8,
    i16 = I16,
    i32 = I32,
    i64 = I64,
    u8 = U8,
    u16 = U16,
    u32 = U32,
    u64 = U64,
    half::f16 = F16,
    f32 = F32,
    f64 = F64,
    Complex<f32> = Complex32,
    Complex<f64> = Complex64,
    Located<f32, i32> = FloatInt,
    Located<f64, i32> = DoubleInt,
    Located<i64, i32> = LongInt,
    Located<i32, i32> = TwoInt,
    Located<i16, i32> = ShortInt,
    Located<f32, f32> = TwoFloat,
    Located<f64, f64> = TwoDouble,
);

// SAFETY: a shared borrow.
unsafe impl<T: Item> Read for [T] {
    type Item = T;

    fn elements(&self) -> Result<(*const u8, usize), Error> {
        Ok((self.as_ptr().cast(), self.len()))
    }
}

// SAFETY: an exclusive borrow of elements for which any bytes are a value.
unsafe impl<T: Item> Write for [T] {
    fn elements_mut(&mut self) -> Result<(*mut u8, usize), Error> {
        Ok((self.as_mut_ptr().cast(), self.len()))
    }
}

// SAFETY: as the slice.
unsafe impl<T: Item, const N: usize> Read for [T; N] {
    type Item = T;

    fn elements(&self) -> Result<(*const u8, usize), Error> {
        self.as_slice().elements()
    }
}

// SAFETY: as the slice.
unsafe impl<T: Item, const N: usize> Write for [T; N] {
    fn elements_mut(&mut self) -> Result<(*mut u8, usize), Error> {
        self.as_mut_slice().elements_mut()
    }
}

// SAFETY: as the slice.
unsafe impl<T: Item> Read for Vec<T> {
    type Item = T;

    fn elements(&self) -> Result<(*const u8, usize), Error> {
        self.as_slice().elements()
    }
}

// SAFETY: as the slice.
unsafe impl<T: Item> Write for Vec<T> {
    fn elements_mut(&mut self) -> Result<(*mut u8, usize), Error> {
        self.as_mut_slice().elements_mut()
    }
}

// SAFETY: what `DeviceMemory` promises.
unsafe impl<M: DeviceMemory<Item: Item> + ?Sized> Read for M {
    type Item = M::Item;

    fn elements(&self) -> Result<(*const u8, usize), Error> {
        self.finish_writes()?;
        Ok((self.address().cast_const().cast(), self.len()))
    }
}

// SAFETY: what `DeviceMemoryMut` promises.
unsafe impl<M: DeviceMemoryMut<Item: Item> + ?Sized> Write for M {
    fn elements_mut(&mut self) -> Result<(*mut u8, usize), Error> {
        self.finish_uses()?;
        Ok((self.address().cast(), self.len()))
    }
}

/// Memory of another type as elements of type `T`, to read: a [`DeviceBuffer`](crate::DeviceBuffer) or another
/// [`DeviceMemory`] of bytes, a [`RawBuffer`], or bytes on the host.
///
/// It can be sent as well, and its parts are counted in elements.
#[derive(Debug)]
pub struct Elements<'a, T> {
    raw: RawBuffer<'a>,
    item: PhantomData<&'a [T]>,
}

/// Memory of another type as elements of type `T`, to write or to read; see [`Elements`].
#[derive(Debug)]
pub struct ElementsMut<'a, T> {
    raw: RawBuffer<'a>,
    item: PhantomData<&'a mut [T]>,
}

impl<'a, T: Reducible> Elements<'a, T> {
    /// Views a buffer as elements.
    ///
    /// ```no_run
    /// # use cableway::{BufferKind, DeviceBuffer, DeviceIndex, Elements, ReduceOperation, World};
    /// # fn main() -> Result<(), cableway::Error> {
    /// # let world = World::init()?;
    /// let memory = DeviceBuffer::new(world.devices(), DeviceIndex(0), BufferKind::Device, 4096)?;
    /// let mut sums = vec![0.0; 1024];
    /// world.communicator().allreduce(&Elements::<f32>::new(&memory)?, &mut sums, ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The buffer is no whole number of elements, is not aligned for them, or has gaps.
    pub fn new(buffer: &'a (impl SendBuffer + ?Sized)) -> Result<Self, Error> {
        let (address, bytes) = view::<T>(&buffer.readable()?)?;
        // SAFETY: the memory is borrowed for `'a`, and is only read.
        Ok(Elements { raw: unsafe { RawBuffer::new(address.cast(), bytes) }, item: PhantomData })
    }
}

impl<'a, T: Reducible> ElementsMut<'a, T> {
    /// Views a buffer as elements.
    ///
    /// # Errors
    /// The same as those of [`Elements::new`].
    pub fn new(buffer: &'a mut (impl RecvBuffer + ?Sized)) -> Result<Self, Error> {
        let (address, bytes) = view::<T>(&buffer.writable()?)?;
        // SAFETY: the memory is borrowed exclusively for `'a`, and any bytes may be stored there.
        Ok(ElementsMut { raw: unsafe { RawBuffer::new(address.cast(), bytes) }, item: PhantomData })
    }
}

/// Returns the address and length of a buffer that holds elements of this type.
fn view<T: Reducible>(buffer: &cableway_pml::Buffer<'_>) -> Result<(*mut u8, u64), Error> {
    let bad = |text: String| Error::from(ErrorKind::BadBuffer(text));
    let (address, bytes) = match buffer.layout() {
        None => (buffer.address(), buffer.count()),
        Some(layout) => {
            let (offset, bytes) = layout
                .contiguous_span(buffer.count())
                .ok_or_else(|| bad("elements of a reduction must lie without gaps between them".to_owned()))?;
            (buffer.address().wrapping_offset(offset as isize), bytes)
        }
    };
    let element = T::ELEMENT;
    let (size, alignment) = (element.size() as u64, element.alignment());
    if !bytes.is_multiple_of(size) {
        return Err(bad(format!("{bytes} bytes are no whole number of {element:?} elements of {size} bytes")));
    }
    if bytes > 0 && !(address as usize).is_multiple_of(alignment) {
        let text = format!("{element:?} elements at {address:p} are misaligned: use a multiple of {alignment} bytes");
        return Err(bad(text));
    }
    Ok((address, bytes))
}

macro_rules! views {
    ($($view:ident),+) => { $(
        // SAFETY: the borrow keeps the promise that the raw buffer needs.
        unsafe impl<T: Item> Readable for $view<'_, T> {
            fn readable(&self) -> Result<cableway_pml::Buffer<'_>, Error> {
                self.raw.readable()
            }

            fn unit(&self) -> u64 {
                size_of::<T>() as u64
            }
        }

        // SAFETY: as above.
        unsafe impl<T: Item> Read for $view<'_, T> {
            type Item = T;

            fn elements(&self) -> Result<(*const u8, usize), Error> {
                let buffer = self.raw.readable()?;
                Ok((buffer.address(), buffer.count() as usize / size_of::<T>()))
            }
        }
    )+ };
}
views!(Elements, ElementsMut);

// SAFETY: as above, borrowed exclusively.
unsafe impl<T: Item> Writable for ElementsMut<'_, T> {
    fn writable(&mut self) -> Result<cableway_pml::Buffer<'_>, Error> {
        self.raw.writable()
    }

    fn unit(&self) -> u64 {
        size_of::<T>() as u64
    }
}

// SAFETY: as above, borrowed exclusively.
unsafe impl<T: Item> Write for ElementsMut<'_, T> {
    fn elements_mut(&mut self) -> Result<(*mut u8, usize), Error> {
        let (address, count) = self.elements()?;
        Ok((address.cast_mut(), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_check_length_and_alignment() {
        let numbers = [0_u64; 4];
        let bytes = zerocopy::IntoBytes::as_bytes(&numbers[..]);
        assert_eq!(Elements::<f64>::new(bytes).unwrap().elements().unwrap().1, 4);
        assert_eq!(Elements::<f32>::new(&bytes[4..]).unwrap().elements().unwrap().1, 7);
        let text = |error: Error| error.to_string();
        assert!(text(Elements::<f64>::new(&bytes[..9]).unwrap_err()).contains("9 bytes are no whole number of F64"));
        assert!(text(Elements::<f64>::new(&bytes[4..28]).unwrap_err()).contains("misaligned"));
        assert_eq!(Elements::<f64>::new(&bytes[1..1]).unwrap().elements().unwrap().1, 0);
    }
}
