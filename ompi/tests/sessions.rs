//! MPI 4's sessions, which Open MPI supports from 5.0 on.

mod support;

#[test]
fn consecutive_sessions_work() {
    if support::major_version() < 5 {
        return support::skip("Open MPI 4.1 has no sessions");
    }
    for ranks in 1..=3 {
        // Several processes start Open MPI once only. If 5.0.7 starts again, one of them stays in MPI_Session_init for ever
        // in one of 50 to 300 runs, with ob1, too: PMIx never tells it that all have come.
        let whole: &[&str] = if ranks == 1 { &[] } else { &["whole"] };
        let finished = support::run_program(ranks, "sessions", whole);
        assert_eq!(finished.stdout.matches("done").count(), ranks as usize, "{finished:?}");
    }
}
