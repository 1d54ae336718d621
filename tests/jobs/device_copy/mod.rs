//! Copies between the device memory of two processes, and the fallback through the host.

mod programs;

use crate::support::{Driver, Finished, Role, Test, cableway, finish, role_job, skip};
use programs::{ONE_WAY, PASSES, ROUNDS, SIZES, TURNS};

pub(crate) const TESTS: &[Test] = &[
    ("device_copy::copies_are_direct_between_two_devices_and_on_one", between_two_devices_and_on_one),
    ("device_copy::a_resident_kernel_makes_small_copies", small_copies_by_a_resident_kernel),
    ("device_copy::four_ranks_share_two_devices", four_ranks_on_two_devices),
    ("device_copy::copy_protocols_map_nothing", copy_protocols_map_nothing),
    ("device_copy::memory_without_a_handle_goes_through_the_host", memory_without_a_handle),
    ("device_copy::page_locked_memory_is_one_copy_from_device_memory", page_locked_memory),
    ("device_copy::messages_to_page_locked_memory_do_not_change_others", page_locked_and_device_memory),
    ("device_copy::new_allocations_are_never_confused_with_old_ones", fresh_allocations),
    ("device_copy::a_small_mapping_cache_suffices", few_mappings_are_enough),
    ("device_copy::refused_mappings_go_through_the_host", refusals),
    ("device_copy::messages_of_a_window_share_their_calls", shared_calls),
    ("device_copy::messages_are_staged_while_contexts_take_turns", turns),
    ("device_copy::a_peer_killed_while_mapped_is_an_error_soon", killed_while_mapped),
];

pub(crate) const ROLES: &[Role] = programs::ROLES;

/// Runs a role over shared memory with the driver. Every rank gets the variables.
pub(crate) fn run(ranks: u32, options: &[&str], variables: &[(&str, &str)], role: &str) -> Finished {
    let folder = Driver::find().folder;
    let mut all = vec![crate::support::libdir_option(), folder.to_str().expect("a folder"), "--set", "btl=sm"];
    // On a busy machine copies of the simulated driver take as long as a turn.
    all.extend(["--set", "device_turn_latency=1s"]);
    all.extend(options);
    let mut job = role_job(ranks, &all, role);
    finish(job.envs(variables.iter().copied()))
}

/// Returns the number of copies from device to device that all ranks report.
pub(crate) fn direct(finished: &Finished) -> u64 {
    told(finished, "direct ")
}

/// Returns the sum of a counter that all ranks report.
pub(crate) fn told(finished: &Finished, counter: &str) -> u64 {
    let counts = finished.stdout.lines().filter_map(|line| line.strip_prefix(counter));
    counts.map(|count| count.parse::<u64>().expect("a count")).sum()
}

pub(crate) const ONE_DEVICE: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "0");

/// Returns the number of messages of `device_exchange`, and how many of them are certainly copied once. These use buffers
/// that are already mapped. Ranks take the devices in turn. If two of them share a device, the higher rank learns from
/// the first message who copies.
pub(crate) fn messages(ranks: u64, devices: u64) -> (u64, u64) {
    let pairs = ranks * (ranks - 1);
    let size_count = SIZES.len() as u64;
    let on_one_device =
        (0..ranks).map(|rank| (0..rank).filter(|lower| lower % devices == rank % devices).count() as u64).sum::<u64>();
    (pairs * ROUNDS * size_count, pairs * (ROUNDS - 1) * size_count - on_one_device)
}

fn between_two_devices_and_on_one() {
    let devices = Driver::find().devices;
    for (variables, devices) in [(&[][..], devices), (&[ONE_DEVICE], 1)] {
        let finished = run(2, &[], variables, "device_exchange").assert_success();
        let ((all, again), found) = (messages(2, devices), direct(&finished));
        assert!((again..=all).contains(&found), "{found} of {all}: {finished:#?}");
        assert_eq!(finished.stderr, "", "{variables:?}");
        assert!(told(&finished, "mapped ") > 0 && told(&finished, "already mapped ") > 0, "{finished:#?}");
    }
    // The costs decide which rank copies. The data is right in both cases.
    for push in ["1us", "1s"] {
        let set = format!("device_push_latency={push}");
        let finished = run(2, &["--set", &set], &[], "device_exchange").assert_success();
        assert!(direct(&finished) >= messages(2, devices).1, "{finished:#?}");
    }
}

