//! The programs and how they are started.

use std::path::Path;

use crate::support::{Job, Test, file};

pub(crate) const TESTS: &[Test] = &[
    ("a_ring_in_c", || Job::new(4, "tests/programs/ring.c").succeeds()),
    ("a_job_without_a_launcher_has_one_process", || Job::new(0, "tests/programs/ring.c").succeeds()),
    ("windows_of_nonblocking_messages", || over_each_transport("tests/programs/window.c", 2)),
    ("wildcards_probes_and_truncated_messages", || over_each_transport("tests/programs/matching.c", 3)),
    ("wrong_arguments_are_refused", || Job::new(2, "tests/programs/mistakes.c").succeeds()),
    ("copies_and_parts_of_communicators", || Job::new(5, "tests/programs/communicators.c").succeeds()),
    ("datatypes_on_every_memory", || on_each_memory("tests/programs/types.c", 2)),
    ("device_messages", device_messages),
    ("movement_of_one", || Job::new(1, "tests/programs/movement.c").succeeds()),
    ("movement_on_every_memory", || on_each_memory("tests/programs/movement.c", 4)),
    ("reductions_of_every_type_by_every_operation", || on_each_memory("tests/programs/reductions.c", 3)),
    ("nonblocking_collectives", || on_each_memory("tests/programs/started.c", 3)),
    ("one_sided_operations", || on_each_memory_and_transport("tests/programs/one_sided.c", 3)),
    ("one_sided_operations_of_datatypes", || {
        on_each_memory_and_transport("tests/programs/one_sided_typed.c", 3);
    }),
    ("active_messages", || on_each_memory_and_transport("tests/programs/active.c", 3)),
    ("messages_on_streams", || {
        const MEMORY: [&[&str]; 2] = [&["host"], &["device"]];
        const OVER: [&[(&str, &str)]; 2] = [&[("CABLEWAY_BTL", "sm")], &[("CABLEWAY_BTL", "tcp")]];
        for (arguments, variables) in MEMORY.into_iter().flat_map(|memory| OVER.map(|variables| (memory, variables))) {
            Job { arguments, variables, ..Job::new(2, "tests/programs/streams.c") }.succeeds();
        }
    }),
    ("handlers_in_cpp", || over_each_transport("tests/programs/handlers.cc", 3)),
    ("threads", || over_each_transport("tests/programs/threads.c", 2)),
    ("a_rank_that_dies_or_leaves", a_rank_that_dies_or_leaves),
    ("a_forked_child", || over_each_transport("tests/programs/forked.c", 2)),
    ("owners_in_cpp", owners_in_cpp),
    ("the_example", the_example),
    ("the_examples_of_put_and_active_messages", the_examples_of_put_and_active_messages),
    ("the_example_of_streams", the_example_of_streams),
    ("the_program_of_the_documentation", the_program_of_the_documentation),
];

fn over_each_transport(source: &'static str, ranks: u32) {
    const OVER: [&[(&str, &str)]; 2] = [&[("CABLEWAY_BTL", "sm")], &[("CABLEWAY_BTL", "tcp")]];
    for variables in OVER {
        Job { variables, ..Job::new(ranks, source) }.succeeds();
    }
}

fn on_each_memory(source: &'static str, ranks: u32) {
    const MEMORY: [&[&str]; 4] = [&["host"], &["device"], &["library"], &["mixed"]];
    for arguments in MEMORY {
        Job { arguments, ..Job::new(ranks, source) }.succeeds();
    }
}

fn on_each_memory_and_transport(source: &'static str, ranks: u32) {
    const OVER: [&[(&str, &str)]; 2] = [&[("CABLEWAY_BTL", "sm")], &[("CABLEWAY_BTL", "tcp")]];
    const MEMORY: [&[&str]; 4] = [&["host"], &["device"], &["library"], &["mixed"]];
    for (variables, arguments) in OVER.into_iter().flat_map(|variables| MEMORY.map(|memory| (variables, memory))) {
        Job { arguments, variables, ..Job::new(ranks, source) }.succeeds();
    }
}

