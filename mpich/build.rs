//! Builds the C shim with the headers of the MPICH that `mpicc.mpich` (or `MPICC_MPICH`) belongs to.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=MPICC_MPICH");
    println!("cargo::rerun-if-changed=shim");
    let mpicc = env::var("MPICC_MPICH").unwrap_or_else(|_| "mpicc.mpich".to_owned());
    let arguments = compile_arguments(&mpicc);
    let with = |prefix: &str| -> Vec<String> {
        arguments.iter().filter_map(|argument| argument.strip_prefix(prefix)).map(str::to_owned).collect()
    };
    let folders: Vec<PathBuf> = with("-I").into_iter().map(PathBuf::from).collect();
    let is_mpich = |folder: &PathBuf| {
        fs::read_to_string(folder.join("mpi.h")).is_ok_and(|header| header.contains("#define MPICH_VERSION"))
    };
    assert!(folders.iter().any(is_mpich), "{mpicc}: no include folder has MPICH's mpi.h; set MPICC_MPICH");

    let mut shim = cc::Build::new();
    shim.std("gnu11").flag("-fvisibility=hidden").includes(&folders);
    let mut sources: Vec<PathBuf> = fs::read_dir("shim")
        .expect("the shim's folder is part of the package")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    shim.files(sources).compile("cableway_mpich_shim");
    // The library depends on MPICH's explicitly. If a program has loaded that library with local symbols, as Python
    // does, the functions would not be found otherwise.
    for folder in with("-L") {
        println!("cargo::rustc-cdylib-link-arg=-L{folder}");
    }
    let library = with("-l").into_iter().find(|name| name.starts_with("mpi")).unwrap_or_else(|| "mpich".to_owned());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-l{library},--pop-state");
    // The engine's threads and fork handlers must stay loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Returns the command line that the wrapper compiler would run.
fn compile_arguments(mpicc: &str) -> Vec<String> {
    let answer = Command::new(mpicc).arg("-show").output().unwrap_or_else(|error| {
        panic!("{mpicc}: {error}; install MPICH's development package (libmpich-dev), or set MPICC_MPICH")
    });
    String::from_utf8_lossy(&answer.stdout).split_whitespace().map(str::to_owned).collect()
}
