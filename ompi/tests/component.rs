//! How Open MPI finds, loads and queries the component.

mod support;

use std::process::Command;

#[test]
fn open_mpi_selects_the_component() {
    let run =
        support::finish(support::mpirun(2).args(["--mca", "pml_base_verbose", "10"]).arg(support::program("ring")))
            .assert_success();
    let said = run.stdout + &run.stderr;
    assert!(said.contains("selected cableway"), "{said}");
}

#[test]
fn all_names_load_one_object_that_stays() {
    let mut program = Command::new(support::program("one_state"));
    program.args(support::NAMES.iter().map(|name| support::components().join(name)));
    support::finish(&mut program).assert_success();
}

/// Copies have engines of their own, of which only the PML's runs.
#[test]
fn a_copied_object_is_reported_and_messages_pass() {
    let folder = support::scratch().join(format!("copies-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in support::NAMES {
        std::fs::copy(support::object(), folder.join(name)).unwrap();
    }
    let mut mpirun = support::mpirun_with(2, &folder);
    mpirun.args(["--mca", "pml", "cableway"]);
    let (finished, said) = support::run_apart(&mut mpirun, 2, &support::program("ring"), &[]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(finished.status.success(), "{finished:?} {said:?}");
    for said in said {
        assert_eq!(said.matches("replace them by links to it").count(), 1, "{said}");
    }
}

#[test]
fn every_test_program_compiles() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "c") {
            support::program(path.file_stem().unwrap().to_str().unwrap());
        }
    }
}

#[test]
fn ompi_info_lists_every_parameter_with_its_help() {
    let said = ompi_info();
    let rows = cableway_base::Parameters::ROWS;
    assert!(!rows.is_empty());
    for row in rows {
        assert!(said.contains(&format!(":pml_cableway_{}:value:", row.name)), "{}: {said}", row.name);
        let beginning = row.help.split([':', '\n']).next().unwrap();
        assert!(said.contains(beginning), "{}: '{beginning}'", row.name);
    }
    for name in ["priority", "verbose", "explain"] {
        assert!(said.contains(&format!(":pml_cableway_{name}:value:")), "{name}");
    }
}

#[test]
fn a_parameter_reaches_the_engine() {
    let small = explained(&["--mca", "pml_cableway_btl_sm_eager_limit", "1K"]);
    assert!(small.contains("rendezvous") && small.contains("# Over sm"), "{small}");
    let usual = explained(&[]);
    assert!(usual.contains("rendezvous"), "{usual}");
    assert_ne!(eager_rows(&small), eager_rows(&usual));
    let tcp = explained(&["--mca", "pml_cableway_btl", "self,tcp"]);
    assert!(tcp.contains("# Over tcp"), "{tcp}");
}

/// Returns what the component prints about its protocols in a job of two ranks.
fn explained(options: &[&str]) -> String {
    let mut command = support::mpirun(2);
    command.args(["--mca", "pml_cableway_explain", "1"]).args(options).arg(support::program("ring"));
    support::finish(&mut command).assert_success().stderr
}

fn eager_rows(explained: &str) -> Vec<String> {
    let rows = explained.lines().filter(|line| line.contains("fits the eager limit"));
    rows.filter_map(|line| Some(line.split_once("cableway:")?.1.to_owned())).collect()
}

#[test]
fn verbosity_is_a_parameter() {
    let said = |level| {
        let mut command = support::mpirun(2);
        command.args(["--mca", "pml_cableway_verbose", level]).arg(support::program("ring"));
        support::finish(&mut command).assert_success().stderr
    };
    assert!(said("1").contains("cableway: "));
    assert!(!said("0").contains("cableway: "));
}

#[test]
fn performance_variables_count_messages() {
    support::run_program(2, "variables", &[]);
}

#[test]
fn a_second_thread_reads_performance_variables_while_messages_pass() {
    support::run_program(2, "variables_beside", &[]);
}

fn ompi_info() -> String {
    let mut command = Command::new("ompi_info");
    support::clean(&mut command);
    command.env(format!("OMPI_MCA_{}", support::path_parameter()), support::component_path());
    command.args(["--param", "pml", "cableway", "--level", "9", "--parsable"]);
    support::finish(&mut command).assert_success().stdout
}
