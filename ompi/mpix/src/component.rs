//! The component's functions.

use std::ffi::{CStr, c_char, c_int, c_void};

use cableway_ompi_find::Table;

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

// SAFETY: the component's table of this version has this layout.
static TABLE: Table<Component> = unsafe { Table::new(LOOKUP, VERSION) };

/// Returns the component if Open MPI uses it now.
pub(crate) fn component() -> Option<&'static Component> {
    let component = TABLE.get()?;
    // SAFETY: the component's function.
    unsafe { (component.active)() }.then_some(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_component_has_none() {
        assert!(component().is_none());
    }
}
