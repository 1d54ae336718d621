//! `cableway pingpong`, over every transport and kind of memory.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Driver, Finished, Test, cableway, finish, job, on_terminal, skip, transports};

pub(crate) const TESTS: &[Test] = &[
    ("pingpong::tables_have_the_osu_format", tables_are_those_of_osu),
    ("pingpong::progress_is_shown_only_on_terminals", progress_is_shown_on_terminals_only),
    ("pingpong::every_test_runs_over_every_transport", every_test_over_every_transport),
    ("pingpong::json_has_one_object_per_line", json_is_one_object_a_line),
    ("pingpong::results_name_the_transport", results_name_the_transport),
    ("pingpong::csv_and_plot_are_written", csv_and_plot),
    ("pingpong::data_is_checked_over_every_transport", checked_over_every_transport),
    ("pingpong::puts_gets_and_active_messages_are_checked", puts_gets_and_active_messages),
    ("pingpong::windows_of_threads_are_timed", rates_of_threads),
    ("pingpong::it_runs_under_mpirun", within_jobs_of_others),
    ("pingpong::wrong_jobs_are_refused", wrong_jobs_are_refused),
    ("pingpong::irregular_blocks_are_copied_between_devices", irregular_blocks_between_devices),
    ("pingpong::every_pairing_of_device_memory_works", device_memory_in_every_pairing),
    ("pingpong::seconds_replace_iterations", time_in_place_of_iterations),
    ("pingpong::host_memory_beside_devices_is_timed", host_memory_beside_devices),
    ("pingpong::mapped_device_memory_is_right", mapped_device_memory),
    ("pingpong::stale_device_data_is_found", stale_device_data_is_found),
    ("pingpong::the_copy_protocol_is_always_available", copy_protocol_is_always_there),
];

fn transports_and_self() -> Vec<String> {
    let mut all = transports();
    all.push("self".to_owned());
    all
}

fn pingpong(arguments: &[&str]) -> Finished {
    finish(cableway().arg("pingpong").args(arguments))
}

fn rows(output: &str) -> Vec<(u64, f64)> {
    let lines = output.lines().filter(|line| !line.starts_with('#'));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.map(|fields| (fields[0].parse().expect("a size"), fields[1].parse().expect("a value"))).collect()
}

fn sizes(output: &str) -> Vec<u64> {
    rows(output).into_iter().map(|(size, _)| size).collect()
}

fn tables_are_those_of_osu() {
    let finished = pingpong(&["--sizes", "1..64", "--iterations", "20"]).assert_success();
    let header = finished.stdout.lines().rfind(|line| line.starts_with('#')).unwrap_or_default();
    assert_eq!(header.split_whitespace().collect::<Vec<_>>(), ["#", "Size", "Latency", "(us)"]);
    assert_eq!(sizes(&finished.stdout), [1, 2, 4, 8, 16, 32, 64]);
    assert!(rows(&finished.stdout).iter().all(|&(_, value)| value > 0.0));
}

fn progress_is_shown_on_terminals_only() {
    let mut command = cableway();
    command.args(["pingpong", "--sizes", "8,16", "--iterations", "5"]);
    assert_eq!(finish(&mut command).assert_success().stderr, "");
    let Some(mut command) = on_terminal(&command) else { return };
    // `script` provides the terminal. Its own input stays open meanwhile.
    let finished = finish(&mut command).assert_success();
    assert!(finished.stdout.contains("1/2"), "{finished:?}");
    assert_eq!(finished.stdout.matches("Latency (us)").count(), 1, "{finished:?}");
}

fn every_test_over_every_transport() {
    for btl in &transports_and_self() {
        for test in ["latency", "bandwidth", "bidirectional", "message-rate"] {
            let arguments =
                ["--btl", btl, "--test", test, "--sizes", "0,1,5000,100K,2M", "--iterations", "3", "--window", "10"];
            let finished = pingpong(&arguments).assert_success();
            assert_eq!(sizes(&finished.stdout), [0, 1, 5000, 100 << 10, 2 << 20], "{btl} {test}");
            assert!(finished.stdout.contains(&format!("{test} over {btl}")), "{finished:?}");
        }
    }
}

