//! The arithmetic of reductions, element by element.

use crate::half;

type Bytes = [u8; 16];

/// What a reduction does with two elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Sum,
    Product,
    Min,
    Max,
    And,
    Or,
    Xor,
    BitAnd,
    BitOr,
    BitXor,
    MinLoc,
    MaxLoc,
}

/// A type of numbers.
trait Number: Copy {
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn compute(operation: Operation, a: Self, b: Self) -> Self;
    /// Whether `a` precedes `b` in a search for the least: a NaN precedes numbers.
    fn precedes(a: Self, b: Self, greatest: bool) -> bool;
    fn negative(self) -> Self;
    fn less(a: Self, b: Self) -> bool;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$type>()];
                own.copy_from_slice(&bytes[..size_of::<$type>()]);
                <$type>::from_ne_bytes(own)
            }
            fn write(self, bytes: &mut [u8]) {
                bytes[..size_of::<$type>()].copy_from_slice(&self.to_ne_bytes());
            }
            fn compute(operation: Operation, a: Self, b: Self) -> Self {
                match operation {
                    Operation::Sum => a.wrapping_add(b),
                    Operation::Product => a.wrapping_mul(b),
                    Operation::Min => a.min(b),
                    Operation::Max => a.max(b),
                    Operation::And => <$type>::from(a != 0 && b != 0),
                    Operation::Or => <$type>::from(a != 0 || b != 0),
                    Operation::Xor => <$type>::from((a != 0) ^ (b != 0)),
                    Operation::BitAnd => a & b,
                    Operation::BitOr => a | b,
                    Operation::BitXor | Operation::MinLoc | Operation::MaxLoc => a ^ b,
                }
            }
            fn precedes(a: Self, b: Self, greatest: bool) -> bool {
                if greatest { a > b } else { a < b }
            }
            fn negative(self) -> Self {
                self.wrapping_neg()
            }
            fn less(a: Self, b: Self) -> bool {
                a < b
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$type>()];
                own.copy_from_slice(&bytes[..size_of::<$type>()]);
                <$type>::from_ne_bytes(own)
            }
            fn write(self, bytes: &mut [u8]) {
                bytes[..size_of::<$type>()].copy_from_slice(&self.to_ne_bytes());
            }
            fn compute(operation: Operation, a: Self, b: Self) -> Self {
                let prefer_first = |first: bool| if first { a } else { b };
                match operation {
                    Operation::Sum => a + b,
                    Operation::Product => a * b,
                    _ if a.is_nan() || b.is_nan() => prefer_first(a.is_nan()),
                    // The total order has -0 before +0.
                    Operation::Min => prefer_first(a.total_cmp(&b).is_le()),
                    _ => prefer_first(a.total_cmp(&b).is_ge()),
                }
            }
            fn precedes(a: Self, b: Self, greatest: bool) -> bool {
                match (a.is_nan(), b.is_nan()) {
                    (false, false) => if greatest { a > b } else { a < b },
                    (first, second) => first && !second,
                }
            }
            fn negative(self) -> Self {
                -self
            }
            fn less(a: Self, b: Self) -> bool {
                a < b
            }
        }
    )*};
}
floats!(f32, f64);

fn numbers<T: Number>(operation: Operation, a: Bytes, b: Bytes) -> Bytes {
    let mut result = [0; 16];
    T::compute(operation, T::read(&a), T::read(&b)).write(&mut result);
    result
}

/// Half precision: sums and products are computed in single precision, and rounded.
fn halves(operation: Operation, a: Bytes, b: Bytes) -> Bytes {
    let bits = |bytes: Bytes| u16::from_ne_bytes([bytes[0], bytes[1]]);
    let (x, y) = (half::widened(bits(a)), half::widened(bits(b)));
    match operation {
        Operation::Sum | Operation::Product => {
            let mut result = [0; 16];
            result[..2].copy_from_slice(&half::rounded(f32::compute(operation, x, y)).to_ne_bytes());
            result
        }
        // A widened number keeps its order. The bits are those of an operand.
        _ if x.is_nan() || y.is_nan() => {
            if x.is_nan() {
                a
            } else {
                b
            }
        }
        Operation::Min => {
            if x.total_cmp(&y).is_le() {
                a
            } else {
                b
            }
        }
        _ => {
            if x.total_cmp(&y).is_ge() {
                a
            } else {
                b
            }
        }
    }
}

fn complex_product<T: Number>(a: Bytes, b: Bytes) -> Bytes {
    let size = size_of::<T>();
    let parts = |bytes: &Bytes| (T::read(bytes), T::read(&bytes[size..]));
    let ((ar, ai), (br, bi)) = (parts(&a), parts(&b));
    let product = |a, b| T::compute(Operation::Product, a, b);
    let sum = |a, b| T::compute(Operation::Sum, a, b);
    let mut result = [0; 16];
    sum(product(ar, br), product(ai, bi).negative()).write(&mut result);
    sum(product(ar, bi), product(ai, br)).write(&mut result[size..]);
    result
}

/// Pairs of a value and an index, which begins at an offset.
fn pairs<V: Number, I: Number>(operation: Operation, offset: usize, a: Bytes, b: Bytes) -> Bytes {
    let greatest = operation == Operation::MaxLoc;
    let (x, y) = (V::read(&a), V::read(&b));
    let (i, j) = (I::read(&a[offset..]), I::read(&b[offset..]));
    if V::precedes(x, y, greatest) {
        a
    } else if V::precedes(y, x, greatest) || I::less(j, i) {
        b
    } else {
        a
    }
}

/// Combines two elements, of the type of this number.
pub(crate) fn fold(operation: Operation, element: u32, a: Bytes, b: Bytes) -> Bytes {
    match element {
        0 => numbers::<i8>(operation, a, b),
        1 => numbers::<i16>(operation, a, b),
        2 => numbers::<i32>(operation, a, b),
        3 => numbers::<i64>(operation, a, b),
        4 => numbers::<u8>(operation, a, b),
        5 => numbers::<u16>(operation, a, b),
        6 => numbers::<u32>(operation, a, b),
        7 => numbers::<u64>(operation, a, b),
        8 => halves(operation, a, b),
        9 => numbers::<f32>(operation, a, b),
        10 => numbers::<f64>(operation, a, b),
        11 => complex_product::<f32>(a, b),
        12 => complex_product::<f64>(a, b),
        13 => pairs::<f32, i32>(operation, 4, a, b),
        14 => pairs::<f64, i32>(operation, 8, a, b),
        15 => pairs::<i64, i32>(operation, 8, a, b),
        16 => pairs::<i32, i32>(operation, 4, a, b),
        17 => pairs::<i16, i32>(operation, 4, a, b),
        18 => pairs::<f32, f32>(operation, 4, a, b),
        _ => pairs::<f64, f64>(operation, 8, a, b),
    }
}
