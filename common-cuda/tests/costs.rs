//! Costs of copies: they are measured once, stored in a file, checked when read, and used for decisions. On a real
//! driver tests with injected faults are skipped.

mod common;
#[path = "common/measuring.rs"]
mod measuring;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cableway_common_cuda::{CostOrigin, DeviceCosts, Devices, Direction, Known, Order, Within};
use common::{app, devices_with, isolated, isolated_each, on_simulated_driver, pattern};
use measuring::{DEVICE, Folder, first_use, held, known, measured, measuring_threads, signals_blocked, threads, until};

#[test]
fn costs_are_measured_in_the_background_and_kept() {
    isolated("costs_are_measured_in_the_background_and_kept", &[("SIM_CUDA_DELAY_US", "1")], || {
        let mut before = None;
        // After the first round the driver has created everything that it creates at the first use of either device.
        for round in 0..3 {
            let folder = Folder::new(&format!("measured-{round}"));
            let _ = folder.measure();
            assert!(!folder.0.exists(), "nothing may happen before a device is used");
            let (devices, buffer, costs) = measured(&folder);
            until("the thread ends", || measuring_threads() == 0);
            for row in [costs.to_host, costs.from_host, costs.within] {
                assert!(row.figure().is_some(), "{costs:?}");
            }
            assert!(costs.call.is_settled() || app().simulated(), "random delays can make no sense: {costs:?}");
            for peer in &costs.peers {
                assert!(peer.push.figure().is_some() && peer.pull.figure().is_some(), "{peer:?}");
            }

            let reports = devices.report_costs(&[]).unwrap();
            let CostOrigin::File { path, measured } = &reports[0].origin else { panic!("{reports:?}") };
            assert_eq!(folder.files(), std::slice::from_ref(path));
            assert!(measured.ends_with(" ms") && measured.contains('T'), "{measured}");
            drop((buffer, devices));

            // The second process reads the same figures at once, and creates nothing.
            let made = app().calls(c"cuMemCreate");
            let again = devices_with(&["costs=cached", &folder.set()]);
            let buffer = first_use(&again, DEVICE);
            let read = again.costs().of(DEVICE).cloned().expect("the file is read at the first use of the buffer");
            let latency = |costs: &DeviceCosts| costs.to_host.figure().unwrap().latency;
            assert_eq!(latency(&read), latency(&costs));
            assert_eq!(app().calls(c"cuMemCreate"), made);
            drop((buffer, again));
            assert_eq!(*before.get_or_insert_with(held), held(), "round {round}");
        }
    });
}

/// A process that uses no device queries and creates nothing, even if it has one.
#[test]
fn nothing_is_measured_without_a_device_in_use() {
    isolated("nothing_is_measured_without_a_device_in_use", &[], || {
        let folder = Folder::new("idle");
        let before = threads();
        let devices = folder.measure();
        let bytes = vec![0_u8; 1 << 20];
        assert!(!devices.classify(bytes.as_ptr(), bytes.len()).on_device());
        drop(devices);
        assert!(!folder.0.exists());
        // A real driver has its own threads.
        assert!(!app().simulated() || threads() == before);
        for name in [c"cuMemCreate", c"cuStreamCreate", c"cuDeviceGetUuid", c"cuMemHostRegister"] {
            assert!(app().calls(name).is_none_or(|calls| calls == 0), "{name:?}");
        }
    });
}

#[test]
fn nothing_is_measured_unless_enabled() {
    isolated_each("nothing_is_measured_unless_enabled", &[&[], &[("HOME", "")], &[]], |case| {
        let folder = Folder::new("unwanted");
        let set = folder.set();
        let assignments: &[&str] = match case {
            0 => &["costs=default", &set],
            // There is no folder. Or the driver is simulated and the folder is not named, and nothing may go into a
            // user's folder.
            1 => &["costs=measure"],
            _ => &["costs=cached", &set],
        };
        if case == 1 && !on_simulated_driver("nothing_is_measured_unless_enabled") {
            return;
        }
        let devices = devices_with(assignments);
        let buffer = first_use(&devices, DEVICE);
        assert!(devices.costs().of(DEVICE).is_none_or(|costs| *costs == DeviceCosts::default()));
        let report = devices.report_costs(&[]).unwrap();
        assert!(matches!(&report[0].origin, CostOrigin::Default(reason) if !reason.is_empty()), "{report:?}");
        drop((buffer, devices));
        assert!(!folder.0.exists());
    });
}

