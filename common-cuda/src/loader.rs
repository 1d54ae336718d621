//! The check whether libraries were loaded since the last search that found no driver.
//!
//! The loader keeps the objects of a process in a list for debuggers (`link.h`), and appends new objects. The search
//! for a driver remembers the last object. While no object follows it, no library was loaded since, or those were
//! unloaded again. The remembered object must stay loaded, so it is marked once in the life of a process. Other objects
//! are not changed.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The public part of the loader's `struct link_map`.
#[repr(C)]
struct Object {
    address: usize,
    name: *const c_char,
    dynamic: *const c_void,
    /// Written by the loader, under its lock.
    next: AtomicPtr<Object>,
    previous: *const Object,
}

/// Watches for libraries that are loaded after a search found no driver of one vendor.
pub(crate) struct LoadWatch {
    /// The last object; null if it is not known.
    last: AtomicPtr<Object>,
    /// A driver has been found.
    found: AtomicBool,
}

impl LoadWatch {
    pub(crate) const fn new() -> LoadWatch {
        LoadWatch { last: AtomicPtr::new(std::ptr::null_mut()), found: AtomicBool::new(false) }
    }

    /// Checks whether the process certainly has no driver. False means that it is unknown.
    #[inline(always)]
    pub(crate) fn no_driver(&self) -> bool {
        let last = self.last.load(Ordering::Acquire);
        // SAFETY: what is stored there is never unloaded.
        !last.is_null() && unsafe { (*last).next.load(Ordering::Relaxed) }.is_null()
    }

    /// Enables [`no_driver`](Self::no_driver) from now on. `absent` checks whether the driver is missing.
    pub(crate) fn watch(&self, absent: impl FnOnce() -> bool) {
        static LAST_ONE: OnceLock<Option<Kept>> = OnceLock::new();
        let Some(Kept(last)) = LAST_ONE.get_or_init(keep_last) else { return };
        // Later libraries follow that object. Check the libraries that were loaded before.
        if absent() {
            self.last.store(*last, Ordering::SeqCst);
        }
        if self.found.load(Ordering::SeqCst) {
            self.last.store(std::ptr::null_mut(), Ordering::SeqCst);
        }
    }

    /// Records that a driver is in the process, perhaps under an unusual name.
    pub(crate) fn found(&self) {
        self.found.store(true, Ordering::SeqCst);
        self.last.store(std::ptr::null_mut(), Ordering::SeqCst);
    }
}

/// An object that is never unloaded.
struct Kept(*mut Object);

// SAFETY: the loader's own record, of which nothing but the atomic is looked at.
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

/// Finds the object that was loaded last, and keeps it loaded.
fn keep_last() -> Option<Kept> {
    // SAFETY: opens the main program, which is there already.
    let main = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
    let mut last = Last { first: object_of(main)?, last: std::ptr::null_mut(), name: CString::default() };
    // SAFETY: the callback matches, and its data outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(walk), (&raw mut last).cast()) };
    // Use the loader's name, not a path whose file may be deleted.
    // SAFETY: a terminated name; nothing is loaded, so that no code runs.
    let handle = unsafe { libc::dlopen(last.name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    // The name belongs to another object, or to none, if the object was unloaded meanwhile.
    (object_of(handle)? == last.last).then_some(Kept(last.last))
}

/// The input and the result of [`walk`].
struct Last {
    first: *mut Object,
    last: *mut Object,
    name: CString,
}

/// Runs in a callback of the loader, which prevents changes of the list.
extern "C" fn walk(_: *mut libc::dl_phdr_info, _: usize, last: *mut c_void) -> c_int {
    // SAFETY: what `keep_last` passed.
    let last = unsafe { &mut *last.cast::<Last>() };
    last.last = last.first;
    loop {
        // SAFETY: a record of the list, which the loader keeps as it is during the callback.
        let next = unsafe { (*last.last).next.load(Ordering::Relaxed) };
        if next.is_null() {
            break;
        }
        last.last = next;
    }
    // SAFETY: as above; every record has a terminated name.
    last.name = unsafe { CStr::from_ptr((*last.last).name) }.to_owned();
    // One pass suffices.
    1
}

/// The loader's record of an open object.
fn object_of(handle: *mut c_void) -> Option<*mut Object> {
    let mut object = std::ptr::null_mut::<Object>();
    if handle.is_null() {
        return None;
    }
    // SAFETY: an open object's handle, and a place for the address of its record.
    let known = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut object).cast()) } == 0;
    (known && !object.is_null()).then_some(object)
}

/// Returns the file that contains a symbol.
pub(crate) fn path_of(symbol: *mut c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: an all-zero Dl_info is valid, and dladdr only fills it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    let known = unsafe { libc::dladdr(symbol, &raw mut info) } != 0 && !info.dli_fname.is_null();
    if !known {
        return None;
    }
    // SAFETY: the loader's own terminated string, which lives as long as the object; the object stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Counts the shared objects that this process has ever loaded.
pub(crate) fn objects_loaded() -> u64 {
    extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, adds: *mut c_void) -> c_int {
        // SAFETY: the loader passes its own record, and `adds` is the counter below.
        unsafe { *adds.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut adds: u64 = 0;
    // SAFETY: the callback matches, and its data outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut adds).cast()) };
    adds
}

#[cfg(test)]
mod tests {
    use super::*;
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

    const CHILD: &str = "CABLEWAY_TEST_LATEST";

    /// Runs in a separate process that loads nothing else.
    #[test]
    fn loaded_libraries_are_seen_until_unloaded() {
        if std::env::var_os(CHILD).is_none() {
            let name = "loader::tests::loaded_libraries_are_seen_until_unloaded";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact"]).env(CHILD, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        // A part of the C library: empty, and used by no one.
        // SAFETY: it runs no code as it comes or goes.
        let load = || unsafe { Library::open(Some("libutil.so.1"), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        let loads = LoadWatch::new();
        assert!(!loads.no_driver(), "nobody has looked");
        loads.watch(|| false);
        assert!(!loads.no_driver(), "a driver was there");
        loads.watch(|| true);
        assert!(loads.no_driver());
        for _ in 0..3 {
            let library = load();
            assert!(!loads.no_driver(), "a library was loaded");
            library.close().unwrap();
            assert!(loads.no_driver(), "it has gone");
        }
        let library = load();
        loads.found();
        library.close().unwrap();
        loads.watch(|| true);
        assert!(!loads.no_driver(), "a driver that was once bound counts for good");
    }
}