fn json_is_one_object_a_line() {
    let finished =
        pingpong(&["--format", "json", "--sizes", "8,16", "--iterations", "5", "--btl", "sm"]).assert_success();
    let objects: Vec<Value> =
        finished.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect();
    for (object, size) in objects.iter().zip([8, 16]) {
        let value = object["value"].as_f64().expect("the value is a number");
        let expected = serde_json::json!({
            "test": "latency", "btl": "sm", "src": "host", "dst": "host", "size": size, "value": value, "unit": "us"
        });
        assert_eq!(*object, expected);
    }
    assert_eq!(objects.len(), 2);
    let start = r#"{"test":"latency","btl":"sm","src":"host","dst":"host","size":8,"value":"#;
    assert!(finished.stdout.starts_with(start), "{finished:?}");
}

/// Without --btl, results name the transport that was used.
fn results_name_the_transport() {
    for btl in &transports() {
        let set = format!("btl={btl}");
        let finished =
            pingpong(&["--format", "csv", "--sizes", "8", "--iterations", "5", "--set", &set]).assert_success();
        assert!(finished.stdout.contains(&format!("\nlatency,{btl},host,host,8,")), "{finished:?}");
    }
}

fn csv_and_plot() {
    let file = std::env::temp_dir().join(format!("cableway-test-{}.svg", std::process::id()));
    let plot = file.to_string_lossy();
    let arguments =
        ["--format", "csv", "--sizes", "1..1K", "--iterations", "5", "--test", "bandwidth", "--plot", &plot];
    let finished = pingpong(&arguments).assert_success();
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(lines[0], "test,btl,src,dst,size,value,unit");
    assert_eq!(lines.len(), 1 + 11);
    assert!(lines[1].starts_with("bandwidth,sm,host,host,1,") && lines[1].ends_with(",MB/s"), "{finished:?}");
    let drawing = std::fs::read_to_string(&file).expect("the drawing was written");
    let _ = std::fs::remove_file(&file);
    assert!(drawing.starts_with("<svg") && drawing.contains("Bandwidth (MB/s)"), "{drawing}");
}

fn checked_over_every_transport() {
    for btl in &transports_and_self() {
        for test in ["latency", "bidirectional", "message-rate"] {
            let arguments =
                ["--btl", btl, "--test", test, "--check", "--sizes", "0..4M", "--iterations", "2", "--window", "8"];
            let finished = pingpong(&arguments).assert_success();
            assert!(finished.stdout.contains("Every message is checked"), "{finished:?}");
        }
        let arguments =
            ["--btl", btl, "--check", "--datatype", "vector:24:100:7", "--sizes", "1..1M", "--iterations", "2"];
        let finished = pingpong(&arguments).assert_success();
        assert!(sizes(&finished.stdout).iter().all(|size| size % (24 * 7) == 0), "{finished:?}");
    }
}