/// Rewrites the file of the first device, as `change` returns its text.
fn changed(folder: &Folder, change: impl FnOnce(String) -> String) -> PathBuf {
    let (devices, ..) = measured(folder);
    let reports = devices.report_costs(&[]).unwrap();
    let CostOrigin::File { path, .. } = &reports[0].origin else { panic!("{reports:?}") };
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, change(text)).unwrap();
    path.clone()
}

/// Replaces a row of a file.
fn with_row(text: String, name: &str, row: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with(&format!("{name} ")) && *line != "end");
    // Insert before the peers, whose own rows follow them.
    let (peers, alone): (Vec<_>, Vec<_>) =
        lines.partition(|line| ["peer ", "push ", "pull "].iter().any(|name| line.starts_with(name)));
    let own = (!["push", "pull"].contains(&name)).then(|| format!("{name} {row}"));
    let peers = peers.into_iter().map(str::to_owned).flat_map(|line| {
        let about = (line.starts_with("peer ") && own.is_none()).then(|| format!("{name} {row}"));
        std::iter::once(line).chain(about)
    });
    let lines: Vec<String> = alone.into_iter().map(str::to_owned).chain(own.clone()).chain(peers).collect();
    lines.join("\n") + "\nend\n"
}

/// Copies this many pieces of 64 bytes as if between two devices. Returns whether a kernel made the copies.
fn by_kernel(devices: &Devices, copies: usize) -> bool {
    let buffer = first_use(devices, DEVICE);
    until("kernels are loaded", || devices.kernels(&buffer.location()));
    let bytes = pattern(1 << 20, 7);
    // SAFETY: as many bytes.
    unsafe { devices.copy(buffer.as_device_ptr(), bytes.as_ptr(), bytes.len()) }.unwrap();
    let before = app().launches();
    let mut batch = devices.batch(&buffer.location(), Direction::DeviceToDevice, Order::AfterDefaultStream).unwrap();
    batch.reachable(Within::OneNode);
    for piece in 0..copies {
        let at = buffer.as_device_ptr().wrapping_add(piece * 64);
        // SAFETY: parts of the buffer that do not overlap.
        unsafe { batch.copy(at.wrapping_add(1 << 19), at, 64) };
    }
    batch.finish().unwrap().wait().unwrap();
    app().launches() != before
}

#[test]
fn costs_in_the_file_decide_unless_a_parameter_is_set() {
    const TEST: &str = "costs_in_the_file_decide_unless_a_parameter_is_set";
    isolated(TEST, &[], || {
        if !on_simulated_driver(TEST) {
            return;
        }
        let folder = Folder::new("decides");
        // Made-up figures for very slow and very fast kernels.
        for (kernel, few, many) in [("900.000 us 1.000 GB/s", false, false), ("0.100 us 900.000 GB/s", true, true)] {
            changed(&folder, |text| {
                let text = with_row(with_row(text, "kernel", kernel), "several", "1.000 us");
                with_row(text, "push", "5.000 us 100.000 GB/s")
            });
            let devices = devices_with(&["costs=cached", &folder.set()]);
            assert_eq!((by_kernel(&devices, 2), by_kernel(&devices, 40)), (few, many), "{kernel}");
            let by_hand = ["costs=cached", &folder.set(), "device_kernel_limit=256K"];
            let devices = devices_with(&by_hand);
            assert_eq!((by_kernel(&devices, 2), by_kernel(&devices, 40)), (false, true), "by hand, beside {kernel}");
        }
    });
}

#[test]
fn unusable_cost_files_are_measured_again_with_one_warning() {
    const TEST: &str = "unusable_cost_files_are_measured_again_with_one_warning";
    isolated(TEST, &[], || {
        let folder = Folder::new("broken");
        let path = changed(&folder, |text| text.replace("to_host ", "to_host -"));
        let log = common::collect_log();
        for _ in 0..2 {
            let cached = devices_with(&["costs=cached", &folder.set()]);
            let _buffer = first_use(&cached, DEVICE);
            assert_eq!(cached.costs().of(DEVICE), Some(&DeviceCosts::default()), "the estimates apply");
        }
        let devices = folder.measure();
        let _buffer = first_use(&devices, DEVICE);
        assert!(known(&devices).to_host.figure().is_some());
        until("the file is valid again", || {
            matches!(devices.report_costs(&[]).unwrap()[0].origin, CostOrigin::File { .. })
        });
        let warnings: Vec<_> = log.lock().unwrap().iter().filter(|line| line.starts_with("WARN")).cloned().collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(path.to_str().unwrap()), "{warnings:?}");
    });
}

