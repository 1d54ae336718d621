//! Gives the library its name for C: `libcableway.so`, and `libcableway.so.0` for the loader.
//!
//! Cargo has no step after the build, so the links are created before the library exists. They lie in the profile's
//! folder and point to `deps/libcableway_capi.so`, which cargo writes even if only tests are built.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The name that programs record and the loader searches for. The number changes when programs must be built again.
const SONAME: &str = "libcableway.so.0";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // Threads of the library, and destructors of thread-local data, run until the process ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let out_dir = env::var_os("OUT_DIR").map(PathBuf::from).ok_or(io::ErrorKind::NotFound)?;
    // `<target>/[<triple>/]<profile>` of `<profile>/build/<package>-<hash>/out`.
    let profile = out_dir.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
    lay(profile, "deps/libcableway_capi.so", SONAME)?;
    lay(profile, SONAME, "libcableway.so")
}

/// Creates a link. Makes it under another name and renames it, so that a process that opens it meanwhile finds the old
/// or the new one.
fn lay(folder: &Path, target: &str, name: &str) -> io::Result<()> {
    let fresh = folder.join(format!("{name}.{}", std::process::id()));
    std::os::unix::fs::symlink(target, &fresh)?;
    fs::rename(&fresh, folder.join(name))
}