fn puts_gets_and_active_messages() {
    let driver = Driver::find();
    for (btl, test) in transports().iter().flat_map(|btl| ["put", "get", "am"].map(|test| (btl, test))) {
        let arguments = ["--btl", btl, "--test", test, "--sizes", "0,1,8K,100K,2M", "--iterations", "4"];
        let finished = pingpong(&arguments).assert_success();
        assert_eq!(sizes(&finished.stdout), [0, 1, 8 << 10, 100 << 10, 2 << 20], "{btl} {test}");
        let title = format!("{test} over {btl}");
        assert!(finished.stdout.contains(&title) && finished.stdout.contains("Latency (us)"), "{finished:?}");
        for [src, dst] in [["host", "host"], ["device", "device"], ["host", "device"], ["device", "managed"]] {
            let mut arguments = arguments.to_vec();
            arguments.extend(["--src", src, "--dst", dst, "--check"]);
            let finished = device_pingpong(&driver, &arguments).assert_success();
            assert!(finished.stdout.contains("Every message is checked"), "{finished:?}");
            assert_eq!(sizes(&finished.stdout).len(), 5, "{btl} {test} {src} {dst}");
            if test == "am" {
                continue;
            }
            for (layout, side) in [("vector:64:256:16", "both"), ("indexed:8:500:3", "src"), ("indexed:8:500:3", "dst")]
            {
                let mut arguments = vec!["--btl", btl, "--test", test, "--src", src, "--dst", dst, "--check"];
                arguments.extend([
                    "--datatype",
                    layout,
                    "--datatype-of",
                    side,
                    "--sizes",
                    "1,100K,1M",
                    "--iterations",
                    "3",
                ]);
                let finished = device_pingpong(&driver, &arguments).assert_success();
                assert!(finished.stdout.contains(layout), "{finished:?}");
            }
        }
    }
    for (arguments, text) in [
        (&["--test", "put", "--btl", "self"][..], "the test put needs two processes"),
        (&["--test", "am", "--datatype", "vector:2:3:2"], "moves one run of bytes: leave --datatype out"),
        (&["--test", "get-rate", "--check"], "the test get-rate checks no data"),
        (&["--test", "latency", "--threads", "2"], "the test latency has one thread: leave --threads out"),
        (&["--test", "put", "--workers"], "the test put has one thread: leave --workers out"),
    ] {
        let refused = pingpong(arguments);
        assert_eq!(refused.code(), 2);
        assert!(refused.stderr.contains(text), "{refused:?}");
    }
}

/// Windows of one thread and of several, between all pairs of memories; and registrations.
fn rates_of_threads() {
    let driver = Driver::find();
    for (btl, test) in transports().iter().flat_map(|btl| ["put-rate", "get-rate", "am-rate"].map(|test| (btl, test))) {
        for (threads, [src, dst]) in
            [("1", ["host", "host"]), ("4", ["host", "host"]), ("3", ["device", "device"]), ("2", ["host", "device"])]
        {
            for workers in [None, Some("--workers")] {
                let mut arguments =
                    vec!["--btl", btl, "--test", test, "--src", src, "--dst", dst, "--threads", threads];
                arguments.extend(["--sizes", "0,8,100K", "--window", "10", "--iterations", "3"]);
                arguments.extend(workers);
                let finished = device_pingpong(&driver, &arguments).assert_success();
                assert_eq!(sizes(&finished.stdout), [0, 8, 100 << 10], "{arguments:?}: {finished:?}");
                let named = format!("{threads} threads");
                assert_eq!(finished.stdout.contains(&named), threads != "1", "{finished:?}");
                assert_eq!(finished.stdout.contains("a worker each"), workers.is_some(), "{finished:?}");
                assert!(rows(&finished.stdout).iter().all(|&(_, value)| value > 0.0), "{finished:?}");
            }
        }
    }
    for kind in ["host", "device"] {
        let arguments = ["--test", "register", "--src", kind, "--dst", kind, "--sizes", "8,1M", "--iterations", "20"];
        let finished = device_pingpong(&driver, &arguments).assert_success();
        assert!(finished.stdout.contains("Time (us)") && sizes(&finished.stdout).len() == 2, "{finished:?}");
    }
}

fn within_jobs_of_others() {
    let arguments = ["pingpong", "--sizes", "8", "--iterations", "5", "--check"];
    let program = cableway().get_program().to_owned();
    let finished = finish(job(2, &[]).arg(&program).args(arguments)).assert_success();
    assert_eq!(sizes(&finished.stdout), [8]);
    let mut mpirun = Command::new("mpirun");
    if Command::new("mpirun").arg("--version").output().is_err() {
        return skip("mpirun is not installed, so that PMIx is not tested");
    }
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-np", "2"]).arg(program).args(arguments);
    let finished = finish(&mut mpirun).assert_success();
    assert_eq!(sizes(&finished.stdout), [8]);
}

