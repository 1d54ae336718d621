//! Costs of copies: ranks decide by them, and every message arrives even if the costs of two ranks differ. The figures
//! are made up, because those of the simulated driver are meaningless.

use std::path::{Path, PathBuf};

use crate::device_copy::{direct, messages, run, told};
use crate::support::{Driver, Finished, Test, cableway, eventually, finish, shell_job, skip, this};

pub(crate) const TESTS: &[Test] = &[
    ("device_costs::ranks_decide_by_measured_costs", ranks_decide_by_measured_costs),
    ("device_costs::messages_arrive_if_the_costs_of_two_ranks_differ", both_ranks_expect_the_other_to_copy),
    ("device_costs::ranks_that_start_together_write_one_file_for_each_device", ranks_that_begin_together),
    ("device_costs::explain_and_info_print_known_costs", explain_and_info_print_known_costs),
    ("device_costs::times_of_host_messages_are_kept", times_of_host_messages_are_kept),
];

/// A temporary folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("cableway-costs-job-{name}-{}", std::process::id())))
    }

    fn set(&self) -> String {
        format!("costs_folder={}", self.0.display())
    }

    fn files(&self) -> Vec<PathBuf> {
        files(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The files of devices in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    let of_device = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".txt") && !name.starts_with("host-")
    };
    entries.filter(of_device).collect()
}

const QUICK: &str = "1.000 us 900.000 GB/s";
const SLOW: &str = "900.000 us 0.100 GB/s";

/// The costs that a rank assumes.
#[derive(Clone, Copy)]
struct Beliefs {
    push: &'static str,
    pull: &'static str,
    to_host: &'static str,
}

const PUSH: Beliefs = Beliefs { push: QUICK, pull: "40.000 us 90.000 GB/s", to_host: SLOW };
const PULL: Beliefs = Beliefs { push: "40.000 us 90.000 GB/s", pull: QUICK, to_host: SLOW };
const HOST: Beliefs = Beliefs { push: SLOW, pull: SLOW, to_host: QUICK };

/// Writes files with these costs for all devices to a folder.
fn believe(folder: &Path, beliefs: Beliefs) {
    // A measurement that takes too long on a busy machine is continued the next time.
    let driver = Driver::find().folder;
    let is_whole = || {
        let mut info = cableway();
        info.args(["info", "--measure", "--set", "costs=measure", crate::support::libdir_option()]).arg(&driver);
        finish(info.arg("--set").arg(format!("costs_folder={}", folder.display()))).assert_success();
        let has = |path: &PathBuf, row| std::fs::read_to_string(path).is_ok_and(|text| text.contains(row));
        let found = files(folder);
        found.len() == 2 && found.iter().all(|path| has(path, "\npush ") && has(path, "\npull "))
    };
    assert!(eventually(is_whole));
    let found = files(folder);
    for path in found {
        let text = std::fs::read_to_string(&path).expect("a file");
        let line = |line: &str| {
            let figures = match line.split_once(' ') {
                Some(("push", _)) => beliefs.push,
                Some(("pull" | "within", _)) => beliefs.pull,
                Some(("to_host" | "from_host", _)) => beliefs.to_host,
                _ => return format!("{line}\n"),
            };
            let name = line.split(' ').next().unwrap_or_default();
            format!("{name} {figures}\n")
        };
        let text: String = text.lines().map(line).collect();
        assert!(text.contains(&format!("\npush {}\n", beliefs.push)), "{text}");
        std::fs::write(&path, text).expect("it can be written");
    }
}

fn on_one_simulated_driver() -> bool {
    let simulated = Driver::find().simulated;
    if !simulated {
        skip("figures are made up for the simulated driver only");
    }
    simulated
}

fn ranks_decide_by_measured_costs() {
    if !on_one_simulated_driver() {
        return;
    }
    let exchange = |beliefs, options: &[&str]| {
        let folder = Folder::new("decide");
        believe(&folder.0, beliefs);
        let set = folder.set();
        let options = [&["--set", "costs=cached", "--set", &set], options].concat();
        run(2, &options, &[], "device_exchange").assert_success()
    };
    let finished = exchange(PUSH, &[]);
    assert!(direct(&finished) >= messages(2, 2).1 && told(&finished, "fetched ") == 0, "{finished:#?}");
    let finished = exchange(PULL, &[]);
    assert!(direct(&finished) >= messages(2, 2).1 && told(&finished, "stored ") == 0, "{finished:#?}");
    let finished = exchange(HOST, &[]);
    assert_eq!(direct(&finished), 0, "{finished:#?}");
    // Parameters set by the user win.
    let by_hand = ["--set", "device_direct_latency=10us", "--set", "device_direct_rate=350G"];
    let both = [&by_hand[..], &["--set", "device_push_latency=1us"]].concat();
    let finished = exchange(PULL, &both);
    assert!(direct(&finished) >= messages(2, 2).1 && told(&finished, "fetched ") == 0, "{finished:#?}");
    let all = ["--set", "device_staged_latency=19us", "--set", "device_staged_rate=45G"];
    let finished = exchange(HOST, &[&both[..], &all].concat());
    assert!(direct(&finished) >= messages(2, 2).1, "{finished:#?}");
}

/// Runs two ranks, each with the costs in its own folder.
fn exchange_apart(ranks: u32, folder: &Folder, variables: &[(&str, &str)]) -> Finished {
    let driver = Driver::find().folder;
    let [program, role] = this("device_exchange");
    let options = [
        crate::support::libdir_option(),
        driver.to_str().expect("a folder"),
        "--set",
        "btl=sm",
        "--set",
        "costs=cached",
    ];
    let script = "CABLEWAY_COSTS_FOLDER=\"$BELIEFS/$CABLEWAY_JOB_RANK\" exec \"$PROGRAM\" \"$ROLE\"";
    let mut job = shell_job(ranks, &options, script);
    job.env("BELIEFS", &folder.0).env("PROGRAM", program).env("ROLE", role);
    finish(job.envs(variables.iter().copied()))
}

