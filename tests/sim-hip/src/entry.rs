//! The macro that declares an entry point of HIP.

/// Declares entry points: `fn NAME(ARGUMENTS) BODY`. The body returns an [`Outcome`](crate::error::Outcome). The call is
/// counted, may be made to fail, and leaves its result in the thread's last error.
macro_rules! hip_api {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case, reason = "named as the library's function is")]
        mod $name {
            pub(super) static CALL: $crate::call::Call = $crate::call::Call::new(stringify!($name));
        }

        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the library's own name and signature")]
        unsafe extern "C" fn $name($($argument: $kind),*) -> std::ffi::c_int {
            $crate::current::note($name::CALL.enter(move || -> $crate::error::Outcome { $body }))
        }
    )*};
}
pub(crate) use hip_api;

/// Calls a function below HIP in the context of the current device.
macro_rules! through {
    ($function:path $(, $argument:expr)* $(,)?) => {{
        $crate::current::enter()?;
        // SAFETY: the arguments are those of the caller of the library, which has the same obligations.
        $crate::current::below(unsafe { $function($($argument),*) })
    }};
}
pub(crate) use through;
