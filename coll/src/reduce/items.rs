//! The types of elements, as they lie in memory.

use half::f16;

/// An element. Addresses need not be aligned.
pub(super) trait Item: Copy {
    /// Any value.
    const ZERO: Self;

    /// # Safety
    /// The address is that of an element that may be read.
    #[inline(always)]
    unsafe fn load(from: *const Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.read_unaligned() }
    }

    /// Stores the element, and leaves gaps within it alone.
    ///
    /// # Safety
    /// The address is that of an element that may be written.
    #[inline(always)]
    unsafe fn store(to: *mut Self, element: Self) {
        // SAFETY: the caller's promise.
        unsafe { to.write_unaligned(element) }
    }
}

macro_rules! plain {
    ($($type:ty = $zero:expr),+) => { $( impl Item for $type { const ZERO: Self = $zero; } )+ };
}
plain!(i8 = 0, i16 = 0, i32 = 0, i64 = 0, u8 = 0, u16 = 0, u32 = 0, u64 = 0, f32 = 0.0, f64 = 0.0);
plain!(f16 = f16::ZERO, Complex<f32> = Complex { re: 0.0, im: 0.0 }, Complex<f64> = Complex { re: 0.0, im: 0.0 });

/// A complex number.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Complex<T> {
    pub(super) re: T,
    pub(super) im: T,
}

macro_rules! pairs {
    ($($name:ident: $value:ty, $index:ty, $size:literal;)+) => { $(
        /// A value and its index.
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(super) struct $name {
            pub(super) value: $value,
            pub(super) index: $index,
        }

        const _: () = assert!(size_of::<$name>() == $size);

        impl Item for $name {
            const ZERO: Self = $name { value: 0 as $value, index: 0 as $index };

            #[inline(always)]
            unsafe fn store(to: *mut Self, element: Self) {
                // SAFETY: the caller's promise; both fields lie within the element.
                unsafe {
                    (&raw mut (*to).value).write_unaligned(element.value);
                    (&raw mut (*to).index).write_unaligned(element.index);
                }
            }
        }
    )+ };
}

pairs! {
    FloatInt: f32, i32, 8;
    DoubleInt: f64, i32, 16;
    LongInt: i64, i32, 16;
    TwoInt: i32, i32, 8;
    ShortInt: i16, i32, 8;
    TwoFloat: f32, f32, 8;
    TwoDouble: f64, f64, 16;
}
