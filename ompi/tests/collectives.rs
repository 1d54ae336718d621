//! Collectives on host and device memory, each result compared with what the program computes itself.
//!
//! By default the programs draw a part of all shapes. `CABLEWAY_TEST_WHOLE=1` runs all of them, which takes minutes.

mod support;

use std::process::Command;
use std::time::Duration;

/// The time limit of a run of all shapes. Only a hang takes so long.
const LIMIT: Duration = Duration::from_secs(840);

fn whole() -> bool {
    std::env::var_os("CABLEWAY_TEST_WHOLE").is_some_and(|value| value == "1")
}

/// Runs a program with a driver. Returns what it printed.
///
/// With an even number of ranks Cableway performs all collectives, else those after the ranks have agreed. The test of two
/// threads also has small ones stay with Open MPI's modules, because ranks share devices.
fn run(ranks: u64, name: &str, arguments: &[String]) -> String {
    let mut command = support::mpirun(u32::try_from(ranks).expect("a few ranks"));
    if ranks.is_multiple_of(2) {
        command.args(BY_CABLEWAY);
    } else if arguments.get(2).is_none_or(|threads| threads != "2") {
        command.args(["-x", "CABLEWAY_TEST_INTERNAL=1", "-x", "CABLEWAY_COLL_SHARED_LIMIT=0"]);
    }
    finish(&mut command, name, arguments)
}

const BY_CABLEWAY: [&str; 3] = ["--mca", "pml_cableway_coll_performer", "cableway"];

fn run_by_cableway(ranks: u64, name: &str) -> String {
    let mut command = support::mpirun(u32::try_from(ranks).expect("a few ranks"));
    finish(command.args(BY_CABLEWAY), name, &[])
}

fn finish(command: &mut Command, name: &str, arguments: &[String]) -> String {
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(support::program(name)).args(arguments);
    let run = support::finish_within(command, LIMIT).assert_success();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    run.stdout
}

/// Returns the number behind these words.
fn number(said: &str, words: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix(words)?.strip_prefix(": "));
    line.and_then(|line| line.trim().parse().ok()).unwrap_or_else(|| panic!("no '{words}' in:\n{said}"))
}

/// Checks that no case was left out.
fn assert_checked(said: &str, at_least: u64) {
    let checks = number(said, "checks");
    assert!(checks >= at_least, "{checks} checks, not {at_least}:\n{said}");
    println!("{checks} checks");
}

/// The part of the shapes that a run verifies.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    /// So many drawn shapes of each kind.
    Drawn(u64),
}

impl Part {
    /// More than three processes take too long for all shapes.
    fn new(ranks: u64, drawings: u64) -> Part {
        match (whole(), ranks) {
            (true, 1..=3) => Part::Whole,
            (true, _) => Part::Drawn(40),
            (false, _) => Part::Drawn(drawings),
        }
    }

    fn arguments(self) -> Vec<String> {
        match self {
            Part::Whole => vec!["whole".to_owned()],
            Part::Drawn(number) => vec!["sample".to_owned(), number.to_string()],
        }
    }
}

/// Types that every supported Open MPI has, multiplied by the operations of each.
const TYPES_WITH_OPERATIONS: u64 = 320;

fn reductions(ranks: u64) {
    let part = Part::new(ranks, if ranks == 3 { 8 } else { 2 });
    let said = run(ranks, "reductions", &part.arguments());
    let types = number(&said, "types with operations");
    assert!(types >= TYPES_WITH_OPERATIONS, "{said}");
    let shapes = match part {
        // Six collectives and MPI_Reduce_local: for each alignment, placement and count; all but the last in place or
        // not; one from every root. Then as many drawn ones as there are combinations of forms and placements.
        Part::Whole => 2 * 3 * 8 * (2 * (5 + ranks) + 1) + 7 * 18,
        Part::Drawn(number) => 7 * number,
    };
    assert_checked(&said, ranks * types * shapes);
}

fn movement(ranks: u64) {
    let part = Part::new(ranks, if ranks == 3 { 8 } else { 3 });
    let said = run(ranks, "movement", &part.arguments());
    // Ten collectives, half of them with a root, and five among neighbours. One of the former, and the latter, are never
    // in place. All are blocking, non-blocking, and persistent, which is started three times: for each alignment, count
    // and placement. Then drawn ones, and rounds of eight operations beside eight messages.
    let calls = 2 * 5 + (2 * 4 + 1) * ranks + 5;
    let (shapes, rounds) = match part {
        Part::Whole => (calls * 5 * 2 * 5 * 6 + 15 * 50, 200),
        Part::Drawn(number) => (15 * number, 4 * number),
    };
    assert_checked(&said, ranks * (6 * shapes + rounds * 16));
}

