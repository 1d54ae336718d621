//! `cableway run`: exit codes, signals, processes, input and output.

use std::process::Command;

use rustix::process::Signal;

use crate::support::{
    Running, Test, eventually, finish, finish_with_input, job, long_sleep, on_terminal, processes_with, shell_job,
    skip, start,
};

pub(crate) const TESTS: &[Test] = &[
    ("launcher::the_exit_code_is_that_of_the_first_failure", the_exit_code_is_that_of_the_first_failure),
    ("launcher::programs_that_cannot_start_are_errors", programs_that_do_not_start),
    ("launcher::a_failure_ends_the_other_ranks", a_failure_ends_the_other_ranks),
    ("launcher::ranks_that_ignore_sigterm_are_killed", ranks_that_ignore_sigterm_are_killed),
    ("launcher::keep_going_lets_survivors_finish", keep_going_lets_survivors_finish),
    ("launcher::signals_reach_every_rank", signals_reach_every_rank),
    ("launcher::a_second_interrupt_kills_the_ranks", a_second_interrupt_kills),
    ("launcher::stopping_the_launcher_stops_the_ranks", stop_and_continue),
    ("launcher::ranks_die_with_a_killed_launcher", ranks_die_with_a_killed_launcher),
    ("launcher::no_process_of_a_finished_rank_remains", no_process_of_a_finished_rank_remains),
    ("launcher::tagged_lines_are_never_split", tagged_lines_are_never_split),
    ("launcher::output_is_untouched_by_default", output_is_untouched_by_default),
    ("launcher::input_goes_to_rank_0", input_goes_to_rank_0),
    ("launcher::a_terminal_is_read_for_rank_0", a_terminal_is_read_for_rank_0),
    ("launcher::each_rank_is_bound_to_its_own_core", each_rank_is_bound_to_its_own_core),
    ("launcher::hangup_stays_ignored_under_nohup", hangup_stays_ignored_under_nohup),
];

fn the_exit_code_is_that_of_the_first_failure() {
    assert_eq!(finish(&mut shell_job(3, &[], "exit 0")).code(), 0);
    let finished = finish(&mut shell_job(3, &[], "[ $CABLEWAY_JOB_RANK != 1 ] || exit 42"));
    assert_eq!(finished.code(), 42);
    assert!(finished.stderr.contains("rank 1 of 3 ended: exit code 42"), "{finished:?}");
    let finished = finish(&mut shell_job(2, &[], "[ $CABLEWAY_JOB_RANK = 0 ] || kill -SEGV $$"));
    assert_eq!(finished.code(), 128 + 11);
    assert!(finished.stderr.contains("SIGSEGV"), "{finished:?}");
}

fn programs_that_do_not_start() {
    let finished = finish(job(2, &[]).arg("/no/such/program"));
    assert_eq!(finished.code(), 127);
    assert!(finished.stderr.contains("'/no/such/program'"), "{finished:?}");
    assert_eq!(finish(job(2, &[]).arg("/")).code(), 126);
}

fn a_failure_ends_the_other_ranks() {
    let sleep = long_sleep();
    let script = format!("if [ $CABLEWAY_JOB_RANK = 2 ]; then exit 7; else sleep {sleep}; fi");
    assert_eq!(finish(&mut shell_job(4, &[], &script)).code(), 7);
    assert_gone(&sleep);
}

fn ranks_that_ignore_sigterm_are_killed() {
    let sleep = long_sleep();
    let script = format!("trap '' TERM; [ $CABLEWAY_JOB_RANK = 0 ] && exit 3; sleep {sleep} & wait; sleep {sleep}");
    assert_eq!(finish(&mut shell_job(2, &["--grace", "0.2"], &script)).code(), 3);
    assert_gone(&sleep);
}

fn keep_going_lets_survivors_finish() {
    let script = "if [ $CABLEWAY_JOB_RANK = 0 ]; then kill -KILL $$; fi; sleep 0.5; echo survived $CABLEWAY_JOB_RANK";
    let finished = finish(&mut shell_job(3, &["--keep-going"], script));
    assert_eq!(finished.code(), 137);
    assert_eq!(finished.stdout.lines().filter(|line| line.starts_with("survived")).count(), 2, "{finished:?}");
}

/// Starts a job of shells that sleep, and waits until all sleep. `prepare` is run by each shell before.
fn sleepers(ranks: u32, prepare: &str, then: &str) -> (Running, String) {
    let sleep = long_sleep();
    // A trap may run before the shell waits. It sets `caught`, or nothing would interrupt the wait.
    let script = format!("{prepare}\nsleep {sleep} & \n[ -n \"$caught\" ] || wait $!\n{then}");
    let running = start(&mut shell_job(ranks, &[], &script));
    assert!(eventually(|| asleep(&sleep) == ranks as usize), "the ranks do not start");
    (running, sleep)
}

/// Returns the number of processes that sleep for this time.
fn asleep(sleep: &str) -> usize {
    processes_with(sleep).iter().filter(|(pid, _)| is_sleep(*pid)).count()
}

fn is_sleep(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|command| command.starts_with(b"sleep\0"))
}

fn signals_reach_every_rank() {
    for (signal, name) in [(Signal::USR1, "USR1"), (Signal::HUP, "HUP"), (Signal::TERM, "TERM"), (Signal::INT, "INT")] {
        let prepare = format!("trap 'echo {name} $CABLEWAY_JOB_RANK; exit 0' {name}");
        let (running, sleep) = sleepers(3, &prepare, "");
        running.signal(signal);
        let finished = running.finish();
        assert_eq!(finished.code(), 0);
        let mut lines: Vec<_> = finished.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, [0, 1, 2].map(|rank| format!("{name} {rank}")));
        assert_gone(&sleep);
    }
    let (running, _) = sleepers(2, "", "");
    running.signal(Signal::INT);
    assert_eq!(running.finish().code(), 130);
}

