//! Bindings to libpmix.so.2, loaded at run time. The structures are those of `pmix_common.h`, unchanged since PMIx 2. No
//! later function is used.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

pub(super) const SUCCESS: c_int = 0;
pub(super) const ERR_NOT_FOUND: c_int = -46;
pub(super) const RANK_WILDCARD: u32 = u32::MAX - 1;
pub(super) const JOB_SIZE: &CStr = c"pmix.job.size";
pub(super) const LOCAL_SIZE: &CStr = c"pmix.local.size";
pub(super) const COLLECT_DATA: &CStr = c"pmix.collect";
pub(super) const IMMEDIATE: &CStr = c"pmix.immediate";
pub(super) const SCOPE_GLOBAL: u8 = 3;
const TYPE_BOOL: u16 = 1;
const TYPE_UINT32: u16 = 14;
pub(super) const TYPE_BYTE_OBJECT: u16 = 27;

/// `pmix_proc_t`.
#[repr(C)]
pub(super) struct Proc {
    pub(super) nspace: [c_char; 256],
    pub(super) rank: u32,
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ByteObject {
    pub(super) bytes: *mut c_char,
    pub(super) size: usize,
}

/// The union in `pmix_value_t`; `_largest` is `pmix_envar_t`, two pointers and a character.
#[repr(C)]
pub(super) union Data {
    pub(super) flag: bool,
    pub(super) uint32: u32,
    pub(super) bytes: ByteObject,
    _largest: [usize; 3],
}

impl Data {
    pub(super) const ZERO: Data = Data { _largest: [0; 3] };
}

/// `pmix_value_t`.
#[repr(C)]
pub(super) struct Value {
    pub(super) kind: u16,
    pub(super) data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
pub(super) struct Info {
    pub(super) key: [c_char; 512],
    pub(super) flags: u32,
    pub(super) value: Value,
}

impl Info {
    /// The attribute `key`, true.
    pub(super) fn flag(key: &CStr) -> Self {
        let mut info = Info { key: [0; 512], flags: 0, value: Value { kind: TYPE_BOOL, data: Data { flag: true } } };
        for (to, &from) in info.key.iter_mut().zip(key.to_bytes()) {
            *to = from as c_char;
        }
        info
    }
}

// As a C compiler lays out pmix_common.h of PMIx 4.2 on every 64-bit target.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Proc>() == 260 && offset_of!(Proc, rank) == 256);
    assert!(size_of::<Value>() == 32 && offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && offset_of!(Info, flags) == 512 && offset_of!(Info, value) == 520);
};

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

const NAMES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];

/// Loads libpmix from the loader's path and returns it with its name.
fn open() -> Option<(&'static str, Library)> {
    // SAFETY: the initialisers of libpmix access nothing of this program.
    NAMES.into_iter().find_map(|name| Some((name, unsafe { Library::new(name) }.ok()?)))
}

/// Returns the name of the libpmix on the loader's path.
pub(crate) fn library() -> Option<&'static str> {
    open().map(|(name, _)| name)
}

/// The functions of a loaded libpmix.
pub(super) struct Functions {
    pub(super) init: Init,
    pub(super) finalize: Finalize,
    pub(super) put: Put,
    pub(super) commit: Commit,
    pub(super) fence: Fence,
    pub(super) get: Get,
    error_string: ErrorString,
    _library: Library,
}

impl Functions {
    /// Finds libpmix on the loader's path.
    pub(super) fn load() -> Result<Self, String> {
        let library = open().map(|(_, library)| library).ok_or_else(|| {
            format!(
                "this process was started through PMIx, but {} is not on the loader's path; install it (Debian: \
                 libpmix2), or start ranks with `cableway run`",
                NAMES[0]
            )
        })?;
        // SAFETY: each symbol has the type of its declaration in pmix.h, and the library stays loaded as long as the
        // copied pointers: they live in the same structure.
        unsafe {
            Ok(Functions {
                init: symbol(&library, "PMIx_Init")?,
                finalize: symbol(&library, "PMIx_Finalize")?,
                put: symbol(&library, "PMIx_Put")?,
                commit: symbol(&library, "PMIx_Commit")?,
                fence: symbol(&library, "PMIx_Fence")?,
                get: symbol(&library, "PMIx_Get")?,
                error_string: symbol(&library, "PMIx_Error_string")?,
                _library: library,
            })
        }
    }

    /// Returns `Ok` for success, else an error with PMIx's description of the status.
    pub(super) fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function accepts any status and returns a static string or null.
        let words = unsafe {
            let words = (self.error_string)(status);
            if words.is_null() { c"unknown status" } else { CStr::from_ptr(words) }
        };
        Err(format!("{call}: {} ({status})", words.to_string_lossy()))
    }
}

/// # Safety
/// The symbol has type `T`.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller promises it.
    unsafe { library.get::<T>(name) }.map(|symbol| *symbol).map_err(|error| format!("libpmix has no {name}: {error}"))
}

/// Reads and frees a value that `PMIx_Get` returned, as the macro `PMIX_VALUE_RELEASE` does.
///
/// # Safety
/// `value` came from `PMIx_Get` and is not used again.
pub(super) unsafe fn take(value: *mut Value) -> Taken {
    // SAFETY: PMIx_Get succeeded, so the value is initialised and its kind names the valid union member. The caller of
    // PMIx_Get frees the value and its bytes, which malloc allocated.
    unsafe {
        let taken = match (*value).kind {
            TYPE_UINT32 => Taken::Number((*value).data.uint32),
            TYPE_BYTE_OBJECT => {
                let object = (*value).data.bytes;
                let mut bytes = Vec::new();
                if !object.bytes.is_null() {
                    bytes.extend_from_slice(std::slice::from_raw_parts(object.bytes.cast::<u8>(), object.size));
                    libc::free(object.bytes.cast::<c_void>());
                }
                Taken::Bytes(bytes)
            }
            kind => Taken::Other(kind),
        };
        libc::free(value.cast::<c_void>());
        taken
    }
}

/// The content of a value.
pub(super) enum Taken {
    Number(u32),
    Bytes(Vec<u8>),
    /// A type that is not used here, by its number. Memory that it points to is not freed.
    Other(u16),
}
