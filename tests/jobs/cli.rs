//! The command line: errors for wrong input, and the output of commands.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Driver, Test, cableway, eventually, finish, skip, start};

pub(crate) const TESTS: &[Test] = &[
    ("cli::wrong_input_is_explained", wrong_input_is_explained),
    ("cli::info_prints_parameters_and_their_sources", info_prints_parameters_and_their_sources),
    ("cli::explain_prints_protocols_and_reasons", explain_prints_protocols_and_reasons),
    ("cli::explain_says_which_way_puts_and_gets_take", explain_says_which_way_puts_and_gets_take),
    ("cli::device_memory_without_a_driver_is_explained", device_memory_without_a_driver_is_explained),
    ("cli::a_comparison_is_printed_and_kept", a_comparison_is_printed_and_kept),
    ("cli::collectives_are_timed_and_checked", collectives_are_timed_and_checked),
    ("cli::collectives_are_compared", collectives_are_compared),
    ("cli::every_route_is_compared", every_route_is_compared),
    ("cli::a_comparison_ended_early_is_kept", a_comparison_ended_early_is_kept),
];

fn wrong_input_is_explained() {
    let cases: &[(&[&str], &str)] = &[
        (&["run", "-n", "0", "--", "true"], "0"),
        (&["run", "-n", "2"], "PROGRAM"),
        (&["run", "--", "true"], "--np"),
        (&["run", "-n", "1", "--set", "btl_sm_eagr_limit=1", "--", "true"], "btl_sm_eager_limit"),
        (&["run", "-n", "1", "--set", "btl_sm_eager_limit=much", "--", "true"], "'much'"),
        (&["run", "-n", "1", "--set", "btl_sm_eager_limit", "--", "true"], "NAME=VALUE"),
        (&["run", "-n", "1", "--cuda-libdir", "/no/such", "--", "true"], "/no/such"),
        (&["run", "-n", "1", "--bind", "socket", "--", "true"], "core"),
        (&["pingpong", "--btl", "smm"], "'sm'"),
        (&["pingpong", "--test", "latancy"], "latency"),
        (&["pingpong", "--sizes", "8..1"], "ends at 1"),
        (&["pingpong", "--sizes", "many"], "'many'"),
        (&["pingpong", "--datatype", "vector:8:4:2"], "overlap"),
        (&["pingpong", "--window", "0"], "0"),
        (&["pingpong", "--seconds", "0"], "'0'"),
        (&["pingpong", "--seconds", "1", "--iterations", "2"], "--iterations"),
        (&["collectives", "--operation", "allredcue"], "allreduce"),
        (&["collectives", "-n", "0"], "0"),
        (&["bench", "compare", "--up-to", "much"], "'much'"),
        (&["bench", "compare", "--skip", "sm"], "'sm'"),
        (&["pingpong", "--plot", "file.png"], ".svg"),
        (&["pingpong", "--plot", "/no/such/file.svg"], "/no/such"),
        (&["pingpong", "--set", "pml_spinn=3"], "pml_spin"),
        (&["info", "--format", "yaml"], "json"),
        (&["info", "peer_timout"], "peer_timeout"),
        (&["explain", "--src", "devise"], "device"),
        (&["explain", "--collective", "alltoall"], "allreduce"),
        (&["explain", "--collective", "reduce", "--ranks", "2", "--nodes", "3"], "--ranks"),
        (&["explain", "--collective", "reduce", "--size", "8"], "--size"),
        (&["explain", "--ranks", "2"], "--collective"),
    ];
    for (arguments, expected) in cases {
        let finished = finish(cableway().args(*arguments));
        assert_eq!(finished.code(), 2, "{arguments:?}: {finished:?}");
        assert!(finished.stderr.contains(expected), "{arguments:?}: {finished:?}");
    }
    let finished = finish(cableway().args(["run", "-n", "1", "true"]).env("CABLEWAY_PEER_TIMOUT", "1"));
    assert_eq!(finished.code(), 2);
    assert!(finished.stderr.contains("peer_timeout"), "{finished:?}");
}

