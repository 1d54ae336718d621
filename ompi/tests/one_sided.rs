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

/// No other component is there, or the other one cannot create a window of one process. Under 4.1 MPI then has no window
/// without Cableway.
#[test]
fn windows_work_where_no_other_component_creates_them() {
    for (components, ranks) in [("cableway", 1), ("cableway", 2), ("cableway", 3), ("cableway,rdma", 1)] {
        for kind in ["allocated", "created"] {
            let mut mpirun = support::mpirun(ranks);
            mpirun.args(["--mca", "osc", components]).arg(support::program("one_sided")).args(["swaps", kind]);
            support::finish(&mut mpirun).assert_success();
        }
    }
}