/// If the driver refuses an operation, the estimates apply and messages still work.
#[test]
fn refused_operations_keep_their_estimate() {
    const TEST: &str = "refused_operations_keep_their_estimate";
    const CASES: [&[(&str, &str)]; 8] = [
        &[("SIM_CUDA_FAIL", "cuMemCreate:801")],
        &[("SIM_CUDA_FAIL", "cuMemCreate:2")],
        &[("SIM_CUDA_FAIL", "cuMemMap:1")],
        &[("SIM_CUDA_FAIL", "cuMemSetAccess:217")],
        &[("SIM_CUDA_FAIL", "cuMemHostRegister:801")],
        &[("SIM_CUDA_FAIL", "cuMemCreate:801:2+")],
        &[("SIM_CUDA_FAIL", "cuModuleLoadData:218")],
        &[("SIM_CUDA_MISSING", "cuMemCreate,cuMemcpyBatchAsync")],
    ];
    isolated_each(TEST, &CASES, |case| {
        if !on_simulated_driver(TEST) {
            return;
        }
        let folder = Folder::new("refused");
        let (devices, mut buffer, costs) = match case {
            1 => {
                let devices = folder.measure();
                let buffer = first_use(&devices, DEVICE);
                let costs = known(&devices);
                (devices, buffer, costs)
            }
            _ => measured(&folder),
        };
        match case {
            0 | 2 | 3 | 7 => assert_eq!((costs.to_host, costs.within), (Known::Refused, Known::Refused), "{costs:?}"),
            // Memory may be available later.
            1 => assert_eq!(costs, DeviceCosts::default()),
            4 => assert!(costs.to_host == Known::Refused && costs.within.figure().is_some(), "{costs:?}"),
            5 => {
                assert!(costs.to_host.figure().is_some(), "{costs:?}");
                assert!(costs.peers.iter().all(|peer| peer.push == Known::Refused), "{costs:?}");
            }
            _ => assert!(costs.kernel == Known::Refused && costs.to_host.figure().is_some(), "{costs:?}"),
        }
        assert_eq!(devices.report_costs(&[]).unwrap()[0].costs, costs, "the report must show the refusal");
        // Refusals are not stored, because another container may be allowed the operation. They are tried again.
        let kept: Vec<String> = folder.files().iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert!(kept.iter().all(|text| !text.contains("refused")), "{kept:?}");
        assert_eq!(kept.is_empty(), matches!(case, 0..=3 | 7), "{kept:?}");
        let made = app().calls(c"cuMemCreate").unwrap();
        let again = folder.measure();
        let _buffer = first_use(&again, DEVICE);
        if case < 7 {
            until("the operation is tried again", || app().calls(c"cuMemCreate").unwrap() > made);
        }
        let bytes = pattern(1 << 20, 3);
        buffer.copy_from_host(0, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        // SAFETY: as many bytes.
        unsafe { devices.copy(back.as_mut_ptr(), buffer.as_device_ptr(), back.len()) }.unwrap();
        assert!(back == bytes, "case {case}");
    });
}

/// A stream that synchronises with the default stream captures. The capture stays valid, nothing is measured, and no
/// message waits.
#[test]
fn nothing_is_measured_during_a_capture() {
    isolated("nothing_is_measured_during_a_capture", &[], || {
        let folder = Folder::new("capture");
        let app = app();
        app.use_device(0);
        let address = app.malloc(1 << 20);
        let stream = app.stream(common::app::BLOCKING_STREAM);
        app.cuStreamBeginCapture(stream, common::app::CAPTURE_GLOBAL).unwrap();
        let devices = folder.measure();
        let made = app.calls(c"cuMemCreate");
        std::thread::scope(|threads| {
            // A capturing thread cannot send.
            let other = threads.spawn(|| {
                let at = devices.classify(std::ptr::with_exposed_provenance(address as usize), 1 << 20);
                assert!(at.on_device());
                std::thread::sleep(Duration::from_millis(300));
                assert!(devices.costs().of(DEVICE).is_none());
                let blocked = signals_blocked();
                assert!(blocked.len() == 1 && blocked[0] & 1 << (libc::SIGUSR1 - 1) != 0, "{blocked:x?}");
            });
            other.join().unwrap();
        });
        assert_eq!(app.calls(c"cuMemCreate"), made);
        let mut graph = 0;
        app.cuStreamEndCapture(stream, &raw mut graph).expect("the capture is still valid");
        // After the capture the measurement can start.
        assert!(known(&devices).to_host.figure().is_some());
    });
}

/// The program may destroy an ordinary context at any moment, so it is never used for measurements. A primary context
/// stays active until they end.
#[test]
fn contexts_may_be_destroyed_during_a_measurement() {
    isolated("contexts_may_be_destroyed_during_a_measurement", &[("SIM_CUDA_DELAY_US", "100")], || {
        let app = app();
        let meet = |devices: &Devices| {
            let address = app.malloc(1 << 20);
            assert!(devices.classify(std::ptr::with_exposed_provenance(address as usize), 1 << 20).on_device());
        };
        for round in 0..20_u32 {
            let folder = Folder::new(&format!("destroyed-{round}"));
            let devices = folder.measure();
            let context = app.create_context(0);
            meet(&devices);
            std::thread::sleep(round * Duration::from_micros(300));
            app.cuCtxDestroy(context).unwrap();
        }
        for round in 0..10_u32 {
            let folder = Folder::new(&format!("released-{round}"));
            let devices = folder.measure();
            app.use_device(0);
            meet(&devices);
            std::thread::sleep(round * Duration::from_micros(300));
            app.cuCtxSetCurrent(0).unwrap();
            app.cuDevicePrimaryCtxRelease(0).unwrap();
            drop(devices);
            assert!(!app.primary_active(0), "the reference must be released");
        }
    });
}

/// A measuring thread ends with the devices, whatever it waits for.
#[test]
fn no_thread_outlives_the_devices() {
    isolated("no_thread_outlives_the_devices", &[], || {
        let folder = Folder::new("outlives");
        let app = app();
        app.use_device(0);
        let address = app.malloc(1 << 20);
        let stream = app.stream(common::app::BLOCKING_STREAM);
        drop(devices_with(&[]));
        let before = threads();
        for captured in [true, false] {
            if captured {
                app.cuStreamBeginCapture(stream, common::app::CAPTURE_GLOBAL).unwrap();
            }
            let end = |_| {
                let devices = folder.measure();
                std::thread::scope(|threads| {
                    let meet = || devices.classify(std::ptr::with_exposed_provenance(address as usize), 1 << 20);
                    assert!(threads.spawn(meet).join().unwrap().on_device());
                });
                let begun = Instant::now();
                drop(devices);
                assert_eq!(measuring_threads(), 0, "captured: {captured}");
                begun.elapsed()
            };
            // The thread must end before its own time limit. On a busy machine some of many attempts may be slow.
            assert!((0..20).map(end).any(|took| took < Duration::from_secs(1)), "captured: {captured}");
            if captured {
                assert_eq!(threads(), before);
                let mut graph = 0;
                app.cuStreamEndCapture(stream, &raw mut graph).expect("the capture is still valid");
            }
        }
    });
}

/// Ranks of a node that start at the same time write one file, and all of them use its content in the end.
#[test]
fn only_one_of_several_processes_measures() {
    const TEST: &str = "only_one_of_several_processes_measures";
    const RANK: &str = "CABLEWAY_TEST_RANK";
    if let Some(folder) = std::env::var_os(RANK) {
        let devices = devices_with(&["costs=measure", &format!("costs_folder={}", folder.display())]);
        let _buffer = first_use(&devices, DEVICE);
        let costs = known(&devices);
        println!("knows {:?} {:?}", costs.to_host.figure().map(|cost| cost.latency), app().calls(c"cuMemCreate"));
        return;
    }
    let folder = Folder::new("together");
    let rank = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([TEST, "--exact", "--nocapture"]).env(RANK, &folder.0).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let ranks: Vec<_> = (0..4).map(|_| rank()).collect();
    let said: Vec<String> = ranks
        .into_iter()
        .map(|rank| {
            let output = rank.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}");
            text.lines().find(|line| line.contains("knows ")).expect("a line").to_owned()
        })
        .collect();
    let figures: Vec<&str> = said.iter().map(|line| line.split_once("knows ").unwrap().1).collect();
    let latencies: Vec<&str> = figures.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(latencies.iter().all(|latency| latency.starts_with("Some") && *latency == latencies[0]), "{said:?}");
    if app().simulated() {
        let measured = figures.iter().filter(|line| !line.ends_with("Some(0)")).count();
        assert!(measured >= 1, "{said:?}");
    }
    assert_eq!(folder.files().len(), 1, "one file and no temporary ones");
}
