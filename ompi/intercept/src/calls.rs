//! The table of functions.

pub use crate::files::entries::*;
pub use crate::messages::entries::*;
pub use crate::messages::{MPIX_Query_cuda_support, MPIX_Query_rocm_support};

use crate::interpose::Call;
use crate::{files, messages};

/// Returns every function, once for each of its names.
pub fn all() -> impl Iterator<Item = &'static Call> {
    messages::CALLS.iter().chain(files::CALLS).chain(messages::QUERIES)
}

/// Exports one function.
#[doc(hidden)]
#[macro_export]
macro_rules! export_one {
    ($name:ident ($($argument:ident: $kind:ty),* $(,)?)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> std::ffi::c_int {
            // SAFETY: the caller's promise.
            unsafe { $crate::calls::$name($($argument),*) }
        }
    };
}
