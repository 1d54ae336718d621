//! Gives the library the name that programs record, `libcableway_mp.so.0`, and lays a link of that name beside the
//! folder into which cargo writes it.

use std::path::PathBuf;
use std::{env, fs, io};

/// The number changes when programs must be built again.
const SONAME: &str = "libcableway_mp.so.0";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");

    let out_dir = env::var_os("OUT_DIR").map(PathBuf::from).ok_or(io::ErrorKind::NotFound)?;
    // `<target>/[<triple>/]<profile>` of `<profile>/build/<package>-<hash>/out`.
    let profile = out_dir.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
    // A process that opens it meanwhile finds the old link or the new one.
    let fresh = profile.join(format!("{SONAME}.{}", std::process::id()));
    std::os::unix::fs::symlink("deps/libcableway_mp.so", &fresh)?;
    fs::rename(&fresh, profile.join(SONAME))
}