fn info_prints_parameters_and_their_sources() {
    let one = finish(cableway().args(["info", "peer_timeout"]).env("CABLEWAY_PEER_TIMEOUT", "3")).assert_success();
    assert!(one.stdout.starts_with("peer_timeout = 3s (time, environment; default 10s)"), "{one:?}");
    assert!(one.stdout.contains("fail that much later"), "when to change it: {one:?}");
    // No list contains internal settings.
    let all = finish(cableway().args(["info", "--all"])).assert_success();
    assert!(all.stdout.contains("peer_timeout") && !all.stdout.contains("device_push_limit"), "{all:?}");
    let mut internal = cableway();
    internal.args(["info", "--set", "device_push_limit=1"]);
    assert_eq!(finish(&mut internal).code(), 0, "tests may set it");
    assert_eq!(finish(internal.env_remove(cableway::FOR_TESTS)).code(), 2);
    let mut command = cableway();
    command.env("CABLEWAY_PEER_TIMEOUT", "3").args([
        "info",
        "--all",
        "--set",
        "btl_sm_eager_limit=8K",
        "--format",
        "json",
    ]);
    let finished = finish(&mut command).assert_success();
    let info: Value = serde_json::from_str(&finished.stdout).expect("one object");
    for section in ["cableway", "cpus", "shared_memory", "single_copy", "interfaces", "launchers", "driver"] {
        assert!(!info[section].is_null(), "{section}: {finished:?}");
    }
    let parameters = info["parameters"].as_array().expect("a list");
    let find = |name: &str| parameters.iter().find(|row| row["name"] == name).expect("every parameter is listed");
    let told = |name: &str| (find(name)["value"].clone(), find(name)["from"].clone());
    assert_eq!(told("btl_sm_eager_limit"), ("8K".into(), "command line".into()));
    assert_eq!(told("peer_timeout"), ("3s".into(), "environment".into()));
    assert_eq!(told("progress_thread"), ("no".into(), "default".into()));
    let mut command = cableway();
    command.env_remove("CABLEWAY_COSTS").args(["info", "--set", "btl_sm_eager_limit=8K"]);
    let text = finish(&mut command).assert_success().stdout;
    let parameters: Vec<_> = text.lines().skip_while(|line| *line != "Parameters").skip(1).collect();
    assert!(parameters.len() == 1 && parameters[0].contains("btl_sm_eager_limit = 8K"), "{text}");
}

fn explain_prints_protocols_and_reasons() {
    let explain = |arguments: &[&str]| finish(cableway().arg("explain").args(arguments)).assert_success().stdout;
    let text = explain(&["--src", "device", "--dst", "host", "--size", "1..4M"]);
    let rows: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).map(str::trim).collect();
    assert!(text.starts_with("# Over sm\n") && rows.len() >= 2, "{text}");
    assert!(rows[0].starts_with("1..") && rows[rows.len() - 1].contains("..4194304"), "{text}");
    for line in explain(&["--format", "json", "--btl", "tcp", "--size", "8"]).lines() {
        let row: Value = serde_json::from_str(line).expect("one object a line");
        assert!(
            row["first"] == 8 && row["last"] == 8 && row["protocol"].is_string() && row["reason"].is_string(),
            "{row}"
        );
    }
    let row: Value =
        serde_json::from_str(&explain(&["--measure", "--format", "json", "--size", "8"])).expect("one row");
    for times in ["expected_us", "observed_us"] {
        assert!(row[times][0].as_f64() > Some(0.0), "{row}");
    }
    assert!(explain(&["--measure", "--size", "8..64K"]).contains("Observed"));
    // If both sides have irregular blocks, the message is sent in pieces. Regular blocks need none.
    for (sides, protocol) in [("both", "rendezvous, put in pieces"), ("src", "rendezvous, put")] {
        let row = explain(&["--src", "device", "--dst", "device", "--irregular", sides, "--size", "4M", "--btl", "sm"]);
        assert!(row.contains(protocol) && (sides == "both" || !row.contains("put in pieces")), "{row}");
    }
    // A collective operation has one row for each algorithm, the fastest first.
    let asked = ["--collective", "allreduce", "--ranks", "12", "--nodes", "3", "--bytes", "4M"];
    for arguments in [&asked[..], &[&asked[..], &["--src", "device"]].concat()] {
        let text = explain(arguments);
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(text.contains("12 ranks on 3 nodes") && rows.len() == 8, "{text}");
        assert!(rows[0].ends_with(" chosen") && rows[1..].iter().all(|row| row.ends_with(" us")), "{text}");
    }
    // With the copy protocols, device memory never goes directly, on either side.
    for sides in [["--src", "device"], ["--dst", "device"]] {
        let arguments = [&sides[..], &["--set", "device_protocols=copy", "--size", "1..1G"]].concat();
        let text = explain(&arguments);
        assert!(!text.contains("rendezvous, get") && !text.contains("rendezvous, put"), "{text}");
        assert!(text.contains("device_protocols=copy"), "{text}");
    }
}

