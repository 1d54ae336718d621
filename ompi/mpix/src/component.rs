//! Finds the component in this process.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{Count, Handle};

/// `struct cableway_mpix_call` of `ompi/shim/mpix.h`
#[repr(C)]
pub(crate) struct Call {
    pub(crate) kind: c_int,
    pub(crate) buffer: *mut c_void,
    pub(crate) count: Count,
    pub(crate) datatype: Handle,
    pub(crate) peer: c_int,
    pub(crate) tag: c_int,
    pub(crate) communicator: Handle,
    pub(crate) request: *mut Handle,
    pub(crate) status: *mut c_void,
}
const _: () = assert!(size_of::<Call>() == 64);

/// `struct cableway_mpix_collective` of `ompi/shim/mpix.h`
#[repr(C)]
pub(crate) struct Collective {
    pub(crate) kind: c_int,
    pub(crate) root: c_int,
    pub(crate) send: *const c_void,
    pub(crate) receive: *mut c_void,
    pub(crate) send_count: Count,
    pub(crate) receive_count: Count,
    pub(crate) send_type: Handle,
    pub(crate) receive_type: Handle,
    pub(crate) operation: Handle,
    pub(crate) counts: *const c_int,
    pub(crate) wide_counts: *const Count,
    pub(crate) communicator: Handle,
}
const _: () = assert!(size_of::<Collective>() == 88);

/// `struct cableway_mpix` of `ompi/shim/mpix.h`
#[repr(C)]
pub(crate) struct Component {
    version: u32,
    active: unsafe extern "C" fn() -> bool,
    pub(crate) stream_create: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    pub(crate) stream_free: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub(crate) info_set_hex: unsafe extern "C" fn(Handle, *const c_char, *const c_void, c_int) -> c_int,
    pub(crate) communicator_create:
        unsafe extern "C" fn(*const c_char, Handle, c_int, *const Handle, *mut Handle) -> c_int,
    pub(crate) communicator_stream: unsafe extern "C" fn(Handle, c_int, *mut Handle) -> c_int,
    pub(crate) enqueue: unsafe extern "C" fn(*const c_char, *const Call) -> c_int,
    pub(crate) collective: unsafe extern "C" fn(*const c_char, *const Collective) -> c_int,
    pub(crate) wait: unsafe extern "C" fn(*const c_char, Count, *mut Handle, *mut c_void) -> c_int,
}

/// The version of this layout.
const VERSION: u32 = 1;
/// The function of the component that returns it.
const LOOKUP: &CStr = c"cableway_mpix";

static FOUND: AtomicPtr<Component> = AtomicPtr::new(null_mut());

/// Returns the component if Open MPI uses it now.
pub(crate) fn component() -> Option<&'static Component> {
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        found = look_up().cast_mut();
        FOUND.store(found, Ordering::Release);
    }
    // SAFETY: null, or a constant of the component, which is never unloaded.
    let component = unsafe { found.as_ref() }?;
    // SAFETY: the component's function.
    unsafe { (component.active)() }.then_some(component)
}

/// Open MPI loads components with local symbols, so that they are found by their files only: one file under any of
/// several names, `mca_<framework>_cableway.so`.
fn look_up() -> *const Component {
    let mut files: Vec<CString> = Vec::new();
    // SAFETY: the function gets the list, and is called before this call returns.
    unsafe { libc::dl_iterate_phdr(Some(list), (&raw mut files).cast()) };
    files.iter().map(|file| table_of(file)).find(|table| !table.is_null()).unwrap_or(std::ptr::null())
}

/// # Safety
/// `files` is a `Vec<CString>`.
unsafe extern "C" fn list(object: *mut libc::dl_phdr_info, _size: usize, files: *mut c_void) -> c_int {
    // SAFETY: the loader describes an object; the caller's promise.
    let (name, files) = unsafe { ((*object).dlpi_name, &mut *files.cast::<Vec<CString>>()) };
    if !name.is_null() {
        // SAFETY: a string of the loader.
        let name = unsafe { CStr::from_ptr(name) };
        if is_component(name.to_bytes()) {
            files.push(name.to_owned());
        }
    }
    0
}

fn is_component(path: &[u8]) -> bool {
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    file.starts_with(b"mca_") && file.ends_with(b"_cableway.so")
}

/// Returns the functions of a loaded object, or null if it is no component of this version.
fn table_of(file: &CStr) -> *const Component {
    // SAFETY: the object is loaded already, so that no code of it runs.
    let object = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if object.is_null() {
        return std::ptr::null();
    }
    // SAFETY: an open object.
    let lookup = unsafe { libc::dlsym(object, LOOKUP.as_ptr()) };
    // SAFETY: opened above. The component stays loaded.
    unsafe { libc::dlclose(object) };
    if lookup.is_null() {
        return std::ptr::null();
    }
    // SAFETY: the component's function of this type.
    let lookup: unsafe extern "C" fn() -> *const Component = unsafe { std::mem::transmute(lookup) };
    // SAFETY: it only returns an address.
    let table = unsafe { lookup() };
    // SAFETY: null or valid; the version comes first in every version.
    let known = unsafe { table.as_ref() }.is_some_and(|table| table.version == VERSION);
    if known { table } else { std::ptr::null() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_known_by_their_files() {
        assert!(is_component(b"/opt/components/mca_pml_cableway.so"));
        assert!(is_component(b"mca_coll_cableway.so"));
        for other in ["", "/usr/lib/openmpi/mca_pml_ob1.so", "/mca_cableway.so/libcableway.so", "mca_pml_cableway.so.0"]
        {
            assert!(!is_component(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_process_without_the_component_has_none() {
        assert!(component().is_none());
    }
}
