//! MPI 4's sessions, which Open MPI supports from 5.0 on.

mod support;

#[test]
fn consecutive_sessions_work() {
    if support::major_version() < 5 {
        return support::skip("Open MPI 4.1 has no sessions");
    }
    // Open MPI starts once only in each. If 5.0.7 starts again under mpirun, a process stays in MPI_Session_init for ever in one
    // of 10 to 300 runs, with ob1 and alone, too: PMIx never tells it that all have come. That goes for a program that keeps
    // PMIx initialized, too.
    for ranks in 1..=3 {
        let finished = support::run_program(ranks, "sessions", &[]);
        assert_eq!(finished.stdout.matches("done").count(), ranks as usize, "{finished:?}");
    }
    // Without mpirun nobody must come. There are no communicators then.
    let mut alone = support::singleton(&support::program("sessions"));
    let finished = support::finish(alone.env("OMPI_MCA_pml", "cableway").arg("alone"));
    assert!(finished.assert_success().stdout.contains("done"));
}
