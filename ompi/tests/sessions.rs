//! MPI 4's sessions, which Open MPI supports from 5.0 on.

mod support;

#[test]
fn consecutive_sessions_work() {
    if support::major_version() < 5 {
        return support::skip("Open MPI 4.1 has no sessions");
    }
    for ranks in 1..=3 {
        let finished = support::run_program(ranks, "sessions", &[]);
        assert_eq!(finished.stdout.matches("done").count(), ranks as usize, "{finished:?}");
    }
}