fn both_ranks_expect_the_other_to_copy() {
    if !on_one_simulated_driver() {
        return;
    }
    for (zero, one) in [(PUSH, PULL), (PULL, PUSH), (PUSH, HOST), (HOST, PULL), (HOST, PUSH), (PULL, HOST)] {
        let folder = Folder::new("apart");
        for (rank, beliefs) in [zero, one].into_iter().enumerate() {
            believe(&folder.0.join(rank.to_string()), beliefs);
        }
        exchange_apart(2, &folder, &[]).assert_success();
        exchange_apart(2, &folder, &[("CUDA_VISIBLE_DEVICES", "0")]).assert_success();
    }
    let folder = Folder::new("four");
    for (rank, beliefs) in [PUSH, PULL, HOST, PUSH].into_iter().enumerate() {
        believe(&folder.0.join(rank.to_string()), beliefs);
    }
    exchange_apart(4, &folder, &[]).assert_success();
}

/// Of four ranks, two on each device, one writes each device's file. In the end each file is complete and used.
fn ranks_that_begin_together() {
    let folder = Folder::new("together");
    let set = folder.set();
    let options = ["--set", "costs=measure", "--set", &set];
    let finished = run(4, &options, &[], "device_exchange").assert_success();
    assert_eq!(finished.stderr, "");
    // A job may end before every device was idle. Then there may be no file, but never an incomplete one.
    let after = cached_info(&folder);
    let measured = after.matches("measured 2").count();
    assert_eq!(measured, folder.files().len(), "{after}");
    let left: Vec<_> = std::fs::read_dir(&folder.0).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    assert!(left.iter().all(|path| path.extension().is_none_or(|extension| extension == "txt")), "{left:?}");
}

fn cached_info(folder: &Folder) -> String {
    let mut info = cableway();
    info.args(["info", "--set", "costs=cached", "--set", &folder.set(), crate::support::libdir_option()]);
    let finished = finish(info.arg(Driver::find().folder)).assert_success();
    assert_eq!(finished.stderr, "", "no file is disbelieved");
    finished.stdout
}

fn explain_and_info_print_known_costs() {
    if !on_one_simulated_driver() {
        return;
    }
    let folder = Folder::new("explain");
    let nothing = cached_info(&folder);
    assert!(nothing.contains("the estimates among the parameters: nothing was measured yet"), "{nothing}");
    let explain = |options: &[&str]| {
        let mut command = cableway();
        command.args(["explain", "--src", "device", "--dst", "device", "--btl", "sm", "--size", "8"]);
        command.args(["--set", &folder.set(), crate::support::libdir_option()]).arg(Driver::find().folder);
        finish(command.args(options)).assert_success().stdout
    };
    let cached = ["--set", "costs=cached"];
    let text = explain(&cached);
    assert!(text.starts_with("# The costs of copies are estimates: "), "{text}");
    assert!(text.contains("10.24 us"), "two small messages, and the copy that the sender makes: {text}");

    believe(&folder.0, Beliefs { push: "333.000 us 900.000 GB/s", pull: "333.000 us 900.000 GB/s", to_host: SLOW });
    let info = cached_info(&folder);
    assert!(info.contains("measured 2") && info.contains("push 333.00 us and 900.0 GB/s"), "{info}");
    let text = explain(&cached);
    assert!(text.starts_with("# The costs of copies were measured 2"), "{text}");
    // The expected time includes the other parts of a message.
    assert!(text.contains("336.24 us"), "{text}");
    let row: serde_json::Value =
        serde_json::from_str(&explain(&[&cached[..], &["--format", "json", "--measure"]].concat())).expect("a row");
    assert!((row["expected_us"][0].as_f64().expect("a time") - 336.24).abs() < 0.01, "{row}");
    assert!(row["observed_us"][0].as_f64().expect("a time") > 0.0, "{row}");
}

fn times_of_host_messages_are_kept() {
    let folder = Folder::new("host");
    let cached = ["--set", "costs=cached", "--set", &folder.set()];
    let explain = |sizes: &str| {
        let mut command = cableway();
        finish(command.args(["explain", "--size", sizes]).args(cached)).assert_success().stdout
    };
    assert!(!explain("8K..8M").contains("measured: "), "nothing is known yet");
    assert!(!folder.0.exists(), "nothing was measured");
    // Messages of each size from one job, and what the next one says.
    let info = || {
        let mut command = cableway();
        finish(command.args(["info", "--measure", "--format", "json"]).args(cached)).assert_success().stdout
    };
    let described = |text: &str| {
        let info: serde_json::Value = serde_json::from_str(text).expect("one object");
        info["host_messages"].as_array().cloned().unwrap_or_default()
    };
    let first = described(&info());
    assert_eq!(first.len(), 1 + 2 * 12, "the file, and each size alone and in windows: {first:?}");
    let written = || std::fs::metadata(PathBuf::from(first[0]["file"].as_str().expect("a path"))).expect("it is there");
    let before = written().modified().expect("a time");
    assert_eq!(described(&info()), first, "nothing is measured again");
    assert_eq!(written().modified().expect("a time"), before);
    let text = explain("8K..8M");
    assert!(text.contains("measured: past the caches") && text.contains("..8388607"), "{text}");
    // Rows of sizes with equal figures are one, so each size is asked for alone.
    for size in (15..=22).map(|exponent| 1_u32 << exponent) {
        let text = explain(&size.to_string());
        assert!(text.contains("measured: "), "{size} bytes: {text}");
    }
}
