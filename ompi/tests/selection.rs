//! Where the component cannot be used, Open MPI goes on with another PML, and one line says why. Where the job asks for it by
//! name, it ends.

mod support;

use std::process::Command;

const RANKS: u32 = 2;
const NOT_USED: &str = "cableway: not used, another pml takes its place: ";
const CANNOT_RUN: &str = "cableway: cannot run, and pml = cableway allows no other: ";
const BAD_VALUE: [&str; 3] = ["--mca", "pml_cableway_btl_sm_eager_limit", "much"];
const WHY_BAD: &str = "parameter 'btl_sm_eager_limit' cannot be 'much'";
/// A folder that is not there cannot have sockets.
const CANNOT_START: [&str; 3] = ["--mca", "pml_cableway_btl_sm_socket_folder", "/nonexistent/folder"];
const WHY_NOT_STARTED: &str = "a transport could not be set up: sm: listening for peers: No such file or directory";

/// How many processes tell the reason.
enum Told {
    ByEach,
    OncePerNode,
}

/// Runs the program, which checks that the given PML carries its messages. What was said of the component.
fn runs_under(pml: &str, options: &[&str], arguments: &[&str]) -> Vec<String> {
    let mut mpirun = support::mpirun_as_is(RANKS);
    let arguments = [&[pml], arguments].concat();
    let (finished, said) = support::run_apart(mpirun.args(options), RANKS, &support::program("selection"), &arguments);
    assert!(finished.status.success() && said.iter().all(|said| said.ends_with("done\n")), "{finished:?} {said:?}");
    // Open MPI's own transports may have something to say.
    said.iter().flat_map(|said| said.lines()).filter(|line| line.contains("cableway")).map(str::to_owned).collect()
}

fn falls_back(options: &[&str], arguments: &[&str], told: &Told, reason: &str) {
    let lines = runs_under("ob1", options, arguments);
    let expected = match told {
        Told::ByEach => RANKS as usize,
        Told::OncePerNode => 1,
    };
    assert_eq!(lines.len(), expected, "{lines:?}");
    for line in lines {
        assert!(line.contains(NOT_USED) && line.contains(reason), "{line}");
    }
}

#[test]
fn it_is_selected_where_no_pml_is_named() {
    assert_eq!(runs_under("cableway", &[], &[]), [""; 0]);
}

#[test]
fn another_pml_of_higher_priority_takes_over() {
    falls_back(&["--mca", "pml_cableway_priority", "1"], &[], &Told::OncePerNode, "");
}

#[test]
fn the_first_name_of_a_list_takes_over() {
    falls_back(&["--mca", "pml", "ob1,cableway"], &[], &Told::OncePerNode, "of pml = ob1,cableway");
}

#[test]
fn another_pml_takes_over_from_a_bad_value() {
    falls_back(&BAD_VALUE, &[], &Told::ByEach, WHY_BAD);
}

#[test]
fn another_pml_takes_over_where_the_engine_cannot_start() {
    falls_back(&CANNOT_START, &[], &Told::ByEach, WHY_NOT_STARTED);
}

#[test]
fn another_pml_takes_over_where_open_mpi_has_other_structures() {
    falls_back(&[], &["other-structures"], &Told::OncePerNode, "this is the cableway component for Open MPI ");
}

#[test]
fn nothing_is_said_where_it_is_not_wanted() {
    for pml in ["ob1", "^cableway"] {
        assert_eq!(runs_under("ob1", &["--mca", "pml", pml], &[]), [""; 0]);
    }
}

/// Of a job of one that asks for the component by name.
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
fn a_job_that_asks_for_it_by_name_ends() {
    ends(BAD_VALUE, WHY_BAD);
    ends(CANNOT_START, WHY_NOT_STARTED);
}

/// As where it was built for a version of which this one lacks symbols.
#[test]
fn a_file_that_cannot_be_loaded_is_left_out() {
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
