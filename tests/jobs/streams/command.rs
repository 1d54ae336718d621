//! `cableway pingpong --stream`.

use serde_json::Value;

use crate::support::{Driver, Finished, Test, cableway, finish, libdir_option, transports};

pub(crate) const TESTS: &[Test] = &[
    ("streams::the_command_checks_device_memory_in_every_mode", device_memory),
    ("streams::the_command_checks_every_pairing_of_memory", pairings),
    ("streams::the_command_says_what_moved_the_data", what_moved_the_data),
    ("streams::the_command_runs_a_kernel_between_messages", kernels),
    ("streams::the_command_measures_for_a_time", seconds),
    ("streams::the_command_refuses_what_means_nothing", refusals),
];

fn is_amd() -> bool {
    sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd
}

/// The modes that move data in a stream's order. Graphs are NVIDIA's.
fn modes() -> &'static [&'static str] {
    if is_amd() { &["calls", "prepared", "put", "late"] } else { &["calls", "prepared", "put", "late", "graph"] }
}

fn pingpong(arguments: &[&str]) -> Finished {
    let driver = Driver::find().folder;
    finish(cableway().arg("pingpong").args(arguments).arg(libdir_option()).arg(driver))
}

/// Returns the rows of a run in JSON.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let finished = pingpong(&[arguments, &["--format", "json"]].concat()).assert_success();
    finished.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

const DEVICES: [&str; 4] = ["--src", "device", "--dst", "device"];

/// The steps are more than a round has, and no multiple of it. Only processes of a node can use graphs.
fn device_memory() {
    for btl in &transports() {
        for mode in modes().iter().filter(|mode| **mode != "graph" || btl == "sm") {
            let stream = format!("--stream={mode}");
            // A thread moves what is empty.
            let mut expected = vec![0, 1, 8, 5000, 300 << 10];
            expected.drain(..usize::from(*mode == "graph"));
            let list = expected.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
            let arguments = ["--btl", btl, &stream, "--steps", "7", "--iterations", "24", "--sizes", &list];
            for check in [&["--check"][..], &[]] {
                let rows = rows(&[&arguments, &DEVICES[..], check].concat());
                let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_u64().expect("a size")).collect();
                assert_eq!(sizes, expected, "{btl} {mode}");
                for row in &rows {
                    assert_eq!((&row["stream"], &row["unit"]), (&Value::from(*mode), &Value::from("us")), "{row}");
                    assert!(row["value"].as_f64().is_some_and(|value| value > 0.0), "{row}");
                    let call = if *mode == "graph" { "launch_us" } else { "recv_call_us" };
                    assert!(row[call].as_f64().is_some_and(|value| value > 0.0), "{row}");
                    assert_eq!(row["check"] == "pass", !check.is_empty(), "{row}");
                }
            }
        }
    }
}

fn pairings() {
    let pairs =
        [("host", "host"), ("host", "device"), ("device", "shared"), ("pinned", "managed"), ("device", "pinned")];
    for mode in ["calls", "prepared", "put", "late"] {
        let stream = format!("--stream={mode}");
        for (src, dst) in pairs {
            let arguments = [&stream, "--src", src, "--dst", dst, "--check", "--steps", "5", "--iterations", "6"];
            let finished = pingpong(&[&arguments[..], &["--sizes", "8,70000"]].concat()).assert_success();
            assert!(finished.stdout.contains("Every message is checked"), "{finished:?}");
        }
        if mode == "put" {
            continue;
        }
        let blocks = ["--datatype", "vector:24:100:7", "--sizes", "168,5000", "--check", "--iterations", "6"];
        pingpong(&[&[&*stream], &DEVICES[..], &blocks].concat()).assert_success();
    }
}

fn what_moved_the_data() {
    let arguments = ["--btl", "sm", "--sizes", "8,100K", "--iterations", "20"];
    let streams = [&["--stream=prepared"], &arguments[..], &DEVICES].concat();
    let copied = [&streams[..], &["--set", "device_protocols=copy"]].concat();
    for (arguments, moved_by) in [(&streams, "streams"), (&copied, "thread")] {
        assert!(rows(arguments).iter().all(|row| row["moved_by"] == moved_by), "{arguments:?}");
    }
    let table = pingpong(&streams).assert_success().stdout;
    let header = table.lines().rfind(|line| line.starts_with('#')).unwrap_or_default();
    let titles = "# Size Latency (us) Send call (us) Recv call (us) 1 of 16 (us) Moved by";
    assert_eq!(header.split_whitespace().collect::<Vec<_>>(), titles.split(' ').collect::<Vec<_>>());
    assert!(table.contains("by prepared messages on a stream, 1000 steps together"), "{table}");
    if !is_amd() {
        // A graph contains no work of the thread.
        let graph = [&["--stream=graph"], &arguments[..], &DEVICES, &["--set", "device_protocols=copy"]].concat();
        assert_eq!(pingpong(&graph).code(), 1);
    }
}

/// The time one way contains the kernel, wherever it runs.
fn kernels() {
    let kernel = ["--btl", "sm", "--kernel", "3000", "--steps", "4", "--iterations", "8", "--sizes", "64"];
    if is_amd() {
        let refused = pingpong(&[&["--stream"], &kernel[..], &DEVICES].concat());
        assert!(refused.code() == 2 && refused.stderr.contains("leave --kernel out"), "{refused:?}");
        return;
    }
    for (mode, check) in [("calls", true), ("prepared", true), ("graph", true), ("host", false)] {
        let stream = format!("--stream={mode}");
        let check: &[&str] = if check { &["--check"] } else { &[] };
        let rows = rows(&[&[&*stream], &kernel[..], &DEVICES, check].concat());
        assert!(rows[0]["value"].as_f64().is_some_and(|value| value >= 3000.0), "{mode}: {rows:?}");
    }
}

/// Both ranks must make the same number of steps.
fn seconds() {
    for mode in modes() {
        let stream = format!("--stream={mode}");
        let arguments = [&*stream, "--btl", "sm", "--seconds", "0.05", "--steps", "10", "--sizes", "8,5000"];
        assert_eq!(rows(&[&arguments[..], &DEVICES].concat()).len(), 2, "{mode}");
    }
}

fn refusals() {
    for (arguments, text) in [
        (&["--stream", "--test", "put"][..], "the test put has no streams: leave --stream out"),
        (&["--stream", "--btl", "self"], "--stream=calls needs two processes"),
        (&["--stream=host", "--check"], "--stream=host checks no data"),
        (&["--stream=put", "--datatype", "vector:2:3:2"], "--stream=put moves one run of bytes"),
        (&["--stream=late", "--kernel", "10"], "--stream=late runs no kernel"),
        (&["--stream=graph", "--src", "device"], "add --src device --dst device"),
        (&["--kernel", "10"], "--stream"),
        (&["--steps", "10"], "--stream"),
        (&["--stream", "--kernel", "0"], "a number of microseconds"),
        (&["--stream", "--beside-devices"], "--beside-devices"),
    ] {
        let refused = pingpong(arguments);
        assert!(refused.code() == 2 && refused.stderr.contains(text), "{arguments:?}: {refused:?}");
    }
}
