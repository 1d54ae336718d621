//! The expressions of operations.

use half::f16;

use super::items::{Complex, DoubleInt, FloatInt, Item, LongInt, ShortInt, TwoDouble, TwoFloat, TwoInt};

/// Elements with bits.
pub(super) trait Bits {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

/// Elements that can be added and multiplied.
pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
    /// Checks whether this is less than the other one. Nothing is less than a NaN, and a NaN is less than nothing.
    fn is_less(self, other: Self) -> bool;
    fn is_nan(self) -> bool;
    fn is_negative(self) -> bool;
}

/// Integers, which wrap.
pub(super) trait Integer: Item + Number + Bits + PartialOrd {
    const ONE: Self;
}

macro_rules! integers {
    ($($type:ty),+) => { $(
        impl Bits for $type {
            fn and(self, other: Self) -> Self { self & other }
            fn or(self, other: Self) -> Self { self | other }
            fn xor(self, other: Self) -> Self { self ^ other }
        }

        impl Number for $type {
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn multiply(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn subtract(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn is_less(self, other: Self) -> bool { self < other }
            fn is_nan(self) -> bool { false }
            fn is_negative(self) -> bool { self < <$type as Item>::ZERO }
        }

        impl Integer for $type {
            const ONE: Self = 1;
        }
    )+ };
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($type:ty),+) => { $(
        impl Number for $type {
            fn add(self, other: Self) -> Self { self + other }
            fn multiply(self, other: Self) -> Self { self * other }
            fn subtract(self, other: Self) -> Self { self - other }
            fn is_less(self, other: Self) -> bool { self < other }
            fn is_nan(self) -> bool { <$type>::is_nan(self) }
            fn is_negative(self) -> bool { self.is_sign_negative() }
        }
    )+ };
}
floats!(f32, f64);

impl Number for f16 {
    fn add(self, other: Self) -> Self {
        f16::from_f32(self.to_f32() + other.to_f32())
    }

    fn multiply(self, other: Self) -> Self {
        f16::from_f32(self.to_f32() * other.to_f32())
    }

    fn subtract(self, other: Self) -> Self {
        f16::from_f32(self.to_f32() - other.to_f32())
    }

    fn is_less(self, other: Self) -> bool {
        self < other
    }

    fn is_nan(self) -> bool {
        f16::is_nan(self)
    }

    fn is_negative(self) -> bool {
        self.is_sign_negative()
    }
}

/// Returns the lesser number, or a NaN if there is one. -0 is less than +0.
#[inline(always)]
pub(super) fn min<T: Number>(a: T, b: T) -> T {
    let second = !a.is_nan() && (b.is_nan() || b.is_less(a) || (!a.is_less(b) && b.is_negative()));
    if second { b } else { a }
}

/// Returns the greater number, or a NaN if there is one. +0 is greater than -0.
#[inline(always)]
pub(super) fn max<T: Number>(a: T, b: T) -> T {
    let second = !a.is_nan() && (b.is_nan() || a.is_less(b) || (!b.is_less(a) && a.is_negative()));
    if second { b } else { a }
}

impl<T: Number> Complex<T> {
    pub(super) fn add(self, other: Self) -> Self {
        Complex { re: self.re.add(other.re), im: self.im.add(other.im) }
    }

    pub(super) fn multiply(self, other: Self) -> Self {
        Complex {
            re: self.re.multiply(other.re).subtract(self.im.multiply(other.im)),
            im: self.re.multiply(other.im).add(self.im.multiply(other.re)),
        }
    }
}

/// Values with an index.
pub(super) trait Located: Copy {
    type Value: Number;
    type Index: Number;
    fn value(self) -> Self::Value;
    fn index(self) -> Self::Index;
}

macro_rules! located {
    ($($name:ident: $value:ty, $index:ty;)+) => { $(
        impl Located for $name {
            type Value = $value;
            type Index = $index;
            fn value(self) -> $value { self.value }
            fn index(self) -> $index { self.index }
        }
    )+ };
}
located! {
    FloatInt: f32, i32;
    DoubleInt: f64, i32;
    LongInt: i64, i32;
    TwoInt: i32, i32;
    ShortInt: i16, i32;
    TwoFloat: f32, f32;
    TwoDouble: f64, f64;
}

/// Returns the pair with the lesser value.
#[inline(always)]
pub(super) fn min_located<T: Located>(a: T, b: T) -> T {
    first_of(a, b, |x, y| x.is_less(y))
}

/// Returns the pair with the greater value.
#[inline(always)]
pub(super) fn max_located<T: Located>(a: T, b: T) -> T {
    first_of(a, b, |x, y| y.is_less(x))
}

/// Returns the pair whose value comes first. A NaN comes before every number. Of values of which none comes first, the
/// pair with the lesser index.
#[inline(always)]
fn first_of<T: Located>(a: T, b: T, is_first: impl Fn(T::Value, T::Value) -> bool) -> T {
    let second = match (a.value().is_nan(), b.value().is_nan()) {
        (true, false) => false,
        (false, true) => true,
        _ if is_first(b.value(), a.value()) => true,
        _ if is_first(a.value(), b.value()) => false,
        _ => b.index().is_less(a.index()),
    };
    if second { b } else { a }
}
