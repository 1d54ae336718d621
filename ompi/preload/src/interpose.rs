//! Standing before a function of Open MPI's.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// MPI's handles, and what it points to.
pub(crate) type Handle = *mut c_void;
/// `MPI_Aint`
pub(crate) type Aint = isize;
/// `MPI_Offset`
pub(crate) type Offset = libc::c_longlong;

/// `MPI_SUCCESS`
pub(crate) const SUCCESS: c_int = 0;
/// `MPI_ERR_BUFFER` of Open MPI
pub(crate) const ERR_BUFFER: c_int = 1;
/// `MPI_ERR_OTHER` of Open MPI
pub(crate) const ERR_OTHER: c_int = 16;

/// A function that is found behind this library, once it is asked for.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if there is none.
    pub(crate) fn address(&self) -> *mut c_void {
        self.search(libc::RTLD_NEXT)
    }

    fn search(&self, from: *mut c_void) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a valid string.
        let found = unsafe { libc::dlsym(from, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines a function by both its names. The body is given `next`, the one behind ours.
macro_rules! interpose {
    ($($mpi:ident $pmpi:ident $next:ident ($($argument:ident: $kind:ty),* $(,)?) $body:block)+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $mpi($($argument: $kind),*) -> std::ffi::c_int {
            interpose!(@one $mpi $next ($($argument: $kind),*) $body)
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $pmpi($($argument: $kind),*) -> std::ffi::c_int {
            interpose!(@one $pmpi $next ($($argument: $kind),*) $body)
        }
    )+ };
    (@one $name:ident $next:ident ($($argument:ident: $kind:ty),*) $body:block) => {{
        static BEHIND: crate::interpose::Next = crate::interpose::Next::new(
            // SAFETY: the literal ends in its only zero byte.
            unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
        );
        let address = BEHIND.address();
        if address.is_null() {
            return crate::interpose::ERR_OTHER;
        }
        // SAFETY: MPI's function of this name takes what this one does.
        let $next = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($kind),*) -> std::ffi::c_int>(address)
        };
        $body
    }};
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

/// `MPI_COMM_WORLD`, whose error handler serves calls without a communicator. A program may have a copy of it, which is
/// then the one that everybody uses: so the search begins at the program.
pub(crate) fn world() -> Handle {
    static WORLD: Next = Next::new(c"ompi_mpi_comm_world");
    WORLD.search(libc::RTLD_DEFAULT)
}