fn wrong_jobs_are_refused() {
    let program = cableway().get_program().to_owned();
    let finished = finish(job(3, &[]).arg(program).args(["pingpong", "--sizes", "8"]));
    assert_eq!(finished.code(), 2);
    assert!(finished.stderr.contains("3 ranks; this command takes 2"), "{finished:?}");
}

fn device_pingpong(driver: &Driver, arguments: &[&str]) -> Finished {
    finish(cableway().arg("pingpong").args(arguments).arg(crate::support::libdir_option()).arg(&driver.folder))
}

/// Irregular blocks on either side or both. They are not staged once memory is mapped.
fn irregular_blocks_between_devices() {
    let driver = Driver::find();
    for side in ["both", "src", "dst"] {
        for limit in ["0", "1M"] {
            let limit = format!("device_push_limit={limit}");
            let mut command = cableway();
            command.args(["pingpong", "--btl", "sm", "--src", "device", "--dst", "device", "--check"]);
            command.args(["--datatype", "indexed:8:500:3", "--datatype-of", side, "--sizes", "4000,100K,1M"]);
            command.args(["--set", &limit, "--set", "device_kernel_patience=20s", "--iterations", "8"]);
            let finished =
                finish(command.env("CABLEWAY_LOG", "info").arg(crate::support::libdir_option()).arg(&driver.folder));
            let finished = finished.assert_success();
            let copies = finished.stderr.lines().filter_map(|line| {
                let (before, _) = line.split_once(" copies by devices between the processes")?;
                before.rsplit(' ').next()?.parse::<u64>().ok()
            });
            // The messages of each rank of the two larger sizes, including the untimed ones, except the first.
            let copies: u64 = copies.sum();
            assert!(copies >= 2 * 2 * 8, "{copies} with {side} and {limit}: {finished:#?}");
        }
    }
}

fn device_memory_in_every_pairing() {
    let driver = Driver::find();
    let kinds = ["host", "pinned", "device", "pool", "vmm", "managed"];
    for btl in &transports() {
        for src in kinds {
            for dst in kinds {
                let mut arguments = vec!["--btl", btl, "--src", src, "--dst", dst, "--check", "--iterations", "2"];
                arguments.extend(["--sizes", "1,1000,5000,70000,1M"]);
                let finished = device_pingpong(&driver, &arguments).assert_success();
                let simulated = driver.simulated && [src, dst] != ["host", "host"];
                assert_eq!(finished.stdout.contains("SIMULATED"), simulated, "{finished:?}");
                assert_eq!(sizes(&finished.stdout).len(), 5, "{btl} {src} {dst}: {finished:?}");
                arguments.truncate(arguments.len() - 2);
                arguments.extend(["--sizes", "1,100K", "--datatype", "vector:64:256:16"]);
                device_pingpong(&driver, &arguments).assert_success();
            }
        }
        for kind in ["vmm-private", "vmm-pieces", "pool-shared"] {
            let arguments = ["--btl", btl, "--src", kind, "--dst", kind, "--check", "--iterations", "5"];
            device_pingpong(&driver, &[&arguments[..], &["--sizes", "1,70000,5M"]].concat()).assert_success();
        }
    }
}

/// Both ranks must send the same number of messages, or they would wait for each other. The same holds for a rank that
/// sends to itself.
fn time_in_place_of_iterations() {
    for arguments in [["--btl", "sm"], ["--btl", "self"]] {
        for test in ["latency", "bandwidth"] {
            let began = Instant::now();
            let times = ["--test", test, "--sizes", "8,100K", "--seconds", "0.1"];
            let finished = pingpong(&[&arguments[..], &times].concat()).assert_success();
            assert_eq!(sizes(&finished.stdout), [8, 100 << 10], "{finished:?}");
            assert!(began.elapsed() >= Duration::from_millis(200), "each was timed for so long: {finished:?}");
        }
    }
    pingpong(&["--check", "--sizes", "8", "--seconds", "0.01"]).assert_success();
}