fn explain_says_which_way_puts_and_gets_take() {
    let rows = |arguments: &[&str]| -> Vec<(u64, String, String)> {
        let format = ["explain", "--format", "json", "--size", "0..4M"];
        let printed = finish(cableway().args(format).args(arguments)).assert_success().stdout;
        let rows = printed.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is an object"));
        let text = |row: &Value, name: &str| row[name].as_str().expect("a text").to_owned();
        rows.map(|row| (row["first"].as_u64().expect("a size"), text(&row, "protocol"), text(&row, "reason"))).collect()
    };
    for operation in ["put", "get"] {
        let found = rows(&["--operation", operation, "--btl", "sm"]);
        assert!(found.iter().any(|row| row.1 == "directly"), "{found:?}");
        assert!(found[0].0 == 0 && found[0].1 == "by the owner" && found[0].2.contains("travels"), "{found:?}");
        // A link of tcp stores, and fetches nothing.
        let found = rows(&["--operation", operation, "--btl", "tcp"]);
        assert_eq!(found.iter().any(|row| row.1 == "directly"), operation == "put", "{found:?}");
        let device = ["--operation", operation, "--src", "device", "--dst", "device", "--btl", "sm"];
        assert!(rows(&device).iter().any(|row| row.1 == "directly"));
        let copied = rows(&[&device[..], &["--set", "device_protocols=copy"]].concat());
        assert!(copied.iter().all(|row| row.1 == "by the owner"), "{copied:?}");
        assert!(copied.iter().any(|row| row.2.contains("device_protocols")), "{copied:?}");
    }
    let refused = finish(cableway().args(["explain", "--operation", "put", "--measure"]));
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr.contains("leave --measure"), "{refused:?}");
}

fn device_memory_without_a_driver_is_explained() {
    // The folder has no driver, so none is found, whatever the machine has.
    let folder = std::env::temp_dir();
    let mut command = cableway();
    command.args(["pingpong", "--src", "device", "--sizes", "8", "--cuda-libdir"]).arg(&folder);
    let finished = finish(&mut command);
    assert_eq!(finished.code(), 1, "{finished:?}");
    assert!(finished.stderr.contains("cannot use device memory"), "{finished:?}");
}

/// Measures Cableway only: which other libraries exist depends on the machine.
fn a_comparison_is_printed_and_kept() {
    let driver = Driver::find();
    let folder = std::env::temp_dir().join(format!("cableway-comparison-{}", std::process::id()));
    let mut command = cableway();
    command.args(["bench", "compare", "--rounds", "1", "--seconds", "0.01", "--program", "cableway,nccl"]);
    command.args(["--route", "host-device", "--test", "latency", "--save"]).arg(&folder);
    let finished = finish(command.env("CABLEWAY_CUDA_LIBDIR", &driver.folder)).assert_success();
    assert!(finished.stdout.contains("host-device (host to device 0 over sm): latency, us"), "{finished:?}");
    assert_eq!(finished.stdout.contains("simulated"), driver.simulated, "{finished:?}");
    let kept: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let of = |kind: &str| {
        let file = kept.iter().find(|path| path.extension().is_some_and(|extension| extension == kind));
        std::fs::read_to_string(file.unwrap_or_else(|| panic!("{kind} in {kept:?}"))).unwrap()
    };
    assert_eq!(of("md"), finished.stdout);
    let row = of("csv").lines().nth(1).map(str::to_owned).unwrap_or_default();
    assert!(row.starts_with("host-device,latency,8,cableway,") && row.ends_with(",1"), "{row}");
    assert!(of("html").contains("<td>8</td>"));
    std::fs::remove_dir_all(&folder).unwrap();

    let finished = finish(cableway().args(["bench", "compare", "--route", "nowhere"]));
    assert_eq!(finished.code(), 2);
    assert!(finished.stderr.contains("one-device"), "{finished:?}");
}

/// Runs a few small points of each series. A failed figure would be missing from the table.
fn every_route_is_compared() {
    let driver = Driver::find();
    let mut command = compare(&driver, &["latency", "message-rate"]);
    command.args(["--program", "cableway", "--rounds", "1", "--up-to", "64K", "--json"]);
    let finished = finish(&mut command).assert_success();
    let routes = |lines: &str| -> Vec<String> {
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut routes: Vec<_> = lines.map(|line| line["route"].as_str().unwrap().to_owned()).collect();
        routes.sort();
        routes.dedup();
        routes
    };
    for route in
        ["host-beside-devices", "page-locked-device", "irregular-64", "irregular-8", "devices", "one-device", "sm"]
    {
        assert!(routes(&finished.stdout).iter().any(|measured| measured == route), "{route}: {finished:?}");
    }

    // Without devices, series that need some are named and skipped.
    let mut command = compare(&driver, &["latency"]);
    command
        .args(["--program", "cableway", "--rounds", "1", "--up-to", "8"])
        .env("CABLEWAY_CUDA_LIBDIR", std::env::temp_dir());
    let finished = finish(&mut command).assert_success();
    assert!(finished.stdout.contains("## sm") && !finished.stdout.contains("## host-beside-devices"), "{finished:?}");
    for printed in [&finished.stdout, &finished.stderr] {
        assert!(printed.contains("one-device (1)") && printed.contains("irregular-8 (2)"), "{finished:?}");
        assert!(printed.contains("this machine has 0"), "{finished:?}");
    }
}