fn groups(ranks: u64) {
    let drawings = if whole() { 100 } else { 10 };
    let said = run(ranks, "groups", &[drawings.to_string()]);
    // All calls in two communicators of one process, and fourteen between each pair of groups.
    assert_checked(&said, ranks * drawings * (2 * 22 + (ranks - 1) * 2 * 14));
}

/// Some steps make another communicator instead of an operation.
fn random_with(ranks: u64, threads: u64) {
    let (count, seeds) = if whole() { (3000, 3) } else { (700, 1) };
    for seed in 1..=seeds {
        let said = run(ranks, "random_collectives", &[count, seed, threads].map(|number| number.to_string()));
        assert_checked(&said, ranks * threads * count * 17 / 20);
    }
}

fn random_collectives(ranks: u64) {
    random_with(ranks, 1);
}

fn random_collectives_of_two_threads(ranks: u64) {
    random_with(ranks, 2);
}

/// Five calls in three forms among the neighbours of eight topologies, four counts, three placements; persistent ones are
/// started three times. Then two operations at the same time.
///
/// Open MPI's own non-blocking ones mix up the two ways around a ring of one or two processes.
fn neighbors(ranks: u64) {
    let said = run_by_cableway(ranks, "neighbors");
    assert_checked(&said, ranks * 8 * (5 * (1 + 1 + 3) * 4 * 3 + 2));
}

/// Ten operations in three rounds; persistent ones are started three times.
fn freed(ranks: u64) {
    assert_checked(&run(ranks, "freed", &[]), ranks * 3 * (6 + 4 * 3));
}

/// Makes a test for each number of processes.
macro_rules! for_several_ranks {
    ($($function:ident),*) => {
        $(mod $function {
            #[test]
            fn in_one_process() {
                super::$function(1);
            }

            #[test]
            fn among_two_processes() {
                super::$function(2);
            }

            #[test]
            fn among_three_processes() {
                super::$function(3);
            }

            #[test]
            fn among_four_processes() {
                super::$function(4);
            }

            #[test]
            fn among_five_processes() {
                super::$function(5);
            }
        })*
    };
}

for_several_ranks!(
    reductions,
    movement,
    groups,
    freed,
    own_operations,
    neighbors,
    random_collectives,
    random_collectives_of_two_threads
);

#[test]
fn neighbors_agree() {
    for ranks in [1, 2, 3, 5] {
        let mut command = support::mpirun(ranks);
        finish(&mut command, "agreeing_neighbors", &[]);
    }
}

#[test]
fn groups_agree() {
    for ranks in [2, 3, 5] {
        let mut command = support::mpirun(ranks);
        finish(&mut command, "agreeing_groups", &[]);
    }
}

/// Each choice of an algorithm is a line. Later calls of the same size have no new one.
#[test]
fn choices_of_algorithms_are_explained() {
    let mut command = support::mpirun(3);
    command.args(BY_CABLEWAY).args(["--mca", "pml_cableway_explain", "1"]);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(support::program("reductions")).args(["sample", "1"]);
    let said = support::finish_within(&mut command, LIMIT).assert_success().stderr;
    let of = |operation: &str| said.lines().filter(|line| line.contains(operation)).collect::<Vec<_>>();
    for operation in ["allreduce of ", "reduce of "] {
        let lines = of(operation);
        assert!(!lines.is_empty(), "no '{operation}' in:\n{said}");
        assert!(lines.iter().all(|line| line.contains("3 ranks on 1 node: ") && line.contains(" us; not chosen: ")));
        let distinct: std::collections::HashSet<&str> = lines.iter().copied().collect();
        assert_eq!(distinct.len(), lines.len(), "a choice was made twice:\n{said}");
    }
}

