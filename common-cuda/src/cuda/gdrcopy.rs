//! gdrcopy: a kernel module (`gdrdrv`) that maps device memory for programs, used through its library.
//!
//! Functions and structures follow its public header, versions 2.x. No machine of the project has it. The tests use a
//! double (`tests/sim-cuda`) made from the same header.

use std::ffi::{c_int, c_ulong, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use cableway_base::root_cause;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::library::CudaDriver;
use crate::driver::{Driver as _, Mapper, Memory as _, Refusal, View};

const LIBRARY: &str = "libgdrapi.so.2";
const DEVICE: &str = "/dev/gdrdrv";

/// `gdr_mh_t`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Handle(c_ulong);

/// The used part of `gdr_info_v2_t`, with room for fields of later versions.
#[repr(C)]
struct Info {
    va: u64,
    mapped_size: u64,
    _others: [u64; 30],
}

type Open = unsafe extern "C" fn() -> *mut c_void;
type Close = unsafe extern "C" fn(*mut c_void) -> c_int;
type Pin = unsafe extern "C" fn(*mut c_void, c_ulong, usize, u64, u32, *mut Handle) -> c_int;
type Unpin = unsafe extern "C" fn(*mut c_void, Handle) -> c_int;
type GetInfo = unsafe extern "C" fn(*mut c_void, Handle, *mut Info) -> c_int;
type Map = unsafe extern "C" fn(*mut c_void, Handle, *mut *mut c_void, usize) -> c_int;
type Unmap = unsafe extern "C" fn(*mut c_void, Handle, *mut c_void, usize) -> c_int;

struct Functions {
    close: Close,
    pin: Pin,
    unpin: Unpin,
    info: GetInfo,
    map: Map,
    unmap: Unmap,
}

/// The opened library. One context uses it, under a lock.
struct Session {
    functions: Functions,
    state: NonNull<c_void>,
}

// SAFETY: used by one thread at a time, as above; the library ties nothing to threads.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: opened once, and closed once: views have a share of this.
        unsafe { (self.functions.close)(self.state.as_ptr()) };
    }
}

pub(super) struct Gdrcopy {
    driver: &'static CudaDriver,
    session: Arc<Session>,
}

impl Gdrcopy {
    pub(super) fn find(driver: &'static CudaDriver) -> Result<Gdrcopy, String> {
        // The double's library has no device file.
        if !driver.library.simulated && !Path::new(DEVICE).exists() {
            return Err(format!("there is no {DEVICE}"));
        }
        // Look beside the driver, then in the loader's folders.
        let beside = driver.library.path.parent().map(|folder| folder.join(LIBRARY)).filter(|path| path.exists());
        // Do not mix a double with a real library.
        let library = match beside {
            Some(path) => path,
            None if driver.library.simulated => return Err(format!("there is no {LIBRARY}")),
            None => PathBuf::from(LIBRARY),
        };
        // SAFETY: gdrcopy's library, which does nothing as it is loaded.
        let library =
            unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| root_cause(&error))?;
        // SAFETY: the types are those that the library's header gives these names.
        let (open, functions) = unsafe {
            let missing = |name: &str| format!("{LIBRARY} has no {name}");
            macro_rules! function {
                ($name:literal) => {
                    *library.get($name).map_err(|_| missing($name))?
                };
            }
            let open: Open = function!("gdr_open");
            let functions = Functions {
                close: function!("gdr_close"),
                pin: function!("gdr_pin_buffer"),
                unpin: function!("gdr_unpin_buffer"),
                info: function!("gdr_get_info_v2"),
                map: function!("gdr_map"),
                unmap: function!("gdr_unmap"),
            };
            (open, functions)
        };
        // SAFETY: takes nothing.
        let state = NonNull::new(unsafe { open() }).ok_or_else(|| "gdr_open failed".to_owned())?;
        // Its functions are called while any mapping exists.
        std::mem::forget(library);
        Ok(Gdrcopy { driver, session: Arc::new(Session { functions, state }) })
    }
}

impl Mapper for Gdrcopy {
    fn name(&self) -> &'static str {
        "gdrcopy"
    }

    fn map(&self, base: u64, len: usize) -> Result<Box<dyn View>, Refusal> {
        // gdrcopy requires this before pinning: synchronous operations have then ended when they return.
        self.driver.synchronise_operations(base).map_err(|failure| Refusal::Allocation(self.driver.reason(failure)))?;
        let (session, functions) = (&self.session, &self.session.functions);
        let failed = |name: &str, code: c_int| {
            let error = std::io::Error::from_raw_os_error(code.saturating_abs());
            match code.saturating_abs() {
                libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENODEV => Refusal::All(format!("{name}: {error}")),
                _ => Refusal::Allocation(format!("{name}: {error}")),
            }
        };
        let mut handle = Handle(0);
        // SAFETY: fills in the handle; the module checks the range. No token: the driver finds the memory's owner.
        let code = unsafe { (functions.pin)(session.state.as_ptr(), base as c_ulong, len, 0, 0, &raw mut handle) };
        if code != 0 {
            return Err(failed("gdr_pin_buffer", code));
        }
        let mut pinned =
            Pinned { session: Arc::clone(session), handle, address: std::ptr::null_mut(), len: 0, skipped: 0 };
        let mut info = Info { va: 0, mapped_size: 0, _others: [0; 30] };
        // SAFETY: fills in what is known of the handle; there is room for more than that.
        let code = unsafe { (functions.info)(session.state.as_ptr(), handle, &raw mut info) };
        if code != 0 {
            return Err(failed("gdr_get_info", code));
        }
        // The module pins whole device pages.
        let covers = base.checked_sub(info.va).filter(|skipped| skipped + len as u64 <= info.mapped_size);
        let Some(skipped) = covers else {
            return Err(Refusal::Allocation(format!("{} bytes from {:#x} on are pinned", info.mapped_size, info.va)));
        };
        let mut address = std::ptr::null_mut();
        let whole = info.mapped_size as usize;
        // SAFETY: fills in the address of a new mapping of all that is pinned.
        let code = unsafe { (functions.map)(session.state.as_ptr(), handle, &raw mut address, whole) };
        if code != 0 || address.is_null() {
            return Err(failed("gdr_map", code));
        }
        (pinned.address, pinned.len, pinned.skipped) = (address.cast(), whole, skipped as usize);
        Ok(Box::new(pinned))
    }
}

/// A pinned range, which is mapped unless the address is null.
struct Pinned {
    session: Arc<Session>,
    handle: Handle,
    address: *mut u8,
    len: usize,
    skipped: usize,
}

// SAFETY: an address and a handle, used by one thread at a time.
unsafe impl Send for Pinned {}

impl View for Pinned {
    fn address(&self) -> *mut u8 {
        self.address.wrapping_add(self.skipped)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let (functions, state) = (&self.session.functions, self.session.state.as_ptr());
        if !self.address.is_null() {
            // SAFETY: the whole mapping, which nobody uses any more.
            unsafe { (functions.unmap)(state, self.handle, self.address.cast(), self.len) };
        }
        // SAFETY: pinned once, and not mapped any more. That the memory was freed before is allowed.
        unsafe { (functions.unpin)(state, self.handle) };
    }
}

const _: () = assert!(size_of::<Handle>() == 8);
