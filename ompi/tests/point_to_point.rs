//! Messages between the ranks of one job, and between those of several.

mod support;

#[test]
fn neighbours_exchange_messages_of_every_size() {
    for ranks in 1..=3 {
        support::run_program(ranks, "ring", &[]);
    }
}

#[test]
fn requests_do_what_mpi_allows() {
    for ranks in 1..=3 {
        support::run_program(ranks, "requests", &[]);
    }
}

#[test]
fn derived_types_arrive_as_mpi_packs_them() {
    for ranks in 1..=2 {
        support::run_program(ranks, "types", &[]);
    }
}

#[test]
fn processes_of_several_jobs_meet() {
    for ranks in 1..=3 {
        support::run_program(ranks, "dynamic", &[]);
    }
}

#[test]
fn the_component_is_the_one_that_runs() {
    let run =
        support::finish(support::mpirun(2).args(["--mca", "pml_base_verbose", "10"]).arg(support::program("ring")))
            .assert_success();
    let said = run.stdout + &run.stderr;
    assert!(said.contains("selected cableway"), "{said}");
}
