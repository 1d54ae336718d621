//! Plain types that describe reductions by a device.

/// The operation by which a reduction folds elements.
///
/// The results do not depend on the device that computes them, except for the payload of a NaN that a sum or a product
/// makes. `docs/collectives.md` lists the exact expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ReduceOperation {
    /// `a + b`. Integers wrap. Floating-point numbers are rounded to nearest, and denormal numbers are kept. Half
    /// precision numbers are added in single precision and then rounded.
    Sum,
    /// `a * b`, with the rules of [`Sum`](Self::Sum). The product of complex numbers is
    /// `(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)`, where each operation rounds.
    Product,
    /// The lesser number. A NaN is less than every number, and the first of two NaNs is taken. -0 is less than +0.
    Min,
    /// The greater number. A NaN is greater than every number, and the first of two NaNs is taken. +0 is greater than
    /// -0.
    Max,
    /// 1 if both are not zero, else 0.
    LogicalAnd,
    /// 1 if one is not zero, else 0.
    LogicalOr,
    /// 1 if exactly one is not zero, else 0.
    LogicalXor,
    /// `a & b`.
    BitAnd,
    /// `a | b`.
    BitOr,
    /// `a ^ b`.
    BitXor,
    /// The pair with the lesser value. Of equal values (-0 equals +0) the pair with the lesser index, then the first one.
    /// A NaN is less than every number; of two NaNs the pair with the lesser index.
    MinLoc,
    /// The pair with the greater value, with the rules of [`MinLoc`](Self::MinLoc). A NaN is greater than every number.
    MaxLoc,
}

/// The type of a reduction's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Element {
    /// A signed integer of 8 bits.
    I8,
    /// A signed integer of 16 bits.
    I16,
    /// A signed integer of 32 bits.
    I32,
    /// A signed integer of 64 bits.
    I64,
    /// An unsigned integer of 8 bits.
    U8,
    /// An unsigned integer of 16 bits.
    U16,
    /// An unsigned integer of 32 bits.
    U32,
    /// An unsigned integer of 64 bits.
    U64,
    /// A half precision number, as IEEE 754's binary16.
    F16,
    /// A single precision number.
    F32,
    /// A double precision number.
    F64,
    /// A complex number of two [`F32`](Self::F32).
    Complex32,
    /// A complex number of two [`F64`](Self::F64).
    Complex64,
    /// An `f32` and an `i32`, as `MPI_FLOAT_INT`.
    FloatInt,
    /// An `f64` and an `i32`, as `MPI_DOUBLE_INT`. The last four of its 16 bytes are a gap.
    DoubleInt,
    /// An `i64` and an `i32`, as `MPI_LONG_INT`. The last four of its 16 bytes are a gap.
    LongInt,
    /// Two `i32`, as `MPI_2INT`.
    TwoInt,
    /// An `i16` and an `i32`, as `MPI_SHORT_INT`. There is a gap of two bytes between them.
    ShortInt,
    /// Two `f32`, as `MPI_2REAL`.
    TwoFloat,
    /// Two `f64`, as `MPI_2DOUBLE_PRECISION`.
    TwoDouble,
}

impl ReduceOperation {
    /// Every operation.
    pub const ALL: [ReduceOperation; 12] = [
        Self::Sum,
        Self::Product,
        Self::Min,
        Self::Max,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::MinLoc,
        Self::MaxLoc,
    ];

    /// Checks whether MPI defines the operation for such elements.
    pub fn applies_to(self, element: Element) -> bool {
        match self {
            Self::Sum | Self::Product => !element.is_pair(),
            Self::Min | Self::Max => element.is_integer() || element.is_float(),
            Self::LogicalAnd | Self::LogicalOr | Self::LogicalXor | Self::BitAnd | Self::BitOr | Self::BitXor => {
                element.is_integer()
            }
            Self::MinLoc | Self::MaxLoc => element.is_pair(),
        }
    }
}

