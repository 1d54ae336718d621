//! Functions that stand before a function of Open MPI.

use std::ffi::{CStr, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One of MPI's handles, or a pointer that is only passed on
pub type Handle = *mut c_void;
/// `MPI_Aint`
pub type Aint = isize;
/// `MPI_Offset`
pub type Offset = c_longlong;

/// `MPI_SUCCESS`
pub(crate) const SUCCESS: c_int = 0;
/// `MPI_ERR_BUFFER` of Open MPI
pub(crate) const ERR_BUFFER: c_int = 1;
/// `MPI_ERR_OTHER` of Open MPI
pub(crate) const ERR_OTHER: c_int = 16;

/// A function of this crate and the function of Open MPI that it stands before.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Returns the address of this crate's function.
    pub entry: fn() -> usize,
    /// Open MPI's function, whose name this crate's has, too.
    pub next: &'static Next,
}

/// A function of Open MPI.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Names a function, which is searched when it is first called.
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the function's name.
    pub fn name(&self) -> &'static CStr {
        self.name
    }

    /// Sets the function's address, so that it is not searched.
    ///
    /// # Safety
    /// A function of this name is at the address, for as long as the process runs.
    pub unsafe fn set(&self, address: usize) {
        self.found.store(std::ptr::with_exposed_provenance_mut(address), Ordering::Release);
    }

    /// Returns the function's address; null if there is none. The search begins behind the library that has this code.
    pub fn address(&self) -> *mut c_void {
        self.search(libc::RTLD_NEXT)
    }

    fn search(&self, from: *mut c_void) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a valid string.
        let found = unsafe { libc::dlsym(from, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Returns a name as C has it.
pub(crate) const fn c_name(ended: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(ended.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the name does not end in its only zero byte"),
    }
}

/// Defines functions of MPI, each by all its names, and a macro that exports them.
///
/// The body is given the function behind this one, by the first name in parentheses. The second, if there is one, is
/// bound to what stands after `with`.
macro_rules! interpose {
    ($export:ident; $(
        $($($name:ident)/+ $(with $value:ident)?),+ => $binders:tt $arguments:tt $body:block
    )+) => {
        /// The functions of this module.
        pub(crate) static CALLS: &[crate::interpose::Call] = &[$($($(
            crate::interpose::Call { entry: || entries::$name as *const () as usize, next: &next::$name },
        )+)+)+];

        #[allow(non_upper_case_globals)] // they have MPI's names
        mod next {
            $($($(
                pub(super) static $name: crate::interpose::Next =
                    crate::interpose::Next::new(crate::interpose::c_name(concat!(stringify!($name), "\0")));
            )+)+)+
        }

        /// The functions by MPI's names.
        #[allow(missing_docs, clippy::missing_safety_doc, clippy::too_many_arguments, non_snake_case)] // as MPI has them
        pub(crate) mod entries {
            use super::*;

            $(interpose!(@each [$($($name)/+ $(with $value)?),+] $binders $arguments $body);)+
        }

        /// Exports the functions of this module by MPI's names from the library that is being built.
        #[macro_export]
        macro_rules! $export {
            () => { $($($( $crate::export_one!($name $arguments); )+)+)+ };
        }
    };
    (@each [$($($name:ident)/+ $(with $value:ident)?),+] $binders:tt $arguments:tt $body:block) => {
        $(interpose!(@names [$($name)/+] ($($value)?) $binders $arguments $body);)+
    };
    (@names [$($name:ident)/+] $value:tt $binders:tt $arguments:tt $body:block) => {
        $(interpose!(@one $name $value $binders $arguments $body);)+
    };
    (@one
        $name:ident ($($value:ident)?) ($next:ident $(, $binding:ident)?)
        ($($argument:ident: $kind:ty),* $(,)?) $body:block
    ) => {
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let address = next::$name.address();
            if address.is_null() {
                return crate::interpose::ERR_OTHER;
            }
            // SAFETY: MPI's function of this name takes what this one does.
            let $next = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(address)
            };
            $(let $binding = $value;)?
            $body
        }
    };
}
pub(crate) use interpose;

/// Has a communicator's or a file's error handler deal with an error.
///
/// # Safety
/// `handle` is valid and of the kind that the function takes.
unsafe fn handle_error(function: &Next, handle: Handle, code: c_int) -> c_int {
    let address = function.address();
    if address.is_null() || handle.is_null() {
        return code;
    }
    // SAFETY: both functions take a handle and a code.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, c_int) -> c_int>(address)(handle, code) };
    code
}

/// # Safety
/// `communicator` is one.
pub(crate) unsafe fn communicator_error(communicator: Handle, code: c_int) -> c_int {
    static FUNCTION: Next = Next::new(c"PMPI_Comm_call_errhandler");
    // SAFETY: the caller's promise.
    unsafe { handle_error(&FUNCTION, communicator, code) }
}

/// # Safety
/// `file` is one.
pub(crate) unsafe fn file_error(file: Handle, code: c_int) -> c_int {
    static FUNCTION: Next = Next::new(c"PMPI_File_call_errhandler");
    // SAFETY: the caller's promise.
    unsafe { handle_error(&FUNCTION, file, code) }
}

/// Returns `MPI_COMM_WORLD`, whose error handler serves calls without a communicator. If the program has a copy of it,
/// everybody uses the copy. So the search begins at the program.
pub(crate) fn world() -> Handle {
    static WORLD: Next = Next::new(c"ompi_mpi_comm_world");
    WORLD.search(libc::RTLD_DEFAULT)
}