fn a_second_interrupt_kills() {
    let caught = long_sleep();
    let (running, sleep) = sleepers(2, "trap 'echo caught; caught=yes' INT", &format!("sleep {caught}"));
    running.signal(Signal::INT);
    assert!(eventually(|| asleep(&caught) == 2), "the ranks do not receive the first interrupt");
    running.signal(Signal::INT);
    let finished = running.finish();
    assert_eq!(finished.code(), 137, "{finished:?}");
    assert_eq!(finished.stdout.matches("caught").count(), 2);
    assert_gone(&sleep);
}

fn stop_and_continue() {
    let (running, sleep) = sleepers(2, "", "");
    let launcher = running.pid().as_raw_nonzero().get() as u32;
    let all = |states: &[char]| {
        let launcher = std::fs::read_to_string(format!("/proc/{launcher}/stat")).unwrap_or_default();
        let launcher = launcher.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        launcher.is_some_and(|state| states.contains(&state))
            && processes_with(&sleep).iter().filter(|(pid, _)| is_sleep(*pid)).all(|(_, state)| states.contains(state))
    };
    running.signal(Signal::TSTP);
    assert!(eventually(|| all(&['T'])), "{:?}", processes_with(&sleep));
    running.signal(Signal::CONT);
    assert!(eventually(|| all(&['S', 'R'])), "{:?}", processes_with(&sleep));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 143);
}

fn ranks_die_with_a_killed_launcher() {
    let sleep = long_sleep();
    let running = start(job(3, &[]).args(["sleep", &sleep]));
    assert!(eventually(|| asleep(&sleep) == 3));
    running.signal(Signal::KILL);
    running.finish();
    assert_gone(&sleep);
    // Processes that the ranks started end, too, even if a rank has ended already or ignores signals.
    let (running, sleep) = sleepers(3, "trap '' TERM HUP INT", "");
    running.signal(Signal::KILL);
    running.finish();
    assert_gone(&sleep);
}

/// A killed process may exist for a moment.
fn assert_gone(marker: &str) {
    assert!(eventually(|| processes_with(marker).is_empty()), "{:?}", processes_with(marker));
}

fn no_process_of_a_finished_rank_remains() {
    let sleep = long_sleep();
    finish(&mut shell_job(2, &["--tag-output"], &format!("sleep {sleep} & exit 0"))).assert_success();
    assert_gone(&sleep);
}

fn tagged_lines_are_never_split() {
    let script =
        "i=0; while [ $i -lt 300 ]; do printf a; printf '%s\\n' bc; echo err >&2; i=$((i+1)); done; printf end";
    let finished = finish(&mut shell_job(4, &["--tag-output"], script)).assert_success();
    for rank in 0..4 {
        for (text, output, times) in
            [("abc", &finished.stdout, 300), ("end", &finished.stdout, 1), ("err", &finished.stderr, 300)]
        {
            let line = format!("[{rank}] {text}");
            assert_eq!(output.lines().filter(|found| *found == line).count(), times, "{line}");
        }
    }
    assert_eq!(finished.stdout.lines().count(), 4 * 301);
}

fn output_is_untouched_by_default() {
    let finished = finish(&mut shell_job(2, &[], "[ $CABLEWAY_JOB_RANK = 1 ] || printf 'no newline'"));
    assert_eq!(finished.assert_success().stdout, "no newline");
}

fn input_goes_to_rank_0() {
    let mut command = shell_job(3, &["--tag-output"], "while read line; do echo got $line; done");
    let finished = finish_with_input(&mut command, "one\ntwo\n").assert_success();
    assert_eq!(finished.stdout, "[0] got one\n[0] got two\n");
}

/// Ranks are not in the terminal's foreground group, so a read would stop them.
fn a_terminal_is_read_for_rank_0() {
    let mut cat = job(2, &["--tag-output"]);
    cat.args(["head", "-n", "1"]);
    let Some(mut command) = on_terminal(&cat) else { return };
    let finished = finish_with_input(&mut command, "typed\n").assert_success();
    assert!(finished.stdout.contains("[0] typed"), "{finished:?}");
}

fn each_rank_is_bound_to_its_own_core() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return skip("one processor: there is nothing to bind to");
    }
    let finished = finish(&mut shell_job(2, &["--bind", "core"], "grep Cpus_allowed_list /proc/self/status"));
    let lists: Vec<_> = finished.stdout.lines().collect();
    assert!(lists.len() == 2 && lists[0] != lists[1], "{finished:?}");
    let many = (cores * 2 + 1) as u32;
    let finished = finish(&mut shell_job(many, &["--bind", "core"], "true")).assert_success();
    assert!(finished.stderr.contains("ranks are not bound"), "{finished:?}");
}

fn hangup_stays_ignored_under_nohup() {
    let inner = shell_job(1, &[], "grep SigIgn /proc/self/status");
    let mut command = Command::new("nohup");
    command.arg(inner.get_program()).args(inner.get_args());
    let finished = finish(&mut command).assert_success();
    let mask = finished.stdout.split_whitespace().nth(1).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    assert!(mask.is_some_and(|mask| mask & 1 == 1), "{finished:?}");
}
