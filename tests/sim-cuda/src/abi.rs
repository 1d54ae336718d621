//! The C boundary: types for arguments with checked use, and the macro that declares an entry point.
//!
//! Invariant: values of [`Out`], [`In`] and [`List`] exist only as arguments of an entry point. By the driver's
//! documentation, its caller guarantees that a pointer that is not null is valid for the function's accesses during the
//! call.

use std::ffi::{CStr, c_char, c_int};

use crate::call::Call;
use crate::error::{Error, Outcome};

/// A pointer at which a function stores a result.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// For a result whose type depends on another argument.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A null pointer is `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        self.set_if_asked(value);
        Ok(())
    }

    /// A null pointer means that the caller does not need the result.
    pub(crate) fn set_if_asked(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, hence valid for a write by the module's invariant; C does not promise Rust's alignment.
            unsafe { self.0.write_unaligned(value) }
        }
    }
}

impl Out<c_char> {
    /// Stores bytes one after another. The caller has limited their number to the size that its own caller gave.
    pub(crate) fn set_bytes(self, bytes: impl Iterator<Item = u8>) -> Outcome {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        for (index, byte) in bytes.enumerate() {
            // SAFETY: not null, hence valid for as many bytes as the length beside it says, by the module's invariant.
            unsafe { self.0.add(index).write(byte as c_char) }
        }
        Ok(())
    }
}

/// A pointer at which a function reads one value.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// For a value of our own, which outlives the use.
    #[cfg(sim_hip)]
    pub(crate) fn new(value: &T) -> In<T> {
        In(value)
    }

    /// For a value whose type depends on another argument.
    pub(crate) fn cast<U: Copy>(&self) -> In<U> {
        In(self.0.cast())
    }

    pub(crate) fn get(&self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, hence valid for a read by the module's invariant.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A pointer at which a function reads as many values as another argument says.
#[repr(transparent)]
pub(crate) struct List<T>(*const T);

impl<T: Copy> List<T> {
    /// For values whose number the first of them tell.
    #[cfg(sim_hip)]
    pub(crate) fn of(first: &In<T>) -> List<T> {
        List(first.0)
    }

    pub(crate) fn get(&self, count: usize) -> Outcome<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, hence valid for `count` reads by the module's invariant.
        Ok((0..count).map(|index| unsafe { self.0.add(index).read_unaligned() }).collect())
    }
}

/// A C string.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, hence a terminated string by the module's invariant.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// A value that a function reads and replaces.
#[repr(transparent)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// Replaces the value by the result of `exchange`.
    pub(crate) fn exchange(self, exchange: impl FnOnce(T) -> T) -> Outcome {
        let old = In(self.0.cast_const()).get()?;
        Out(self.0).set(exchange(old))
    }
}

/// An address in the driver's view, whatever its C type.
pub(crate) type Address = usize;

/// An entry point, as `cuGetProcAddress` finds it.
pub(crate) struct Row {
    /// The name without the version of its signature.
    pub(crate) name: &'static str,
    /// The CUDA version that introduced this signature.
    pub(crate) since: c_int,
    pub(crate) function: unsafe extern "C" fn(),
    pub(crate) call: &'static Call,
}

/// Declares entry points: `SINCE NAME: fn SYMBOL(ARGUMENTS) BODY`. The body returns an [`Outcome`] and runs within
/// [`Call::enter`], which counts, injects faults and catches panics. Defines `ROWS`, the module's part of the table.
macro_rules! driver_api {
    ($($(#[$meta:meta])* $since:literal $name:ident: fn $symbol:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "named as the driver's function is")]
            mod $symbol {
                pub(super) static CALL: $crate::call::Call = $crate::call::Call::new(stringify!($name));
            }

            $(#[$meta])*
            #[cfg_attr(not(sim_hip), unsafe(no_mangle))]
            #[allow(non_snake_case, private_interfaces, clippy::too_many_arguments, reason = "the driver's own")]
            pub(crate) unsafe extern "C" fn $symbol($($argument: $kind),*) -> std::ffi::c_int {
                $symbol::CALL.enter(move || -> $crate::error::Outcome { $body })
            }
        )*

        pub(crate) const ROWS: &[$crate::abi::Row] = &[$($crate::abi::Row {
            name: stringify!($name),
            since: $since,
            // SAFETY: only the type is forgotten; whoever calls through the table names the real one first.
            function: unsafe {
                std::mem::transmute::<*const (), unsafe extern "C" fn()>($symbol as *const ())
            },
            call: &$symbol::CALL,
        }),*];
    };
}
pub(crate) use driver_api;

/// Declares the values of an enumeration as the integers that cross the boundary.
macro_rules! numbers {
    ($enumeration:ident: $($name:ident = $variant:ident)*) => {
        $(const $name: std::ffi::c_int = $enumeration::$variant as std::ffi::c_int;)*
    };
}
pub(crate) use numbers;
