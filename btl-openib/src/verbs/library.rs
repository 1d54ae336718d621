//! libibverbs and its functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use rdma_mummy_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
};

use super::events::AsyncEvent;
use super::results::answer;

/// Protection domain, offset in the dma-buf, length, address by which work names the first byte, descriptor, access.
type RegisterDmaBuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

/// Declares a library of rdma-core by its file and its functions, as `$library`. It is loaded at first use.
macro_rules! functions {
    ($library:ident, $file:literal; $( fn $name:ident($($argument:ty),*) $(-> $result:ty)?; )+
        $( since $release:literal: $newer:ident: $signature:ty; )*) => {
        /// The functions. Each has had this signature since it first appeared in a release of rdma-core.
        #[allow(clippy::missing_docs_in_private_items, reason = "see their manual pages")]
        pub(crate) struct $library {
            $( pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )+
            $(
                #[doc = concat!("Since rdma-core ", $release, ".")]
                pub(crate) $newer: Option<$signature>,
            )*
        }

        impl $library {
            /// Loads the library once per process. It is never unloaded, because providers start threads that outlive
            /// it.
            ///
            /// # Errors
            /// It is not installed, or lacks a function.
            pub(crate) fn load() -> Result<&'static Self, &'static str> {
                use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
                static LOADED: std::sync::OnceLock<Result<$library, String>> = std::sync::OnceLock::new();
                LOADED
                    .get_or_init(|| {
                        // SAFETY: its initialisers register providers. They do not access memory of this crate.
                        let handle = unsafe { Handle::open(Some($file), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
                            format!("{} cannot be loaded: {}", $file, cableway_base::root_cause(&error))
                        })?;
                        let library = Self::bind(&handle);
                        std::mem::forget(handle);
                        library
                    })
                    .as_ref()
                    .map_err(String::as_str)
            }

            fn bind(handle: &libloading::os::unix::Library) -> Result<Self, String> {
                Ok($library {
                    $( $name: {
                        // SAFETY: the library's exported function of this name has this signature.
                        let symbol = unsafe {
                            handle.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(stringify!($name))
                        };
                        *symbol.map_err(|_| format!("{} has no {}", $file, stringify!($name)))?
                    }, )+
                    $( $newer: {
                        // SAFETY: as above.
                        unsafe { handle.get::<$signature>(stringify!($newer)) }.ok().map(|symbol| *symbol)
                    }, )*
                })
            }
        }
    };
}
pub(super) use functions;

functions! {
    Library, "libibverbs.so.1";
    fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(*mut *mut ibv_device);
    fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
    fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(*mut ibv_context) -> c_int;
    fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    fn ibv_query_pkey(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    fn ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    fn ibv_get_async_event(*mut ibv_context, *mut AsyncEvent) -> c_int;
    fn ibv_ack_async_event(*mut AsyncEvent);
    fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    fn ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
    fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
    fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
    fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    fn ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_destroy_ah(*mut ibv_ah) -> c_int;
    fn ibv_wc_status_str(c_uint) -> *const c_char;
    since 1: ibv_fork_init: unsafe extern "C" fn() -> c_int;
    since 34: ibv_reg_dmabuf_mr: RegisterDmaBuf;
    since 35: ibv_is_fork_initialized: unsafe extern "C" fn() -> c_uint;
}

/// What protects a device's memory in a program that forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForkSupport {
    /// The kernel copies pinned pages for the child, or fork support was requested before.
    There,
    /// The library must keep registered memory from children.
    ToBeAsked,
}

impl ForkSupport {
    /// Decides by the library's answer, if it has one: `enum ibv_fork_status`.
    fn of(status: Option<c_uint>) -> Self {
        const ENABLED: c_uint = 1;
        const UNNEEDED: c_uint = 2;
        match status {
            Some(ENABLED | UNNEEDED) => ForkSupport::There,
            _ => ForkSupport::ToBeAsked,
        }
    }
}

impl Library {
    /// Ensures that memory registered from now on stays the parent's after a fork, if the kernel does not. A kernel
    /// before 5.12 gives a copy of a page to the first writer. If that is the parent, its device continues to use the
    /// old page. So the library keeps registered memory from children. A child that accesses it before it executes
    /// another program is killed, which is better than wrong data.
    pub(crate) fn support_forks(&self) {
        // SAFETY: takes nothing, and changes nothing.
        let status = self.ibv_is_fork_initialized.map(|ask| unsafe { ask() });
        let Some(ask) = self.ibv_fork_init.filter(|_| ForkSupport::of(status) == ForkSupport::ToBeAsked) else {
            return;
        };
        // SAFETY: takes nothing; thread-safe, and may come late, which it says.
        if let Err(error) = answer(unsafe { ask() }) {
            log::info!("openib: memory under transfer is not safe from fork(), the kernel being old: {error}");
        }
    }

    /// Returns the library's description of a completion's status.
    pub(crate) fn status(&self, status: c_uint) -> String {
        // SAFETY: takes any value, and returns a static string.
        let text = unsafe { (self.ibv_wc_status_str)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: a static, terminated string.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_asked_only_if_needed() {
        assert_eq!([Some(1), Some(2)].map(ForkSupport::of), [ForkSupport::There; 2]);
        // Before the query, and if the answer is that there is none.
        assert_eq!([None, Some(0)].map(ForkSupport::of), [ForkSupport::ToBeAsked; 2]);
    }
}