fn host_memory_beside_devices() {
    let driver = Driver::find();
    let arguments = ["--beside-devices", "--btl", "sm", "--sizes", "8,100K", "--check"];
    let finished = device_pingpong(&driver, &arguments).assert_success();
    assert!(finished.stdout.contains("latency over sm, host beside device 0 to host beside device"), "{finished:?}");
    assert_eq!(finished.stdout.contains("SIMULATED"), driver.simulated, "{finished:?}");
    let finished = device_pingpong(&driver, &[&arguments[..], &["--format", "json"]].concat()).assert_success();
    assert!(finished.stdout.contains(r#""src":"host","dst":"host","size":8,"#), "{finished:?}");
    assert!(finished.stdout.contains(r#""beside_devices":true"#), "{finished:?}");

    let mut command = cableway();
    command
        .args(["pingpong", "--beside-devices", "--sizes", "8", crate::support::libdir_option()])
        .arg(std::env::temp_dir());
    let finished = finish(&mut command);
    assert_eq!(finished.code(), 1, "{finished:?}");
    assert!(finished.stderr.contains("cannot use device memory"), "{finished:?}");
}

/// The data is right, whichever mechanism copies it: CPU, streams, or copy engines.
fn mapped_device_memory() {
    let driver = Driver::find();
    if !driver.simulated {
        return skip("whether device memory can be mapped is the machine's affair");
    }
    let folder = driver.folder.to_str().expect("a folder");
    let ways = [("dma_buf,mmap", "13030"), ("gdrdrv", "13000")];
    for (way, (src, dst)) in
        ways.iter().flat_map(|way| [("host", "device"), ("device", "host")].map(|ends| (way, ends)))
    {
        let mut command = cableway();
        command.args(["pingpong", "--btl", "sm", "--src", src, "--dst", dst, "--sizes", "4,8,12,16,24,100,1000,10000"]);
        command
            .args(["--check", crate::support::libdir_option(), folder])
            .env("SIM_CUDA_DIRECT", way.0)
            .env("SIM_CUDA_VERSION", way.1);
        finish(&mut command).assert_success();
    }
}

/// A program's copy from pageable memory leaves work in the default stream. Not waiting for it must be detected.
fn stale_device_data_is_found() {
    let mut arguments = vec!["--src", "device", "--dst", "device", "--check", "--sizes", "64K", "--iterations", "50"];
    let driver = Driver::find();
    device_pingpong(&driver, &arguments).assert_success();
    if !driver.simulated {
        return skip("a real device is not late on demand");
    }
    arguments.extend(["--set", "default_stream_order=none"]);
    for test in ["latency", "put", "get", "am"] {
        let mut command = cableway();
        command.args(["pingpong", "--test", test]).args(&arguments);
        command.arg(crate::support::libdir_option()).arg(&driver.folder);
        // Later than any delay of a rank on a busy machine.
        let finished = finish(command.env("SIM_CUDA_DELAY_US", "5000"));
        assert_eq!(finished.code(), 1, "{test}: {finished:?}");
        let named = ["check failed at rank", "size 65536", "first wrong byte is byte"];
        assert!(named.iter().all(|part| finished.stderr.contains(part)), "{test}: {finished:?}");
    }
}

fn copy_protocol_is_always_there() {
    for btl in &transports() {
        let arguments = [
            "--btl",
            btl,
            "--src",
            "device",
            "--dst",
            "device",
            "--check",
            "--sizes",
            "1..4M",
            "--iterations",
            "1",
            "--set",
            "device_protocols=copy",
        ];
        device_pingpong(&Driver::find(), &arguments).assert_success();
    }
}
