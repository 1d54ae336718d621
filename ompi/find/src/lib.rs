//! Finds Cableway's component for Open MPI in this process, and its tables of functions.
//!
//! Open MPI loads components with local symbols, so that they are found by their files only: one file under any of several
//! names, `mca_<framework>_cableway.so`. A library that uses the component links neither it nor MPI, so that one file
//! serves every version of Open MPI that the component supports. [`say`] writes why a call of such a library failed.

use std::ffi::{CStr, CString, c_int, c_void};
use std::io::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A table of functions that the component returns by one of its symbols. The first field is its version, a `u32`.
pub struct Table<T> {
    symbol: &'static CStr,
    version: u32,
    found: AtomicPtr<T>,
}

impl<T> Table<T> {
    /// Describes a table that has not been looked up.
    ///
    /// # Safety
    /// `symbol` is a function without arguments that returns null or the address of a constant. If the constant begins
    /// with this version, it is a `T`.
    pub const unsafe fn new(symbol: &'static CStr, version: u32) -> Self {
        Table { symbol, version, found: AtomicPtr::new(null_mut()) }
    }

    /// Returns the table if a component of this version is loaded. Looks it up until it was found once. May be called from
    /// any thread.
    pub fn get(&self) -> Option<&'static T> {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            found = self.look_up().cast_mut();
            self.found.store(found, Ordering::Release);
        }
        // SAFETY: null, or a constant of the component, which is never unloaded.
        unsafe { found.as_ref() }
    }

    fn look_up(&self) -> *const T {
        let mut files: Vec<CString> = Vec::new();
        // SAFETY: the function gets the list, and is called before this call returns.
        unsafe { libc::dl_iterate_phdr(Some(list), (&raw mut files).cast()) };
        files.iter().map(|file| self.table_of(file)).find(|table| !table.is_null()).unwrap_or(std::ptr::null())
    }

    /// Returns the table of a loaded object, or null if it is no component of this version.
    fn table_of(&self, file: &CStr) -> *const T {
        // SAFETY: the object is loaded already, so that no code of it runs.
        let object = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if object.is_null() {
            return std::ptr::null();
        }
        // SAFETY: an open object.
        let lookup = unsafe { libc::dlsym(object, self.symbol.as_ptr()) };
        // SAFETY: opened above. The component stays loaded.
        unsafe { libc::dlclose(object) };
        if lookup.is_null() {
            return std::ptr::null();
        }
        // SAFETY: the promise of `new`.
        let lookup: unsafe extern "C" fn() -> *const u32 = unsafe { std::mem::transmute(lookup) };
        // SAFETY: it only returns an address.
        let table = unsafe { lookup() };
        // SAFETY: null or valid; the version comes first in every version.
        let known = unsafe { table.as_ref() }.is_some_and(|version| *version == self.version);
        if known { table.cast() } else { std::ptr::null() }
    }
}

/// Returns a function of this process by its name, or null.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Returns whether MPI is initialized and not finalized.
pub fn is_initialized() -> bool {
    let ask = |name: &CStr| {
        let function = symbol(name);
        if function.is_null() {
            return false;
        }
        // SAFETY: MPI's function of this type, which may be called at any time.
        let function: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(function) };
        let mut flag = 0;
        // SAFETY: the flag is valid.
        unsafe { function(&raw mut flag) };
        flag != 0
    };
    ask(c"MPI_Initialized") && !ask(c"MPI_Finalized")
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

/// Writes a line to the standard error in one system call, so that the lines of several ranks do not mix. A line that cannot
/// be written is lost.
pub fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
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
    fn a_process_without_mpi_has_neither_the_component_nor_an_initialized_mpi() {
        // SAFETY: no object has the symbol.
        let table = unsafe { Table::<u32>::new(c"cableway_no_such_table", 1) };
        assert!(table.get().is_none() && !is_initialized());
    }
}
