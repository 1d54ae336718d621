//! If the component cannot be used, Open MPI uses another PML, and one line gives the reason. If the job requires the
//! component by name, the job ends.

mod support;

use std::process::Command;

const RANKS: u32 = 2;
const NOT_USED: &str = "cableway: not used, another pml takes its place: ";
const CANNOT_RUN: &str = "cableway: cannot run, and pml = cableway allows no other: ";
const BAD_VALUE: [&str; 3] = ["--mca", "pml_cableway_btl_sm_eager_limit", "much"];
const WHY_BAD: &str = "parameter 'btl_sm_eager_limit' cannot be 'much'";
/// Sockets cannot be created in a folder that does not exist.
const CANNOT_START: [&str; 3] = ["--mca", "pml_cableway_btl_sm_socket_folder", "/nonexistent/folder"];
const WHY_NOT_STARTED: &str = "a transport could not be set up: sm: listening for peers: No such file or directory";

/// The number of processes that log the reason.
enum LoggedBy {
    EachProcess,
    OneProcessOfANode,
}

/// Runs the program, which checks that the given PML is selected. Returns the lines about the component.
fn runs_under(pml: &str, options: &[&str], arguments: &[&str]) -> Vec<String> {
    let mut mpirun = support::mpirun_as_is(RANKS);
    let arguments = [&[pml], arguments].concat();
    let (finished, said) = support::run_apart(mpirun.args(options), RANKS, &support::program("selection"), &arguments);
    assert!(finished.status.success() && said.iter().all(|said| said.ends_with("done\n")), "{finished:?} {said:?}");
    // Ignore lines of Open MPI's own transports.
    said.iter().flat_map(|said| said.lines()).filter(|line| line.contains("cableway")).map(str::to_owned).collect()
}

fn falls_back(options: &[&str], arguments: &[&str], by: &LoggedBy, reason: &str) {
    let lines = runs_under("ob1", options, arguments);
    let expected = match by {
        LoggedBy::EachProcess => RANKS as usize,
        LoggedBy::OneProcessOfANode => 1,
    };
    assert_eq!(lines.len(), expected, "{lines:?}");
    for line in lines {
        assert!(line.contains(NOT_USED) && line.contains(reason), "{line}");
    }
}

#[test]
fn the_component_is_selected_by_default() {
    assert_eq!(runs_under("cableway", &[], &[]), [""; 0]);
}

#[test]
fn another_pml_of_higher_priority_takes_over() {
    falls_back(&["--mca", "pml_cableway_priority", "1"], &[], &LoggedBy::OneProcessOfANode, "");
}

#[test]
fn the_first_name_of_a_list_takes_over() {
    falls_back(&["--mca", "pml", "ob1,cableway"], &[], &LoggedBy::OneProcessOfANode, "of pml = ob1,cableway");
}

#[test]
fn another_pml_takes_over_from_a_bad_value() {
    falls_back(&BAD_VALUE, &[], &LoggedBy::EachProcess, WHY_BAD);
}

#[test]
fn another_pml_takes_over_if_the_engine_cannot_start() {
    falls_back(&CANNOT_START, &[], &LoggedBy::EachProcess, WHY_NOT_STARTED);
}

#[test]
fn another_pml_takes_over_under_another_version() {
    falls_back(
        &[],
        &["other-structures"],
        &LoggedBy::OneProcessOfANode,
        "this is the cableway component for Open MPI ",
    );
}

#[test]
fn excluding_the_component_logs_nothing() {
    for pml in ["ob1", "^cableway"] {
        assert_eq!(runs_under("ob1", &["--mca", "pml", pml], &[]), [""; 0]);
    }
}

/// Checks that a job of one rank that requires the component ends.
fn ends(options: [&str; 3], reason: &str) {
    let mut program = support::singleton(&support::program("selection"));
    let [_, parameter, value] = options;
    program.env("OMPI_MCA_pml", "cableway").env(format!("OMPI_MCA_{parameter}"), value);
    let finished = support::finish(program.arg("cableway"));
    assert!(!finished.status.success(), "{finished:?}");
    let lines: Vec<_> = finished.stderr.lines().filter(|line| line.contains(CANNOT_RUN)).collect();
    assert!(lines.len() == 1 && lines[0].contains(reason), "{finished:?}");
    assert!(!finished.stderr.contains("done"), "{finished:?}");
}

#[test]
fn a_job_that_requires_the_component_ends() {
    ends(BAD_VALUE, WHY_BAD);
    ends(CANNOT_START, WHY_NOT_STARTED);
}

/// As if the file was built for another version of Open MPI, with symbols that this one lacks.
#[test]
fn a_file_that_cannot_be_loaded_is_ignored() {
    let folder = support::scratch().join("components-of-another-version");
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written");
    let source = folder.join("component.c");
    std::fs::write(
        &source,
        "extern int ompi_of_another_version(void);\nint call(void) { return ompi_of_another_version(); }\n",
    )
    .expect("just made");
    let mut mpicc = Command::new("mpicc");
    mpicc.args(["-shared", "-fPIC", "-Wl,-z,now", "-o"]).arg(folder.join("mca_pml_cableway.so")).arg(&source);
    assert!(mpicc.status().expect("mpicc can be run").success());

    let mut program = support::singleton(&support::program("selection"));
    let path =
        support::component_path().replace(&support::components().display().to_string(), &folder.display().to_string());
    program.env(format!("OMPI_MCA_{}", support::path_parameter()), path);
    program.env("OMPI_MCA_mca_base_component_show_load_errors", "1");
    let finished = support::finish(program.arg("ob1")).assert_success();
    assert_eq!(finished.stderr.matches("ompi_of_another_version").count(), 1, "{finished:?}");
}