/// The lease of the kernel ends between messages, or lasts longer than all of them.
fn small_copies_by_a_resident_kernel() {
    for lease in ["50us", "100ms"] {
        let lease = format!("device_copier_lease={lease}");
        let options = ["--set", "device_copier=yes", "--set", &lease, "--set", "device_copier_idle=20ms"];
        let finished = run(2, &options, &[], "device_exchange").assert_success();
        assert!(direct(&finished) >= messages(2, Driver::find().devices).1, "{finished:#?}");
        run(4, &options, &[], "device_exchange").assert_success();
    }
}

fn four_ranks_on_two_devices() {
    let finished = run(4, &[], &[], "device_exchange").assert_success();
    assert!(direct(&finished) >= messages(4, Driver::find().devices).1, "{finished:#?}");
}

fn copy_protocols_map_nothing() {
    for set in ["device_protocols=copy", "device_ipc=no"] {
        let finished = run(2, &["--set", set], &[], "device_exchange").assert_success();
        assert_eq!(direct(&finished), 0, "{set}: {finished:#?}");
    }
}

fn memory_without_a_handle() {
    for kind in ["pool", "vmm_private", "managed"] {
        let finished = run(2, &[], &[("IPC_KIND", kind), ("RUST_LOG", "info")], "device_exchange").assert_success();
        assert_eq!(direct(&finished), 0, "{kind}: {finished:#?}");
        // A handle on one side is enough.
        let finished = run(2, &[], &[("IPC_KIND", kind), ("IPC_INTO", "device")], "device_exchange").assert_success();
        assert!(direct(&finished) > 0, "{kind}: {finished:#?}");
    }
}

/// The process with the page-locked memory copies: it stores what it sends, and fetches what it receives.
fn page_locked_memory() {
    let pairs = 2;
    let from_and_into = [("pinned", "device", "stored "), ("device", "pinned", "fetched ")];
    for (from, into, way) in from_and_into {
        let kinds = [("IPC_KIND", from), ("IPC_INTO", into)];
        let finished = run(2, &[], &kinds, "device_exchange").assert_success();
        assert_eq!(finished.stderr, "");
        if Driver::find().devices > 1 {
            // Small messages are sent eagerly. The first message of a size may precede the mapping, or be announced
            // without a remote key.
            let large = SIZES.iter().filter(|&&size| size > 16 << 10).count() as u64;
            let (least, found) = (pairs * large * (ROUNDS - 1), direct(&finished));
            assert!(found >= least, "{found} of {least} from {from} to {into}: {finished:#?}");
            assert!(told(&finished, way) >= least, "{finished:#?}");
        }
        let copies = run(2, &["--set", "device_protocols=copy"], &kinds, "device_exchange").assert_success();
        assert_eq!(direct(&copies), 0, "{copies:#?}");
        // Contexts take turns on one device.
        let one = run(2, &[], &[kinds[0], kinds[1], ONE_DEVICE], "device_exchange").assert_success();
        assert_eq!((direct(&one), one.stderr.as_str()), (0, ""), "{one:#?}");
    }
}

/// A sender does not know where the receiver's buffer is. What it learns of one kind must not slow down the other kind.
fn page_locked_and_device_memory() {
    if Driver::find().devices < 2 {
        return skip("this machine has one device, on which contexts take turns");
    }
    let finished = run(2, &[], &[], "device_both").assert_success();
    // Until the memory is mapped and the sender has learned, messages are staged.
    let (least, found) = (3 * TURNS as u64 - 12, direct(&finished));
    assert!(found >= least, "{found} of {least}: {finished:#?}");
}

fn fresh_allocations() {
    for variables in [&[][..], &[ONE_DEVICE]] {
        run(2, &[], variables, "device_fresh").assert_success();
        run(2, &["--set", "device_ipc_open_size=1"], variables, "device_fresh").assert_success();
        let variables = [variables, &[("IPC_KIND", "vmm")]].concat();
        for set in ["device_ipc_open_size=1", "device_ipc_mappings=2"] {
            let finished = run(2, &["--set", set], &variables, "device_fresh").assert_success();
            assert_eq!(finished.stderr, "", "{variables:?}");
        }
    }
}

