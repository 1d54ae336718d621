//! Calls that no component of Open MPI is asked about reach the functions before Open MPI's: wherever they come from,
//! in a process that nobody prepared. What happens in memory is tested in `ompi/intercept`.

mod support;

use std::path::PathBuf;
use std::process::Command;

/// Where the program finds its objects.
fn folder() -> PathBuf {
    support::scratch().join("intercept-objects")
}

/// Builds an object for the program.
fn object(file: &str, source: &str, flags: &[&str]) -> PathBuf {
    let flags = [&["-shared", "-fPIC"], flags].concat();
    support::build(&format!("intercept-objects/{file}"), &format!("intercept/{source}"), &flags)
}

/// The program, linked in some way, without `mpirun`, and its objects.
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

/// Runs the program, and answers the lines that it printed.
fn run(command: &mut Command, argument: &str) -> Vec<String> {
    let run = support::finish(command.arg(argument)).assert_success();
    run.stdout.lines().map(str::to_owned).collect()
}

/// The object in which a caller's calls end, by the beginning of its name.
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
fn device_memory_is_packed_by_every_caller_of_a_program_that_is_bound_lazily() {
    packs_device_memory("lazy", LAZY);
}

#[test]
fn device_memory_is_packed_by_every_caller_of_a_program_whose_slots_are_protected() {
    packs_device_memory("protected", &["-Wl,-z,now", "-Wl,-z,relro"]);
}

#[test]
fn device_memory_is_packed_by_every_caller_of_a_program_at_fixed_addresses() {
    packs_device_memory("fixed", &["-fno-pie", "-no-pie", "-Wl,-z,now"]);
}

#[test]
fn a_profiling_tool_sees_the_calls() {
    let tool = object("libtool.so", "tool.c", &[]);
    let lines = run(program("lazy", LAZY).env("LD_PRELOAD", tool), "pack");
    // Those by Fortran's bindings, and by an address in MPI's library, pass by every tool.
    assert!(lines.contains(&"tool 4".to_owned()), "{lines:?}");
    for caller in CALLERS {
        assert!(lines.contains(&format!("packed {caller}")), "{caller}: {lines:?}");
    }
    assert_target(&lines, "during", "before", "libtool.so");
    assert_target(&lines, "during", "fortran", "mca_");
}

#[test]
fn the_parameter_leaves_calls_alone() {
    let lines = run(program("lazy", LAZY).env("OMPI_MCA_pml_cableway_intercept", "no"), "targets");
    for caller in ["address", "before", "later", "fortran"] {
        assert_target(&lines, "during", caller, "libmpi.so");
    }
}

#[test]
fn another_pml_leaves_calls_alone() {
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
    // It does not reach what is looked up in MPI's library itself.
    assert_target(&lines, "during", "address", "libmpi.so");
}
