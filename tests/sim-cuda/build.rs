//! Gives the library the driver's name, in a folder that no loader searches.
//!
//! Cargo has no step after the build, so the link is created before the library exists: `sim-cuda/libcuda.so.1` in the
//! profile's folder points to `../deps/libsim_cuda.so`, which cargo writes even if this package is only a
//! dev-dependency.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Calls within the library stay within it, even if the process has loaded another driver.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its worker threads run until the process ends, so its code must stay mapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let out_dir = env::var_os("OUT_DIR").map(PathBuf::from).ok_or(io::ErrorKind::NotFound)?;
    let profile = profile_folder(&out_dir).ok_or(io::ErrorKind::NotFound)?;
    let folder = profile.join("sim-cuda");
    fs::create_dir_all(&folder)?;
    // gdrcopy's library is this one, too.
    lay(&folder, "libcuda.so.1")?;
    lay(&folder, "libgdrapi.so.2")
}

/// Creates a link to the library.
fn lay(folder: &Path, name: &str) -> io::Result<()> {
    // Create it under another name and rename it, so that a process that opens it meanwhile finds the old or the new
    // one.
    let fresh = folder.join(format!("{name}.{}", std::process::id()));
    std::os::unix::fs::symlink("../deps/libsim_cuda.so", &fresh)?;
    fs::rename(&fresh, folder.join(name))
}

/// `<target>/[<triple>/]<profile>` of `<profile>/build/<package>-<hash>/out`.
fn profile_folder(out_dir: &Path) -> Option<&Path> {
    out_dir.ancestors().nth(3)
}
