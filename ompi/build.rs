//! Builds the C shim from the headers of the Open MPI that `mpicc` belongs to.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Of the version's own.
const SOURCES: [&str; 5] = ["component", "datatype", "module", "request", "runtime"];
/// What is the same for every version that has the interfaces.
const SHARED: [&str; 4] = ["collectives/component", "collectives/functions", "staging/request", "staging/staged"];

fn main() {
    println!("cargo::rerun-if-env-changed=MPICC");
    println!("cargo::rerun-if-changed=shim");
    let mpicc = env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    let answer = Command::new(&mpicc).arg("--showme:incdirs").output().unwrap_or_else(|error| {
        panic!("{mpicc}: {error}; install Open MPI's development package (libopenmpi-dev), or set MPICC")
    });
    let folders = String::from_utf8_lossy(&answer.stdout).into_owned();

    let mut shim = cc::Build::new();
    shim.std("gnu11").flag("-fvisibility=hidden").flag("-Wno-unused-parameter").flag("-Wno-sign-compare");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        // Open MPI's inline atomics call functions that nobody exports without it.
        shim.flag("-mcx16");
    }
    for folder in folders.split_whitespace() {
        shim.include(folder);
    }
    for source in SOURCES {
        shim.file(format!("shim/v4/{source}.c"));
    }
    shim.include("shim/v4").include("shim/v4/absent");
    for source in SHARED {
        shim.file(format!("shim/{source}.c"));
    }
    // Linked whole: nothing in Rust refers to the constructor that lays the component structure out.
    shim.cargo_metadata(false).compile("cableway_shim");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static:+whole-archive=cableway_shim");
    // Open MPI may close a component and open it again; the engine's threads and fork handlers must stay.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
