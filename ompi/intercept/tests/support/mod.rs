//! The objects of one test: building, loading and calling them.

#![allow(dead_code, unused_imports, unused_macros)] // each test file uses its part

pub(crate) mod names;

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Defines a function with two names. The first one is weak, as in MPI libraries.
const LIBRARY: &str = r#"
#define QUOTED(name) #name
#define QUOTE(name) QUOTED(name)
int OTHER_NAME(void) { return 1; }
int NAME(void) __attribute__((weak, alias(QUOTE(OTHER_NAME))));
"#;

const CALLER: &str = r#"
int NAME(void), OTHER_NAME(void);
int (*in_data)(void) = NAME;
int (*const constant)(void) = OTHER_NAME;
int call(void) { return NAME(); }
int call_other_name(void) { return OTHER_NAME(); }
int call_by_data(void) { return (*(int (*volatile *)(void)) &in_data)(); }
int call_by_constant(void) { return (*(int (*const volatile *)(void)) &constant)(); }
"#;

const TOOL: &str = r#"
int OTHER_NAME(void);
static int times;
int seen(void) { return times; }
int NAME(void) { times++; return OTHER_NAME(); }
"#;

const LOADER: &str = r#"
#include <dlfcn.h>
void *load(const char *name) { void *volatile loaded = dlopen(name, RTLD_NOW | RTLD_LOCAL); return loaded; }
"#;

/// The objects of a test, in their own folder and with their own function names.
pub(crate) struct Objects {
    folder: PathBuf,
    name: String,
}

/// An object's file.
pub(crate) struct Built {
    pub(crate) path: PathBuf,
}

impl Objects {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("patch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written");
        Objects { folder, name: name.to_owned() }
    }

    pub(crate) fn library(&self) -> Built {
        self.library_with(&[])
    }

    pub(crate) fn library_with(&self, flags: &[&str]) -> Built {
        self.build(&self.folder, "library", LIBRARY, flags, None)
    }

    /// An object that calls the library.
    pub(crate) fn caller(&self, kind: &str, flags: &[&str], library: &Built) -> Built {
        self.build(&self.folder, kind, CALLER, flags, Some(library))
    }

    /// Builds the same object in a folder below.
    pub(crate) fn caller_in(&self, below: &str, kind: &str, flags: &[&str], library: &Built) -> Built {
        self.build(&self.folder.join(below), kind, CALLER, flags, Some(library))
    }

    /// Builds an object that defines the function under its first name, too.
    pub(crate) fn tool(&self, kind: &str, flags: &[&str], library: &Built) -> Built {
        self.build(&self.folder, kind, TOOL, flags, Some(library))
    }

    /// Builds an object that loads others from a folder below.
    pub(crate) fn loader(&self, below: &str) -> Built {
        let runpath = format!("-Wl,--enable-new-dtags,-rpath,{}", self.folder.join(below).display());
        self.build(&self.folder, "loader", LOADER, &[&runpath], None)
    }

    fn build(&self, folder: &Path, kind: &str, source: &str, flags: &[&str], library: Option<&Built>) -> Built {
        std::fs::create_dir_all(folder).expect("cargo's folder for tests can be written");
        // The loader also identifies objects by these names, so they must differ between tests.
        let file = format!("lib{}_{}.so", self.name, kind);
        let path = folder.join(&file);
        let code = path.with_extension("c");
        std::fs::write(&code, source).expect("as above");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-fPIC", "-shared", "-Wall", "-Werror"])
            .args([format!("-DNAME={}", self.name), format!("-DOTHER_NAME=p{}", self.name)])
            .arg(format!("-Wl,-soname,{file}"))
            .args(flags)
            .arg("-o")
            .arg(&path)
            .arg(&code);
        if let Some(library) = library {
            cc.arg(&library.path).arg(format!("-Wl,-rpath,{}", self.folder.display()));
        }
        let output = cc.output().unwrap_or_else(|error| panic!("{cc:?}: {error}"));
        assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));
        Built { path }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Built {
    pub(crate) fn load(&self, mode: c_int) -> Loaded {
        // SAFETY: an object of these tests, which runs nothing as it is loaded.
        Loaded::new(unsafe { libc::dlopen(c_string(self.path.as_os_str()).as_ptr(), mode) })
    }

    pub(crate) fn load_into_new_namespace(&self) -> Loaded {
        // SAFETY: as above.
        Loaded::new(unsafe {
            libc::dlmopen(libc::LM_ID_NEWLM, c_string(self.path.as_os_str()).as_ptr(), libc::RTLD_NOW)
        })
    }
}

/// A loaded object. Dropping it unloads it.
pub(crate) struct Loaded(*mut c_void);

// SAFETY: the loader's handles are good in every thread.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn new(handle: *mut c_void) -> Self {
        // SAFETY: a string of the loader's, or null.
        let error = || unsafe {
            let text = libc::dlerror();
            if text.is_null() { String::new() } else { std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        assert!(!handle.is_null(), "{}", error());
        Loaded(handle)
    }

    /// Makes an object of [`Objects::loader`] load another by its bare name.
    pub(crate) fn by(loader: &Loaded, file: &OsStr) -> Self {
        // SAFETY: the object has such a function.
        let load: extern "C" fn(*const c_char) -> *mut c_void = unsafe { std::mem::transmute(loader.address("load")) };
        Loaded::new(load(c_string(file).as_ptr()))
    }

    pub(crate) fn address(&self, name: &str) -> *const c_void {
        // SAFETY: a handle that is open, and a string.
        let found = unsafe { libc::dlsym(self.0, c_string(name.as_ref()).as_ptr()) };
        assert!(!found.is_null(), "there is no {name}");
        found
    }

    pub(crate) fn call(&self, name: &str) -> c_int {
        // SAFETY: the objects' functions take nothing and return a number.
        let function: extern "C" fn() -> c_int = unsafe { std::mem::transmute(self.address(name)) };
        function()
    }

    pub(crate) fn unload(self) {
        drop(self);
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: opened once.
        unsafe { libc::dlclose(self.0) };
    }
}

fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).expect("no zero bytes")
}

/// Returns the protection of each page that is mapped from a file.
pub(crate) fn rights(path: &Path) -> Vec<(usize, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let mut pages = Vec::new();
    for line in maps.lines().filter(|line| line.ends_with(path.to_str().expect("plain"))) {
        let mut words = line.split(' ');
        let (start, end) = words.next().and_then(|range| range.split_once('-')).expect("a range");
        let address = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
        let rights = words.next().expect("rights");
        pages.extend((address(start)..address(end)).step_by(4096).map(|page| (page, rights.to_owned())));
    }
    pages
}
