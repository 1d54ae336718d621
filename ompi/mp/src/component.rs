//! The component's functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use cableway_ompi_find::Table;

use crate::Handle;

/// `enum cableway_mp_kind` of `ompi/shim/mp.h`
pub(crate) mod kind {
    use std::ffi::c_int;

    pub(crate) const SEND: c_int = 0;
    pub(crate) const RECEIVE: c_int = 1;
    pub(crate) const PUT: c_int = 2;
    pub(crate) const GET: c_int = 3;
    pub(crate) const WAIT: c_int = 4;
    pub(crate) const WRITE_WORD: c_int = 5;
    pub(crate) const WAIT_WORD: c_int = 6;
    pub(crate) const WRITE_BYTES: c_int = 7;
}

/// `struct cableway_mp_operation`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) kind: c_int,
    pub(crate) peer: c_int,
    pub(crate) address: *mut c_void,
    pub(crate) len: u64,
    pub(crate) blocks: *const libc::iovec,
    pub(crate) block_count: usize,
    pub(crate) window: *mut c_void,
    pub(crate) displacement: u64,
    pub(crate) value: u32,
    pub(crate) condition: c_int,
    pub(crate) copied: bool,
    pub(crate) earlier: usize,
    pub(crate) message: *mut c_void,
    pub(crate) source: *const c_void,
    pub(crate) words: *const c_void,
}
const _: () = assert!(size_of::<Operation>() == 104);

impl Operation {
    /// An operation of a kind, with nothing else.
    pub(crate) fn new(kind: c_int) -> Self {
        Operation {
            kind,
            peer: 0,
            address: null_mut(),
            len: 0,
            blocks: null(),
            block_count: 0,
            window: null_mut(),
            displacement: 0,
            value: 0,
            condition: 0,
            copied: false,
            earlier: 0,
            message: null_mut(),
            source: null(),
            words: null(),
        }
    }
}

/// `struct cableway_mp_job`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawJob {
    pub(crate) communicator: Handle,
    pub(crate) handle: *mut c_void,
    pub(crate) rank: c_int,
    pub(crate) size: c_int,
}

/// `struct cableway_mp_words`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub(crate) handle: *mut c_void,
    pub(crate) start: u64,
    pub(crate) over: u64,
    pub(crate) seen: u64,
}

/// `struct cableway_mp`
#[repr(C)]
pub(crate) struct Component {
    version: u32,
    active: unsafe extern "C" fn() -> bool,
    pub(crate) open: unsafe extern "C" fn(Handle, *mut RawJob, *mut c_char, usize) -> c_int,
    pub(crate) close: unsafe extern "C" fn(*mut RawJob),
    pub(crate) stream_open: unsafe extern "C" fn(c_int, usize, *mut *mut c_void, *mut c_char, usize) -> c_int,
    pub(crate) stream_close: unsafe extern "C" fn(*mut c_void),
    pub(crate) window_open:
        unsafe extern "C" fn(*const RawJob, *mut c_void, u64, *mut *mut c_void, *mut c_char, usize) -> c_int,
    pub(crate) window_close: unsafe extern "C" fn(*mut c_void),
    pub(crate) memory_register: unsafe extern "C" fn(*mut c_void, u64) -> *mut c_void,
    pub(crate) memory_release: unsafe extern "C" fn(*mut c_void),
    pub(crate) on_host: unsafe extern "C" fn(*const c_void, u64) -> bool,
    pub(crate) post:
        unsafe extern "C" fn(*const RawJob, *const c_void, *mut Operation, usize, *mut c_char, usize) -> c_int,
    pub(crate) is_over: unsafe extern "C" fn(*const c_void) -> bool,
    pub(crate) wait: unsafe extern "C" fn(*const c_void, *mut c_char, usize) -> c_int,
    pub(crate) message_free: unsafe extern "C" fn(*mut c_void),
    pub(crate) words_open: unsafe extern "C" fn(*mut Words, *mut c_char, usize) -> c_int,
    pub(crate) words_close: unsafe extern "C" fn(*mut c_void),
    pub(crate) words_follow: unsafe extern "C" fn(*const c_void, *const c_void),
    pub(crate) words_seen: unsafe extern "C" fn(*const c_void) -> bool,
    pub(crate) reaches: unsafe extern "C" fn(*const c_void, u64) -> bool,
    pub(crate) progress: unsafe extern "C" fn(),
}

impl Component {
    /// Waits on the calling thread until a condition holds, and makes progress meanwhile.
    pub(crate) fn wait_until(&self, mut holds: impl FnMut() -> bool) {
        while !holds() {
            // SAFETY: it may be called at any time while Open MPI uses the component.
            unsafe { (self.progress)() };
            std::thread::yield_now();
        }
    }
}

/// The version of this layout.
const VERSION: u32 = 3;
/// The function of the component that returns it.
const LOOKUP: &CStr = c"cableway_mp";

// SAFETY: the component's table of this version has this layout.
static TABLE: Table<Component> = unsafe { Table::new(LOOKUP, VERSION) };

/// Returns the component if Open MPI uses it now.
pub(crate) fn component() -> Option<&'static Component> {
    let component = TABLE.get()?;
    // SAFETY: the component's function.
    unsafe { (component.active)() }.then_some(component)
}

/// Runs a call of the component that writes why it failed.
pub(crate) fn checked(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), String> {
    let mut why = [0_u8; 512];
    if call(why.as_mut_ptr().cast(), why.len()) == 0 {
        return Ok(());
    }
    let text = CStr::from_bytes_until_nul(&why).map(CStr::to_string_lossy).unwrap_or_default();
    Err(if text.is_empty() { "it failed, as the log says".to_owned() } else { text.into_owned() })
}