/// As a time limit would do: the finished part is in the files, and they are complete.
fn a_comparison_ended_early_is_kept() {
    let driver = Driver::find();
    let folder = std::env::temp_dir().join(format!("cableway-ended-{}", std::process::id()));
    let mut command = compare(&driver, &["latency", "message-rate"]);
    command.args(["--program", "cableway", "--route", "sm,host-beside-devices", "--up-to", "8"]);
    command.args(["--rounds", "99", "--save"]).arg(&folder);
    let running = start(&mut command);
    let kept = |kind: &str| {
        let files = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        // The names of unfinished files begin with a dot.
        let whole = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !name.starts_with('.') && name.ends_with(kind)
        };
        files.into_iter().find(whole).map(|path| std::fs::read_to_string(path).unwrap()).unwrap_or_default()
    };
    assert!(eventually(|| kept(".md").contains("- rounds: 1 of 99 are complete")));
    running.signal(Signal::TERM);
    let finished = running.finish();
    assert!(!finished.status.success() && finished.stdout.is_empty(), "{finished:?}");
    let rows: Vec<String> = kept(".csv").lines().skip(1).map(str::to_owned).collect();
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in rows {
        let takings: u32 = row.rsplit(',').next().and_then(|takings| takings.parse().ok()).unwrap();
        assert!(takings >= 1, "{row}");
    }
    let (md, html) = (kept(".md"), kept(".html"));
    assert!(md.contains("| cableway, host-beside-devices latency, 8 B |"), "{md}");
    assert!(html.contains("<h2>Goals</h2>") && html.ends_with("</html>\n"), "{html}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Every operation in each kind of memory, started by the command, within a job and alone. Sizes are rounded to whole shares.
fn collectives_are_timed_and_checked() {
    let driver = Driver::find();
    let timed = |before: &[&str], ranks: &str, memory: &str| {
        let mut command = cableway();
        command.args(before).arg("collectives").env("CABLEWAY_CUDA_LIBDIR", &driver.folder);
        command.args(["--memory", memory, "--check", "--seconds", "0.001", "--sizes", "8K,4", "--format", "json"]);
        if before.is_empty() {
            command.args(["-n", ranks]);
        }
        let finished = finish(&mut command).assert_success();
        let rows: Vec<Value> = finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for row in &rows {
            assert!(row["value"].as_f64().is_some_and(|time| time > 0.0), "{row}");
            assert_eq!((row["check"].as_str(), row["memory"].as_str()), (Some("pass"), Some(memory)), "{row}");
            assert_eq!(row["simulated"] == true, memory == "device" && driver.simulated, "{row}");
        }
        rows
    };
    let sizes = |rows: &[Value], name: &str| -> Vec<u64> {
        let of_name = rows.iter().filter(|row| row["operation"] == name);
        of_name.map(|row| row["size"].as_u64().unwrap()).collect()
    };
    for memory in ["host", "device"] {
        let rows = timed(&[], "3", memory);
        assert_eq!((rows.len(), rows[0]["ranks"].as_u64()), (9 + 4, Some(3)));
        assert_eq!((sizes(&rows, "allreduce"), sizes(&rows, "alltoall")), (vec![8192, 4], vec![8184]));
    }
    let program = env!("CARGO_BIN_EXE_cableway");
    assert_eq!(timed(&["run", "-n", "2", "--", program], "", "host").len(), 9 + 4);
    assert_eq!(timed(&[], "1", "device").len(), 2 * 9);
}

/// Collective operations in host memory by Open MPI alone, and the copies that they need at least between devices.
fn collectives_are_compared() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return skip("mpirun is not installed, so that collectives are not compared");
    }
    let driver = Driver::find();
    let mut command = compare(&driver, &["allreduce", "alltoall"]);
    command.args(["--rounds", "1", "--route", "sm,devices", "--program", "cableway,ob1,copies", "--up-to", "64K"]);
    let finished = finish(&mut command).assert_success();
    for title in ["sm (host to host over sm): alltoall, us", "devices (device 0 to device 1 over sm): allreduce, us"] {
        // The row of 8 bytes has the times of two programs, and none of the other one.
        let table = finished.stdout.split(title).nth(1).unwrap_or_else(|| panic!("{title}: {finished:?}"));
        let row = table.lines().find(|line| line.starts_with("| 8 |")).unwrap_or_default();
        assert_eq!(row.matches('(').count(), 2, "{title}: {table}");
    }
}

/// Runs a comparison with the least possible work.
fn compare(driver: &Driver, tests: &[&str]) -> Command {
    let mut command = cableway();
    command.args(["bench", "compare", "--seconds", "0.001", "--test", &tests.join(",")]);
    command.env("CABLEWAY_CUDA_LIBDIR", &driver.folder);
    command
}