impl Element {
    /// Every element.
    pub const ALL: [Element; 20] = [
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Complex32,
        Self::Complex64,
        Self::FloatInt,
        Self::DoubleInt,
        Self::LongInt,
        Self::TwoInt,
        Self::ShortInt,
        Self::TwoFloat,
        Self::TwoDouble,
    ];

    /// Returns the distance between two elements in bytes, gaps included.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Complex32 => 8,
            Self::FloatInt | Self::TwoInt | Self::ShortInt | Self::TwoFloat => 8,
            Self::Complex64 | Self::DoubleInt | Self::LongInt | Self::TwoDouble => 16,
        }
    }

    /// Returns the number that divides every element's address.
    pub fn alignment(self) -> usize {
        match self {
            Self::Complex32 | Self::FloatInt | Self::TwoInt | Self::ShortInt | Self::TwoFloat => 4,
            Self::Complex64 | Self::DoubleInt | Self::LongInt | Self::TwoDouble => 8,
            number => number.size(),
        }
    }

    /// Returns the bytes of each element that are no gap, as offsets and lengths.
    pub fn parts(self) -> &'static [(usize, usize)] {
        match self {
            Self::DoubleInt | Self::LongInt => &[(0, 12)],
            Self::ShortInt => &[(0, 2), (4, 4)],
            Self::I8 | Self::U8 => &[(0, 1)],
            Self::I16 | Self::U16 | Self::F16 => &[(0, 2)],
            Self::I32 | Self::U32 | Self::F32 => &[(0, 4)],
            Self::Complex64 | Self::TwoDouble => &[(0, 16)],
            _ => &[(0, 8)],
        }
    }

    fn is_integer(self) -> bool {
        self as u32 <= Self::U64 as u32
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    fn is_pair(self) -> bool {
        self as u32 >= Self::FloatInt as u32
    }
}

/// The largest number of sources of a reduction.
pub const MOST_SOURCES: usize = 16;

/// The largest number of destinations of a reduction.
pub const MOST_DESTINATIONS: usize = 16;

/// A reduction: each element of every destination becomes the fold of the same element of all sources, in their order. All
/// sources of an element are read before its result is written.
#[derive(Clone, Copy, Debug)]
pub struct Reduction<'a> {
    /// The operation.
    pub operation: ReduceOperation,
    /// The type of all elements.
    pub element: Element,
    /// The number of elements.
    pub count: u64,
    /// The first elements of 1 to [`MOST_DESTINATIONS`] copies of the result. Each may be the first element of one source.
    pub destinations: &'a [*mut u8],
    /// The first elements of 2 to [`MOST_SOURCES`] sources.
    pub sources: &'a [*const u8],
    /// Where the first source's elements are kept as they were, if anywhere. It overlaps no source and no destination.
    pub kept: Option<*mut u8>,
}

impl Reduction<'_> {
    /// Checks whether every element is aligned.
    pub(crate) fn is_aligned(&self) -> bool {
        self.addresses().fold(0, |bits, address| bits | address).is_multiple_of(self.element.alignment())
    }

    /// Returns the addresses of all memory.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = usize> {
        let destinations = self.destinations.iter().chain(&self.kept).map(|destination| *destination as usize);
        destinations.chain(self.sources.iter().map(|source| *source as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_applies_where_mpi_defines_it() {
        let applies = |operation: ReduceOperation| Element::ALL.iter().filter(|e| operation.applies_to(**e)).count();
        assert_eq!(ReduceOperation::ALL.map(applies), [13, 13, 11, 11, 8, 8, 8, 8, 8, 8, 7, 7]);
        assert!(!ReduceOperation::Max.applies_to(Element::Complex32));
        assert!(!ReduceOperation::BitAnd.applies_to(Element::F32));
        assert!(ReduceOperation::MinLoc.applies_to(Element::TwoInt));
    }

    #[test]
    fn parts_lie_within_elements() {
        for element in Element::ALL {
            assert!(element.size().is_multiple_of(element.alignment()), "{element:?}");
            assert!(element.parts().iter().all(|(at, len)| at + len <= element.size()), "{element:?}");
        }
    }
}
