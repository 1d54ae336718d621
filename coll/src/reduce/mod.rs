//! Reductions by the host.
//!
//! The expressions are those of [`ReduceOperation`], which devices compute, too. `docs/collectives.md` lists them.

mod items;
mod operations;

use cableway_common_cuda::{DeviceError, Devices, Element, ReduceOperation};
use half::f16;
use items::{Complex, DoubleInt, FloatInt, Item, LongInt, ShortInt, TwoDouble, TwoFloat, TwoInt};
use operations::{Integer, Located, Number, max, max_located, min, min_located};

use crate::plan::Combine;

/// Reduces elements in host memory.
///
/// # Safety
/// The destination holds so many elements, and every source does. The destination may be one source, and overlaps no
/// other one in part. Nobody else accesses the memory. The operation applies to the element.
pub(crate) unsafe fn on_host(combine: Combine, destination: *mut u8, sources: &[*const u8], elements: usize) {
    let fold = Fold { destination, sources, elements };
    let Combine { operation, element } = combine;
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            Element::I8 => integers::<i8>(operation, &fold),
            Element::I16 => integers::<i16>(operation, &fold),
            Element::I32 => integers::<i32>(operation, &fold),
            Element::I64 => integers::<i64>(operation, &fold),
            Element::U8 => integers::<u8>(operation, &fold),
            Element::U16 => integers::<u16>(operation, &fold),
            Element::U32 => integers::<u32>(operation, &fold),
            Element::U64 => integers::<u64>(operation, &fold),
            Element::F16 => numbers::<f16>(operation, &fold),
            Element::F32 => numbers::<f32>(operation, &fold),
            Element::F64 => numbers::<f64>(operation, &fold),
            Element::Complex32 => complex::<f32>(operation, &fold),
            Element::Complex64 => complex::<f64>(operation, &fold),
            Element::FloatInt => located::<FloatInt>(operation, &fold),
            Element::DoubleInt => located::<DoubleInt>(operation, &fold),
            Element::LongInt => located::<LongInt>(operation, &fold),
            Element::TwoInt => located::<TwoInt>(operation, &fold),
            Element::ShortInt => located::<ShortInt>(operation, &fold),
            Element::TwoFloat => located::<TwoFloat>(operation, &fold),
            Element::TwoDouble => located::<TwoDouble>(operation, &fold),
        }
    }
}

/// Combines so many elements at `from` with those at `into`, in host memory, by the expressions that kernels compute. Does
/// nothing if the operation does not apply to the element.
///
/// # Safety
/// Both hold the elements, which need not be aligned, and do not overlap. Nobody else accesses them.
pub unsafe fn combine_on_host(
    operation: ReduceOperation,
    element: Element,
    into: *mut u8,
    from: *const u8,
    elements: usize,
) {
    if operation.applies_to(element) {
        // SAFETY: the caller's promise. The destination is the first source.
        unsafe { on_host(Combine { operation, element }, into, &[into.cast_const(), from], elements) };
    }
}

/// # Safety
/// As [`on_host`], for elements of this type.
unsafe fn integers<T: Integer>(operation: ReduceOperation, fold: &Fold<'_>) {
    let truth = |value: bool| if value { T::ONE } else { T::ZERO };
    let is = |value: T| value != T::ZERO;
    // SAFETY: the caller's promise.
    unsafe {
        match operation {
            ReduceOperation::Sum => fold.run(T::add),
            ReduceOperation::Product => fold.run(T::multiply),
            ReduceOperation::Min => fold.run(|a: T, b: T| if b < a { b } else { a }),
            ReduceOperation::Max => fold.run(|a: T, b: T| if b > a { b } else { a }),
            ReduceOperation::LogicalAnd => fold.run(|a: T, b: T| truth(is(a) && is(b))),
            ReduceOperation::LogicalOr => fold.run(|a: T, b: T| truth(is(a) || is(b))),
            ReduceOperation::LogicalXor => fold.run(|a: T, b: T| truth(is(a) != is(b))),
            ReduceOperation::BitAnd => fold.run(T::and),
            ReduceOperation::BitOr => fold.run(T::or),
            ReduceOperation::BitXor => fold.run(T::xor),
            ReduceOperation::MinLoc | ReduceOperation::MaxLoc => {}
        }
    }
}