fn few_mappings_are_enough() {
    for set in ["device_ipc_mappings=1", "device_ipc_mappings=3", "device_ipc_bytes=100K"] {
        let finished = run(2, &["--set", set, "--set", "device_ipc_open_size=1"], &[], "device_many").assert_success();
        assert!(direct(&finished) > 0, "{finished:#?}");
        let vmm = [("IPC_KIND", "vmm")];
        run(2, &["--set", set, "--set", "device_ipc_open_size=1"], &vmm, "device_many").assert_success();
    }
}

fn refusals() {
    if !Driver::find().simulated {
        return skip("faults are injected into the simulated driver only");
    }
    for fault in [
        "cuIpcGetMemHandle:801",
        "cuIpcGetMemHandle:1:2",
        "cuIpcOpenMemHandle:201",
        "cuIpcOpenMemHandle:400:1",
        "cuIpcCloseMemHandle:1",
        "cuMemGetAddressRange:1",
        "cuDeviceGetUuid:101",
    ] {
        for variables in [&[("SIM_CUDA_FAIL", fault)][..], &[("SIM_CUDA_FAIL", fault), ONE_DEVICE]] {
            let finished = run(2, &[], variables, "device_exchange").assert_success();
            if ["cuIpcOpenMemHandle:201", "cuIpcGetMemHandle:801"].contains(&fault) {
                assert_eq!(direct(&finished), 0, "{fault}");
            }
        }
    }
    for fault in [
        "cuMemRetainAllocationHandle:801",
        "cuMemGetAllocationPropertiesFromHandle:1",
        "cuMemExportToShareableHandle:1",
        "cuMemImportFromShareableHandle:304",
        "cuMemExportToShareableHandle:1:1",
        "cuMemImportFromShareableHandle:1:2",
    ] {
        for (variables, kind) in [(&[][..], "vmm"), (&[ONE_DEVICE], "vmm"), (&[], "vmm_pieces")] {
            let variables = [variables, &[("SIM_CUDA_FAIL", fault), ("IPC_KIND", kind)]].concat();
            let finished = run(2, &[], &variables, "device_exchange").assert_success();
            assert!(direct(&finished) == 0 || fault.matches(':').count() == 2, "{fault}: {finished:#?}");
        }
    }
    for fault in [
        "cuMemPoolExportToShareableHandle:801",
        "cuMemPoolExportPointer:1",
        "cuMemPoolImportFromShareableHandle:304",
        "cuMemPoolSetAccess:1",
        "cuMemPoolImportPointer:1",
        "cuMemPoolExportPointer:1:2",
        "cuMemPoolImportPointer:1:2",
    ] {
        let variables = [("SIM_CUDA_FAIL", fault), ("IPC_KIND", "pool_shared")];
        let finished = run(2, &["--set", "device_ipc_pool_size=1"], &variables, "device_exchange").assert_success();
        assert!(direct(&finished) == 0 || fault.matches(':').count() == 2, "{fault}: {finished:#?}");
    }
    // Each rank logs the reason in one line.
    for fault in ["cuIpcOpenMemHandle:201", "cuIpcGetMemHandle:801"] {
        let mut command = cableway();
        command
            .args(["pingpong", "--btl", "sm", "--src", "device", "--dst", "device", "--check", "--sizes", "8,70000"]);
        command
            .args(["--iterations", "5", crate::support::libdir_option()])
            .arg(Driver::find().folder)
            .env("SIM_CUDA_FAIL", fault);
        let finished = finish(&mut command).assert_success();
        assert_eq!(finished.stderr.matches("through the host, ").count(), 2, "{finished:#?}");
    }
    // The third copy of the receiver is its second from device to device; the sender copies once for each that fails.
    let failing = [("SIM_CUDA_FAIL", "cuMemcpyAsync:1:3")];
    assert_eq!(direct(&run(2, &[], &failing, "device_one_way").assert_success()), ONE_WAY as u64 - 2);
    assert_eq!(direct(&run(2, &[], &[], "device_one_way").assert_success()), ONE_WAY as u64 - 1);
    for missing in ["cuIpcOpenMemHandle", "cuIpcGetMemHandle", "cuIpcCloseMemHandle"] {
        run(2, &[], &[("SIM_CUDA_MISSING", missing)], "device_exchange").assert_success();
    }
    for missing in ["cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"] {
        let variables = [("SIM_CUDA_MISSING", missing), ("IPC_KIND", "vmm")];
        assert_eq!(direct(&run(2, &[], &variables, "device_exchange").assert_success()), 0, "{missing}");
    }
}