/// Seven calls on two types, twice: in three forms, in place or not (`MPI_Reduce_local` has one) on six counts, cut into
/// small pieces; and on long data, cut into the usual ones.
fn own_operations(ranks: u64) {
    let small = ["-x", "CABLEWAY_TEST_INTERNAL=1", "-x", "CABLEWAY_COLL_SEGMENT=4K"];
    // Pieces of 4 KiB and 1 MiB, of elements of 8 bytes.
    let cases: [(&[&str], &[&str], u64, u64); 2] =
        [(&small, &["512"], 2 * 2 * 6 * (6 * 3 * 2 + 1), 512), (&[], &["long", "400001"], 2 * 2 * 7, 131_072)];
    for (settings, arguments, checks, piece) in cases {
        let mut command = support::mpirun(u32::try_from(ranks).expect("a few ranks"));
        command.args(BY_CABLEWAY).args(settings);
        let said =
            finish(&mut command, "own_operations", &arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_checked(&said, ranks * checks);
        assert_eq!(number(&said, "longest piece"), piece, "{said}");
    }
}

/// Six calls in four rounds, by Open MPI's modules. The memory of the first round's copies serves the later ones.
#[test]
fn host_copies_keep_their_memory() {
    for ranks in [1, 2, 3] {
        let mut command = support::mpirun(ranks);
        command.args(["--mca", "pml_cableway_coll_performer", "mpi"]);
        assert_checked(&finish(&mut command, "host_copies", &[]), u64::from(ranks) * 4 * 6);
    }
}

/// Returns `mpirun` with ranks that have a device each, if the driver is simulated, and perform collectives by an algorithm.
fn on_own_devices(ranks: u32, algorithm: &str) -> Command {
    let mut command = support::mpirun(ranks);
    command.args(BY_CABLEWAY).args(["-x", "CABLEWAY_TEST_INTERNAL=1", "-x"]);
    command.arg(format!("CABLEWAY_COLL_ALGORITHM={algorithm}")).env("SIM_CUDA_DEVICES", "4");
    command
}

/// Returns `mpirun` whose ranks access each other's memory.
fn by_peer_access(ranks: u32) -> Command {
    on_own_devices(ranks, "peer_access")
}

/// All calls that move data. Those on little data go through slots.
#[test]
fn movement_through_slots() {
    for ranks in [2, 3, 4] {
        let arguments = Part::new(ranks.into(), 4).arguments();
        let said = finish(&mut on_own_devices(ranks, "one_shot"), "movement", &arguments);
        assert_checked(&said, u64::from(ranks) * 6 * 15 * 4);
    }
}

/// All calls that move data, with equal and different types on the two sides. Memory is mapped when it is first used.
#[test]
fn movement_by_peer_access() {
    for ranks in [2, 3, 4] {
        let mut command = by_peer_access(ranks);
        let arguments = Part::new(ranks.into(), 4).arguments();
        let said = finish(command.args(["-x", "CABLEWAY_DEVICE_IPC_OPEN_SIZE=1"]), "movement", &arguments);
        assert_checked(&said, u64::from(ranks) * 6 * 15 * 4);
    }
}

/// Seven exchanges in six rounds. The program checks that messages bring no data. While a revoked kernel waits for room on
/// the device, messages would. So a kernel that starts late on a busy machine is not revoked.
#[test]
fn blocks_at_regular_distances_move_by_peer_access() {
    for ranks in [2, 3, 4] {
        let mut command = by_peer_access(ranks);
        let said = finish(command.args(["-x", "CABLEWAY_DEVICE_KERNEL_PATIENCE=20s"]), "peer_blocks", &[]);
        match said.lines().find(|line| line.starts_with("SKIPPED")) {
            Some(skipped) => println!("{skipped}"),
            None => assert_checked(&said, u64::from(ranks) * 6 * 7),
        }
    }
}

/// Four calls or one in each of 24 communicators. In a quarter of these only the sender and the last process have data.
#[test]
fn nobody_waits_for_a_process_that_has_freed_the_communicator() {
    for ranks in [2, 3, 4] {
        let mut command = support::mpirun(ranks);
        command.env("CABLEWAY_CUDA_LIBDIR", support::driver());
        assert_checked(&finish(&mut command, "early_leave", &[]), (3 * u64::from(ranks) + 2) * 3 * (4 + 1));
    }
}

/// `mpirun` ends a job if a rank dies, unless it is configured otherwise.
#[test]
fn a_collective_with_a_killed_rank_fails() {
    for how in ["operation", "started", "stopped"] {
        let mut command = support::mpirun(3);
        command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg("--enable-recovery");
        if how == "stopped" {
            // Open MPI's own operation would wait for rank 0.
            command.args(BY_CABLEWAY);
        }
        let program = support::program("killed_in_collective");
        // mpirun loses the last lines of processes that end beside one that died.
        let (run, said) = support::run_apart(&mut command, 3, &program, &[how]);
        for rank in [0, 2] {
            assert!(said[rank].contains("failed with an error"), "{how}, rank {rank}: {run:?} {said:?}");
        }
        assert!(!said[1].contains("does not hold"), "{how}: {run:?} {said:?}");
    }
}