fn device_messages() {
    const MEMORY: [&[&str]; 2] = [&["device"], &["library"]];
    for arguments in MEMORY {
        let job = Job { arguments, ..Job::new(2, "tests/programs/device.c") };
        job.succeeds();
        Job { variables: &[("CABLEWAY_DEVICE_PROTOCOLS", "copy")], ..job }.succeeds();
    }
}

fn a_rank_that_dies_or_leaves() {
    for variables in [&[("CABLEWAY_BTL", "sm")], &[("CABLEWAY_BTL", "tcp")]] {
        const HOW: [&[&str]; 3] = [&["killed"], &["exits"], &["leaves"]];
        for arguments in HOW {
            let job = Job { arguments, variables, keep_going: true, ..Job::new(3, "tests/programs/dying.c") };
            let Some(finished) = job.run() else { return };
            // 128 and the signal's number.
            let code = if arguments == ["killed"] { 128 + 9 } else { 0 };
            assert_eq!((finished.status.code(), finished.done()), (Some(code), 2), "{arguments:?} {finished:#?}");
        }
    }
}

fn owners_in_cpp() {
    let Some(finished) = Job::new(3, "tests/programs/owned.cc").run() else { return };
    finished.assert_done(3);
    let refused = "refused: send of 1 bytes to rank 3, tag 0: invalid rank 3: there are 3 ranks";
    assert_eq!(finished.stdout.matches(refused).count(), 3, "{finished:#?}");
}

fn the_example() {
    let Some(finished) = Job::new(2, "examples/ping.c").run() else { return };
    assert!(finished.status.success() && finished.stdout.starts_with("8192 bytes there and back: "), "{finished:#?}");
    let Some(alone) = Job::new(1, "examples/ping.c").run() else { return };
    assert!(!alone.status.success() && alone.stderr.contains("start two processes"), "{alone:#?}");
}

fn the_examples_of_put_and_active_messages() {
    let Some(put) = Job::new(3, "examples/one_sided.c").run() else { return };
    let lines = ["rank 0 got 2 from rank 2", "rank 1 got 0 from rank 0", "rank 2 got 1 from rank 1"];
    assert!(put.status.success() && lines.iter().all(|line| put.stdout.contains(line)), "{put:#?}");
    assert!((0..3).all(|ticket| put.stdout.contains(&format!("has ticket {ticket}\n"))), "{put:#?}");
    let Some(device) = Job::new(2, "examples/one_sided_device.cc").run() else { return };
    assert!(device.status.success() && device.stdout.matches(" is done").count() == 2, "{device:#?}");
    let Some(active) = Job::new(3, "examples/active.c").run() else { return };
    let landed = (0..3).all(|last| active.stdout.contains(&format!("1048576 bytes landed, the last one is {last}\n")));
    assert!(active.status.success() && landed, "{active:#?}");
}

fn the_example_of_streams() {
    let Some(relay) = Job::new(2, "examples/stream.c").run() else { return };
    let right = "1000 steps, moved by the streams alone, 0 bytes wrong\n";
    assert!(relay.status.success() && relay.stdout.matches(right).count() == 2, "{relay:#?}");
}

/// The page's program is complete, and does what the page says.
fn the_program_of_the_documentation() {
    let page = std::fs::read_to_string(file("../docs/c.md")).expect("the page is there");
    let (_, program) = page.split_once("```c\n").expect("the page has a program");
    let (program, _) = program.split_once("```").expect("the program ends");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{}.c", std::process::id()));
    std::fs::write(&source, program).expect("cargo's folder for tests can be written");
    let finished = Job::new(3, &source.to_string_lossy()).run();
    let _ = std::fs::remove_file(&source);
    let Some(finished) = finished else { return };
    assert!(finished.status.success(), "{finished:#?}");
    assert_eq!(finished.stdout.matches(" of 3: the sum of all ranks is 3\n").count(), 3, "{finished:#?}");
}
