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
    if support::major_version() >= 5 {
        support::skip("Open MPI 5.0 has no osc/pt2pt");
        return;
    }
    for ranks in 1..=3 {
        let mut mpirun = support::mpirun(ranks);
        mpirun.args(["--mca", "osc", "pt2pt"]).arg(support::program("one_sided")).arg("swaps");
        support::finish(&mut mpirun).assert_success();
    }
}

/// Not with one rank: 4.1 finds no transport for it.
#[test]
fn windows_work_over_stock_transports() {
    for ranks in 2..=3 {
        let mut mpirun = support::mpirun(ranks);
        mpirun.args(["--mca", "osc", "rdma"]).arg(support::program("one_sided"));
        support::finish(&mut mpirun).assert_success();
    }
}

/// The other components are left out. Cableway creates the windows in host memory.
#[test]
fn windows_work_without_other_components() {
    for ranks in 1..=3 {
        assert_own_windows_work(ranks, "cableway", &[]);
    }
}

/// This component refuses a window once it is selected, in all processes.
#[test]
fn windows_work_where_the_selected_component_fails() {
    if support::major_version() >= 5 {
        support::skip("Open MPI 5.0 has no osc/pt2pt");
        return;
    }
    for ranks in 1..=3 {
        assert_own_windows_work(ranks, "cableway,pt2pt", &[("OMPI_MPI_THREAD_LEVEL", "3")]);
    }
}

fn assert_own_windows_work(ranks: u32, components: &str, variables: &[(&str, &str)]) {
    for kind in ["allocated", "created"] {
        let mut mpirun = support::mpirun(ranks);
        mpirun.envs(variables.iter().copied()).args(["--mca", "osc", components]);
        mpirun.arg(support::program("one_sided")).args(["swaps", kind]);
        support::finish(&mut mpirun).assert_success();
    }
}
