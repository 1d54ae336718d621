//! Calls without a component interface reach Cableway's functions from every caller, without any preparation of the
//! process. `ompi/intercept` tests the changes of memory.

mod support;

use std::path::PathBuf;
use std::process::Command;

/// Returns the folder in which the program finds its objects.
fn folder() -> PathBuf {
    support::scratch().join("intercept-objects")
}

/// Builds an object for the program.
fn object(file: &str, source: &str, flags: &[&str]) -> PathBuf {
    let flags = [&["-shared", "-fPIC"], flags].concat();
    support::build(&format!("intercept-objects/{file}"), &format!("intercept/{source}"), &flags)
}

/// Returns the program, linked in this way, without `mpirun`, and builds its objects.
fn program(linked: &str, flags: &[&str]) -> Command {
    object("libbefore.so", "caller.c", &["-Wl,-z,now", "-Wl,-z,relro"]);
    object("libunloaded.so", "caller.c", &["-Wl,-z,now"]);
    object("runpath/liblater.so", "caller.c", &["-Wl,-z,lazy"]);
    object("libfortran.so", "fortran.c", &["-lmpi_mpifh"]);
    let runpath = format!("-Wl,--enable-new-dtags,-rpath,{}", folder().join("runpath").display());
    object("libloader.so", "loader.c", &[&runpath]);
    let program = support::build(&format!("intercept-{linked}"), "intercept.c", flags);
    let mut command = support::singleton(&program);
    command.env("INTERCEPT_FOLDER", folder()).env("OMPI_MCA_pml", "cableway");
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver());
    command
}

const LAZY: &[&str] = &["-Wl,-z,lazy"];
const CALLERS: [&str; 5] = ["program", "address", "before", "later", "fortran"];

/// Runs the program. Returns the lines that it printed.
fn run(command: &mut Command, argument: &str) -> Vec<String> {
    let run = support::finish(command.arg(argument)).assert_success();
    run.stdout.lines().map(str::to_owned).collect()
}

/// Checks the object that a caller's calls reach, by the beginning of its name.
fn assert_target(lines: &[String], when: &str, caller: &str, object: &str) {
    let start = format!("{when} {caller} ");
    let target = lines.iter().find_map(|line| line.strip_prefix(&start));
    assert!(target.is_some_and(|target| target.starts_with(object)), "{start}is not {object}: {lines:?}");
}

fn packs_device_memory(linked: &str, flags: &[&str]) {
    let lines = run(&mut program(linked, flags), "pack");
    for caller in CALLERS.iter().chain(&["unloaded"]) {
        assert!(lines.contains(&format!("packed {caller}")), "{caller}: {lines:?}");
    }
    assert_target(&lines, "before", "before", "libmpi.so");
    for caller in ["address", "before", "later", "fortran"] {
        assert_target(&lines, "during", caller, "mca_");
        assert_target(&lines, "after", caller, "libmpi.so");
    }
}

#[test]
fn every_caller_packs_device_memory_with_lazy_binding() {
    packs_device_memory("lazy", LAZY);
}

#[test]
fn every_caller_packs_device_memory_with_protected_slots() {
    packs_device_memory("protected", &["-Wl,-z,now", "-Wl,-z,relro"]);
}

#[test]
fn every_caller_packs_device_memory_at_fixed_addresses() {
    packs_device_memory("fixed", &["-fno-pie", "-no-pie", "-Wl,-z,now"]);
}

#[test]
fn a_profiling_tool_sees_the_calls() {
    let tool = object("libtool.so", "tool.c", &[]);
    let lines = run(program("lazy", LAZY).env("LD_PRELOAD", tool), "pack");
    // No tool sees calls by Fortran's bindings, or by an address in MPI's library.
    assert!(lines.contains(&"tool 4".to_owned()), "{lines:?}");
    for caller in CALLERS {
        assert!(lines.contains(&format!("packed {caller}")), "{caller}: {lines:?}");
    }
    assert_target(&lines, "during", "before", "libtool.so");
    assert_target(&lines, "during", "fortran", "mca_");
}

#[test]
fn a_parameter_disables_interception() {
    let lines = run(program("lazy", LAZY).env("OMPI_MCA_pml_cableway_intercept", "no"), "targets");
    for caller in ["address", "before", "later", "fortran"] {
        assert_target(&lines, "during", caller, "libmpi.so");
    }
}

#[test]
fn another_pml_disables_interception() {
    let lines = run(program("lazy", LAZY).env("OMPI_MCA_pml", "ob1"), "targets");
    for caller in ["address", "before", "later", "fortran"] {
        assert_target(&lines, "during", caller, "libmpi.so");
    }
}

#[test]
fn with_the_preload_library_nothing_is_redirected() {
    let lines = run(program("lazy", LAZY).env("LD_PRELOAD", support::preloaded()), "targets");
    for caller in ["before", "later", "fortran"] {
        assert_target(&lines, "during", caller, "libcableway_mpi.so");
    }
    // The preload library does not reach functions that are looked up in MPI's library itself.
    assert_target(&lines, "during", "address", "libmpi.so");
}
