//! Device memory that the NIC accesses itself. The simulated driver lets soft-RoCE register its memory if
//! `SIM_CUDA_DIRECT` says so.

use std::path::PathBuf;

use crate::support::{Driver, Finished, Test, cableway, finish, role_job, skip, start, transports};

pub(crate) const TESTS: &[Test] = &[
    ("device::the_network_device_moves_messages_up_to_a_limit", up_to_a_limit),
    ("device::the_network_device_never_reads_freed_memory", never_from_freed_memory),
    ("device::messages_are_staged_if_the_network_device_cannot_move_them", or_through_the_host),
    ("device::the_network_device_moves_messages_to_and_from_hosts", to_and_from_hosts),
];

/// A `/sys` that contains the module, and the driver's settings for it.
struct Machine {
    driver: PathBuf,
    sysfs: PathBuf,
}

impl Machine {
    /// Returns `None` where verbs are not tested.
    fn new() -> Option<Machine> {
        let Driver { folder, simulated, .. } = Driver::find();
        if !transports().iter().any(|btl| btl == "openib") {
            skip("verbs are tested where CABLEWAY_TEST_TRANSPORTS names openib");
            return None;
        }
        if !simulated {
            skip("the module is one by name only, which serves the simulated driver");
            return None;
        }
        let sysfs = std::env::temp_dir().join(format!("cableway-direct-{}", std::process::id()));
        std::fs::create_dir_all(sysfs.join("module/nvidia_peermem")).expect("a folder for tests");
        Some(Machine { driver: folder, sysfs })
    }

    fn options(&self, sets: &[&str]) -> Vec<String> {
        let sysfs = format!("btl_openib_gpudirect_sysfs={}", self.sysfs.display());
        let folder = self.driver.to_string_lossy().into_owned();
        let sets = ["btl=openib", &sysfs].into_iter().chain(sets.iter().copied());
        [crate::support::libdir_option().to_owned(), folder]
            .into_iter()
            .chain(sets.flat_map(|set| ["--set".to_owned(), set.to_owned()]))
            .collect()
    }

    fn run(&self, sets: &[&str], direct: &str, role: &str) -> Finished {
        let options = self.options(sets);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        finish(role_job(2, &options, role).env("SIM_CUDA_DIRECT", direct)).assert_success()
    }

    fn explain(&self, sets: &[&str], direct: &str) -> String {
        let mut command = cableway();
        command.args(["explain", "--src", "device", "--dst", "device", "--size", "1..1M"]);
        finish(command.args(self.options(sets)).env("SIM_CUDA_DIRECT", direct)).assert_success().stdout
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.sysfs);
    }
}

/// Returns the number of messages, as ranks report, that one transfer moved from and to device memory.
fn direct(finished: &Finished) -> u64 {
    let counts = finished.stdout.lines().filter_map(|line| line.strip_prefix("direct "));
    counts.map(|count| count.parse::<u64>().expect("a count")).sum()
}

/// `device_exchange` sends messages of 1, 8, 3000, 4096, 100001 and 3 MiB, each four times both ways.
fn up_to_a_limit() {
    let Some(machine) = Machine::new() else { return };
    for (limit, sizes) in [("3G", 6), ("4096", 4), ("4095", 3), ("0", 0)] {
        let set = format!("btl_openib_gpudirect_limit={limit}");
        let finished = machine.run(&[&set], "peer_memory", "device_exchange");
        assert_eq!(direct(&finished), sizes * 4 * 2, "up to {limit}: {finished:#?}");
        assert_eq!(finished.stderr, "", "up to {limit}");
    }
    // The sender's NIC writes.
    let finished = machine.run(&["btl_openib_get=no"], "peer_memory", "device_exchange");
    assert!(direct(&finished) > 0, "{finished:#?}");
}

fn never_from_freed_memory() {
    let Some(machine) = Machine::new() else { return };
    for cache in ["1G", "100K"] {
        let set = format!("btl_openib_registration_cache={cache}");
        let finished = machine.run(&[&set, "btl_openib_gpudirect_limit=3G"], "peer_memory", "device_fresh");
        assert!(direct(&finished) > 0, "{finished:#?}");
    }
}

/// Messages are staged if that is requested, and if nothing else works. In the second case each rank logs one line with
/// the reason.
fn or_through_the_host() {
    let Some(machine) = Machine::new() else { return };
    let nobody = "btl_openib_gpudirect_sysfs=/nowhere";
    for (sets, driver, lines, said) in [
        (&["btl_openib_gpudirect=off"][..], "peer_memory", 0, "btl_openib_gpudirect=off"),
        (&["device_protocols=copy"], "peer_memory", 0, "device_protocols=copy"),
        (&[nobody], "dma_buf", 2, "by dma-buf"),
        (&[nobody], "", 0, "the device's driver exports none"),
        (&["btl_openib_gpudirect=dmabuf"], "dma_buf", 2, "by dma-buf"),
    ] {
        let finished = machine.run(sets, driver, "device_exchange");
        assert_eq!(direct(&finished), 0, "{sets:?}: {finished:#?}");
        let mut command = cableway();
        command.args(["pingpong", "--src", "device", "--dst", "device", "--check", "--sizes", "8,9000"]);
        command.args(["--iterations", "3"]).args(machine.options(sets)).env("SIM_CUDA_DIRECT", driver);
        let finished = finish(&mut command).assert_success();
        assert_eq!(finished.stderr.matches("device memory goes through host buffers").count(), lines, "{finished:#?}");
        if !driver.contains("dma_buf") {
            let explained = machine.explain(sets, driver);
            assert!(explained.contains(said) && !explained.contains("rendezvous, get"), "{sets:?}: {explained}");
        }
    }
    let explained = machine.explain(&[], "peer_memory");
    let rows =
        ["by peer memory (nvidia_peermem)", "..131072  rendezvous, get", " 131073..1048576  rendezvous, copied in"];
    assert!(rows.iter().all(|row| explained.contains(row)), "{explained}");
}

fn to_and_from_hosts() {
    let Some(machine) = Machine::new() else { return };
    for (from, to) in [("device", "host"), ("host", "device"), ("device", "managed")] {
        let mut command = cableway();
        command.args(["pingpong", "--src", from, "--dst", to, "--check", "--iterations", "2"]);
        command.args(["--sizes", "1,12265,65535,65536,99999,100000,100001,1000000"]);
        command.args(machine.options(&["btl_openib_gpudirect_limit=100000"])).env("SIM_CUDA_DIRECT", "peer_memory");
        let finished = start(&mut command).finish().assert_success();
        assert!(finished.stdout.contains("1000000"), "{finished:#?}");
    }
}
