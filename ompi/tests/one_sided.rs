//! One-sided operations on host memory: by Open MPI's own components, some of which send and receive messages, and by
//! Cableway's where these cannot create a window.

mod support;

/// The default components of `MPI_Win_allocate`: under 4.1 `osc/rdma` or shared memory.
#[test]
fn windows_work_with_default_components() {
    for ranks in 1..=3 {
        support::run_program(ranks, "one_sided", &[]);
    }
}

/// This component reads the tag of a sent message from the request, which no other component does.
#[test]
fn windows_work_over_messages() {
    if lacks_pt2pt() {
        return;
    }
    for ranks in 1..=3 {
        run(ranks, "pt2pt", &[], &["swaps"]);
    }
}

/// Not with one rank: 4.1 finds no transport for it.
#[test]
fn windows_work_over_stock_transports() {
    for ranks in 2..=3 {
        run(ranks, "rdma", &[], &[]);
    }
}

/// The other components are left out. Cableway creates the windows in host memory.
#[test]
fn windows_work_without_other_components() {
    for (ranks, kind) in OWN_WINDOWS {
        run(ranks, "cableway", &[], &["swaps", kind]);
    }
}

/// This component refuses a window once it is selected, in all processes.
#[test]
fn windows_work_where_the_selected_component_fails() {
    if lacks_pt2pt() {
        return;
    }
    for (ranks, kind) in OWN_WINDOWS {
        run(ranks, "cableway,pt2pt", &[("OMPI_MPI_THREAD_LEVEL", "3")], &["swaps", kind]);
    }
}

/// Numbers of ranks, and how the program gets the memory of its window.
const OWN_WINDOWS: [(u32, &str); 6] =
    [(1, "allocated"), (2, "allocated"), (3, "allocated"), (1, "created"), (2, "created"), (3, "created")];

fn lacks_pt2pt() -> bool {
    let lacks = support::major_version() >= 5;
    if lacks {
        support::skip("Open MPI 5.0 has no osc/pt2pt");
    }
    lacks
}

fn run(ranks: u32, components: &str, variables: &[(&str, &str)], arguments: &[&str]) {
    let mut mpirun = support::mpirun(ranks);
    mpirun.envs(variables.iter().copied()).args(["--mca", "osc", components]);
    mpirun.arg(support::program("one_sided")).args(arguments);
    support::finish(&mut mpirun).assert_success();
}