/// Counts the driver calls that messages take on either side. The bounds hold on a busy machine.
fn shared_calls() {
    const MESSAGES: u64 = 64 * 100;
    let file = std::env::temp_dir().join(format!("cableway-calls-{}", std::process::id()));
    let stats = format!("{}-%p", file.display());
    let mut command = cableway();
    command.args(["pingpong", "--btl", "sm", "--src", "device", "--dst", "device", "--test", "message-rate"]);
    command.args(["--sizes", "8", "--window", "64", "--iterations", "100", "--set", "device_kernel_patience=10s"]);
    command.arg(crate::support::libdir_option()).arg(Driver::find().folder).env("SIM_CUDA_STATS", &stats);
    // The launches by which the ways to launch kernels are compared do not count.
    command.env("SIM_CUDA_FAIL", "cuGraphCreate:801");
    finish(&mut command).assert_success();
    let (folder, prefix) = (file.parent().expect("a folder"), file.file_name().expect("a name").to_string_lossy());
    let entries = std::fs::read_dir(folder).expect("the folder is there").filter_map(Result::ok);
    let of_ranks = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{prefix}-")));
    let mut copies = Vec::new();
    for entry in of_ranks {
        let text = std::fs::read_to_string(entry.path()).expect("calls are written at the end");
        std::fs::remove_file(entry.path()).expect("the file was there");
        let made = |names: &[&str]| -> u64 {
            let lines = text.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| names.contains(name));
            lines.map(|(_, count)| count.parse::<u64>().expect("a count")).sum()
        };
        let asked = made(&["cuPointerGetAttributes"]);
        // The command's memory is the library's, which knows where it is.
        assert!(asked <= MESSAGES / 32, "where buffers are is asked {asked} times: {text}");
        copies.push(made(&["cuLaunchKernel", "cuGraphLaunch", "cuMemcpyBatchAsync", "cuMemcpyAsync"]));
        let ordered = made(&["cuEventRecord", "cuStreamWaitEvent", "cuStreamQuery"]);
        assert!(ordered <= MESSAGES / 4, "the default stream is asked about {ordered} times: {text}");
    }
    if copies.is_empty() {
        return skip("a real driver counts no calls");
    }
    copies.sort_unstable();
    assert_eq!(copies.len(), 2, "one for each rank");
    assert!(copies[0] < 50 && copies[1] <= MESSAGES / 8, "{copies:?} calls to copy");
}

/// The simulated driver is slow to begin each copy, as a device is that changes contexts.
fn turns() {
    if !Driver::find().simulated {
        return skip("a real device is shared by other means");
    }
    let slow = [ONE_DEVICE, ("SIM_CUDA_DELAY_US", "1000")];
    let found = |latency: &str| {
        let set = format!("device_turn_latency={latency}");
        direct(&run(3, &["--set", &set], &slow, "device_ring").assert_success())
    };
    // The first message of each pair may be staged until memory is mapped.
    let (direct, staged) = (found("1s"), found("150us"));
    assert!(direct >= 3 * PASSES - 6 && staged < PASSES, "{direct} and {staged} are direct");
}

fn killed_while_mapped() {
    let vmm = ("IPC_KIND", "vmm");
    let pool = ("IPC_KIND", "pool_shared");
    for variables in [&[][..], &[ONE_DEVICE], &[vmm], &[vmm, ONE_DEVICE], &[pool]] {
        let finished = run(3, &["--keep-going"], variables, "device_killed");
        let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
        assert_eq!(survived, 2, "{finished:#?}");
    }
}