/// # Safety
/// As [`on_host`], for elements of this type.
unsafe fn numbers<T: Number + Item>(operation: ReduceOperation, fold: &Fold<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match operation {
            ReduceOperation::Sum => fold.run(T::add),
            ReduceOperation::Product => fold.run(T::multiply),
            ReduceOperation::Min => fold.run(min::<T>),
            ReduceOperation::Max => fold.run(max::<T>),
            _ => {}
        }
    }
}

/// # Safety
/// As [`on_host`], for complex elements of two such numbers.
unsafe fn complex<T: Number>(operation: ReduceOperation, fold: &Fold<'_>)
where
    Complex<T>: Item,
{
    // SAFETY: the caller's promise.
    unsafe {
        match operation {
            ReduceOperation::Sum => fold.run(Complex::<T>::add),
            ReduceOperation::Product => fold.run(Complex::<T>::multiply),
            _ => {}
        }
    }
}

/// # Safety
/// As [`on_host`], for pairs of this type.
unsafe fn located<T: Located + Item>(operation: ReduceOperation, fold: &Fold<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match operation {
            ReduceOperation::MinLoc => fold.run(min_located::<T>),
            ReduceOperation::MaxLoc => fold.run(max_located::<T>),
            _ => {}
        }
    }
}

/// The memory of a reduction.
struct Fold<'a> {
    destination: *mut u8,
    sources: &'a [*const u8],
    elements: usize,
}

/// The elements that are folded at a time. They fit in the first cache, with those of a source.
const CHUNK: usize = 512;

impl Fold<'_> {
    /// Folds each element of all sources, in their order.
    ///
    /// # Safety
    /// As [`on_host`], for elements of this type.
    unsafe fn run<T: Item>(&self, operation: impl Fn(T, T) -> T) {
        let Some((&first, others)) = self.sources.split_first() else { return };
        let mut folded = [T::ZERO; CHUNK];
        for from in (0..self.elements).step_by(CHUNK) {
            let folded = &mut folded[..CHUNK.min(self.elements - from)];
            // SAFETY: these elements are within the memory of the caller's promise. All sources of a chunk are read
            // before it is written, so the destination may be any of them.
            unsafe {
                let first = first.cast::<T>().add(from);
                for (index, folded) in folded.iter_mut().enumerate() {
                    *folded = T::load(first.add(index));
                }
                for &other in others {
                    let other = other.cast::<T>().add(from);
                    for (index, folded) in folded.iter_mut().enumerate() {
                        *folded = operation(*folded, T::load(other.add(index)));
                    }
                }
                let destination = self.destination.cast::<T>().add(from);
                for (index, folded) in folded.iter().enumerate() {
                    T::store(destination.add(index), *folded);
                }
            }
        }
    }
}

/// The bytes of a source that are copied to the host at a time.
const PIECE: usize = 4 << 20;

/// Reduces elements in device memory on the host, because no kernel can. It waits for the copies.
///
/// # Safety
/// As [`on_host`], with memory on devices.
///
/// # Errors
/// A copy failed.
pub(crate) unsafe fn through_host(
    devices: &Devices,
    combine: Combine,
    destination: *mut u8,
    sources: &[*const u8],
    elements: usize,
) -> Result<(), DeviceError> {
    let size = combine.element.size();
    let piece = PIECE / size;
    let mut copies: Vec<Vec<u8>> = sources.iter().map(|_| vec![0; piece.min(elements) * size]).collect();
    let mut result = vec![0; piece.min(elements) * size];
    for from in (0..elements).step_by(piece.max(1)) {
        let now = piece.min(elements - from);
        // SAFETY: within the memory of the caller's promise, and the copies are large enough.
        unsafe {
            for (copy, source) in copies.iter_mut().zip(sources) {
                devices.copy(copy.as_mut_ptr(), source.add(from * size), now * size)?;
            }
            // Gaps within elements keep their bytes.
            devices.copy(result.as_mut_ptr(), destination.add(from * size), now * size)?;
            let copies: Vec<*const u8> = copies.iter().map(|copy| copy.as_ptr()).collect();
            on_host(combine, result.as_mut_ptr(), &copies, now);
            devices.copy(destination.add(from * size), result.as_ptr(), now * size)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
