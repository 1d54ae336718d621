//! Builds the C shim with the headers of the Open MPI that `mpicc` (or `MPICC`) belongs to: the version-independent
//! files, and those of the major version.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of the version-independent files.
const SHARED: [&str; 7] =
    ["shim/common", "shim/collectives", "shim/exposed", "shim/mp", "shim/staging", "shim/streams", "shim/windows"];

fn main() {
    println!("cargo::rerun-if-env-changed=MPICC");
    println!("cargo::rerun-if-changed=shim");
    let mpicc = env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    let folders: Vec<PathBuf> =
        show(&mpicc, "incdirs").split_whitespace().map(PathBuf::from).filter(|folder| folder.is_dir()).collect();
    let major =
        major_version(&folders).unwrap_or_else(|| panic!("{mpicc}: no include folder has Open MPI's mpi.h; set MPICC"));
    let version = match major {
        4 => "shim/v4",
        5 => "shim/v5",
        _ => panic!("{mpicc} belongs to Open MPI {major}; the component supports 4.1 and 5.0; set MPICC"),
    };

    let mut shim = cc::Build::new();
    shim.std("gnu11").flag("-fvisibility=hidden").flag("-Wno-unused-parameter").flag("-Wno-sign-compare");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        // Without it Open MPI's inline atomics call library functions that are not linked.
        shim.flag("-mcx16");
    }
    shim.include(version).include("shim/common").includes(&folders);
    println!("cargo::rustc-check-cfg=cfg(accelerator)");
    if major == 5 {
        // Open MPI 5.0 has the accelerator framework.
        println!("cargo::rustc-cfg=accelerator");
        shim.include(pmix_headers(&folders));
    }
    // Searched last, so that the package's own headers take precedence.
    shim.flag("-idirafter").flag("shim/absent");
    for folder in SHARED.into_iter().chain([version]) {
        shim.files(sources(folder));
    }
    // Linked whole, because nothing in Rust refers to the constructors that fill the component structures.
    shim.cargo_metadata(false).compile("cableway_shim");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static:+whole-archive=cableway_shim");
    // The component depends on Open MPI's library explicitly. If a program has loaded that library with local symbols,
    // as Python does, the component would not find them otherwise.
    for folder in show(&mpicc, "libdirs").split_whitespace() {
        println!("cargo::rustc-cdylib-link-arg=-L{folder}");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-lmpi,--pop-state");
    // An object that was copied under another name instead of linked must not fill the structures of the first one.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Open MPI may close the component and open it again. The engine's threads and fork handlers must stay loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Returns what the wrapper compiler prints for `--showme:TOPIC`.
fn show(mpicc: &str, topic: &str) -> String {
    let answer = Command::new(mpicc).arg(format!("--showme:{topic}")).output().unwrap_or_else(|error| {
        panic!("{mpicc}: {error}; install Open MPI's development package (libopenmpi-dev), or set MPICC")
    });
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

fn major_version(folders: &[PathBuf]) -> Option<u32> {
    let header = folders.iter().find_map(|folder| fs::read_to_string(folder.join("mpi.h")).ok())?;
    let line = header.lines().find(|line| line.starts_with("#define OMPI_MAJOR_VERSION"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Returns the folder of `pmix.h`, which Open MPI 5.0's internal headers include: `PMIX_INCLUDE`, or one of the folders
/// that distributions use.
fn pmix_headers(folders: &[PathBuf]) -> PathBuf {
    println!("cargo::rerun-if-env-changed=PMIX_INCLUDE");
    if let Some(folder) = env::var_os("PMIX_INCLUDE") {
        return folder.into();
    }
    folders
        .iter()
        .flat_map(|folder| folder.ancestors())
        .flat_map(|folder| ["pmix2/include", "pmix/include", "include", ""].map(|below| folder.join(below)))
        .find(|folder| folder.join("pmix.h").is_file())
        .expect("pmix.h was not found near Open MPI's headers; install libpmix-dev, or set PMIX_INCLUDE to its folder")
}

fn sources(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the shim's folder is part of the package")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    found.sort();
    found
}
