//! Gives the library the names of AMD's, in a folder that no loader searches, as the build script of sim-cuda does.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    // Which functions the sources that both doubles share export, and what they do where the vendors differ.
    println!("cargo::rustc-cfg=sim_hip");
    println!("cargo::rustc-check-cfg=cfg(sim_hip)");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libamdhip64.so");
    // Calls within the library stay within it, even if the process has loaded another one.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its worker threads run until the process ends, so its code must stay mapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let out_dir = env::var_os("OUT_DIR").map(PathBuf::from).ok_or(io::ErrorKind::NotFound)?;
    let profile = out_dir.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
    let folder = profile.join("sim-hip");
    fs::create_dir_all(&folder)?;
    lay(&folder, "libamdhip64.so")?;
    // The library below HIP is this one, too.
    lay(&folder, "libhsa-runtime64.so.1")
}

/// Creates a link to the library under another name and renames it, so that a process that opens it meanwhile finds the
/// old or the new one.
fn lay(folder: &Path, name: &str) -> io::Result<()> {
    let fresh = folder.join(format!("{name}.{}", std::process::id()));
    std::os::unix::fs::symlink("../deps/libsim_hip.so", &fresh)?;
    fs::rename(&fresh, folder.join(name))
}
