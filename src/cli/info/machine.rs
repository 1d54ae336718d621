//! Facts about this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cableway::{DeviceFacts, Devices, DriverFacts, Link, WritesSeen};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use serde_json::Value;

use super::section::{Fact, Section};

pub(super) fn sections() -> Vec<Section> {
    vec![
        Section::one("Cableway", vec![("version", env!("CARGO_PKG_VERSION").into())]),
        Section::one("CPUs", cpus()),
        Section::one("Shared memory", shared_memory()),
        Section::one("Single copy", single_copy()),
        Section::several("Interfaces", interfaces()),
        Section::one("Launchers", vec![("pmix", cableway::pmix_library().map_or(Value::Null, Value::from))]),
    ]
}

/// Returns the memory that connections over verbs take with the parameters in force.
#[cfg(feature = "openib")]
pub(super) fn verbs_section(parameters: &cableway::Parameters) -> Vec<Section> {
    let facts = match cableway::VerbsFootprint::new(parameters) {
        Ok(cost) => vec![
            ("bytes_shared_by_all_peers", cost.shared.into()),
            ("bytes_per_idle_peer", cost.per_peer().into()),
            ("of_these_queues", cost.queues.into()),
            ("of_these_driver", cost.driver.into()),
            ("of_these_receive_buffers", cost.buffers.into()),
            ("of_these_tables", cost.tables.into()),
            ("bytes_per_peer_for_each_port_that_stands_by", cost.standby.into()),
            ("bytes_with_10000_peers", cost.of(10_000).into()),
        ],
        Err(error) => vec![("reason", error.to_string().into())],
    };
    vec![
        ports(parameters),
        Section::one("Verbs connections", facts),
        Section::one("Verbs and device memory", direct(parameters)),
    ]
}

/// Returns the ports that a process would use, the best first, or the reason why there are none.
#[cfg(feature = "openib")]
fn ports(parameters: &cableway::Parameters) -> Section {
    const TITLE: &str = "Verbs ports";
    let none = |reason: String| Section::several(TITLE, vec![vec![("reason", reason.into())]]);
    match cableway::VerbsPort::all(parameters) {
        Ok(Ok(ports)) => Section::several(TITLE, ports.iter().map(port).collect()),
        Ok(Err(reason)) => none(reason),
        Err(error) => none(error.to_string()),
    }
}

#[cfg(feature = "openib")]
fn port(port: &cableway::VerbsPort) -> Vec<Fact> {
    vec![
        ("device", port.device.clone().into()),
        ("port", port.port.into()),
        ("protocol", port.protocol.into()),
        ("address", port.address.to_canonical().to_string().into()),
        ("megabits", port.megabits.into()),
    ]
}

/// Returns how verbs access device memory here, as far as the kernel decides it.
#[cfg(feature = "openib")]
fn direct(parameters: &cableway::Parameters) -> Vec<Fact> {
    let found = match cableway::VerbsDirectFacts::new(parameters) {
        Ok(found) => found,
        Err(error) => return vec![("reason", error.to_string().into())],
    };
    let missing = |reason: String| Value::from(format!("no: {reason}"));
    vec![
        ("dma_buf", found.dma_buf.map_or_else(missing, |()| "yes".into())),
        ("peer_memory", found.peer_memory.map_or_else(missing, Value::from)),
        ("largest_message_bytes", found.limit.into()),
    ]
}

pub(super) fn device_sections(devices: &Devices) -> Vec<Section> {
    let found = devices.initialise().and_then(|()| devices.facts());
    let facts = match found {
        Ok(facts) => facts,
        Err(error) => {
            return vec![Section::one("Driver", vec![("found", false.into()), ("reason", error.to_string().into())])];
        }
    };
    let driver = |driver: &DriverFacts| {
        vec![
            ("found", true.into()),
            ("vendor", driver.vendor.to_string().into()),
            ("simulated", driver.simulated.into()),
            ("version", driver.version.clone().into()),
            ("path", driver.path.display().to_string().into()),
        ]
    };
    let drivers = match &facts.drivers[..] {
        [only] => Section::one("Driver", driver(only)),
        several => Section::several("Drivers", several.iter().map(driver).collect()),
    };
    vec![
        drivers,
        Section::several("Devices", facts.devices.iter().map(device).collect()),
        Section::several("Links", facts.links.iter().map(link).collect()),
    ]
}

fn device(device: &DeviceFacts) -> Vec<Fact> {
    let uuid: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let (major, minor) = device.compute_capability;
    let seen = match device.direct.writes {
        WritesSeen::AtOnce => "at once",
        WritesSeen::AfterFlush => "after a flush",
        WritesSeen::Never => "never",
    };
    let mapped = match &device.mapped {
        Ok(way) => way.clone(),
        Err(reason) => format!("nothing: {reason}"),
    };
    let stream_operations = match &device.stream_operations {
        Ok(()) => "yes".to_owned(),
        Err(reason) => format!("no: {reason}"),
    };
    vec![
        ("index", device.index.0.into()),
        ("vendor", device.vendor.to_string().into()),
        ("name", device.name.clone().into()),
        ("memory_bytes", device.memory.into()),
        ("architecture", device.architecture.clone().into()),
        ("compute_capability", format!("{major}.{minor}").into()),
        ("pci", device.pci.clone().into()),
        ("uuid", uuid.into()),
        ("dma_buf", device.direct.dma_buf.into()),
        ("peer_memory", device.direct.peer_memory.into()),
        ("network_writes_seen", seen.into()),
        ("mapped_by", mapped.into()),
        ("stream_operations", stream_operations.into()),
    ]
}

fn link(link: &Link) -> Vec<Fact> {
    // Tells NVLink from PCIe without another library.
    let kind = match (link.peer_access, link.native_atomics) {
        (false, _) => "none",
        (true, true) => "nvlink",
        (true, false) => "pcie",
    };
    vec![
        ("devices", format!("{} to {}", link.from.0, link.to.0).into()),
        ("kind", kind.into()),
        ("peer_access", link.peer_access.into()),
        ("native_atomics", link.native_atomics.into()),
        ("performance_rank", link.performance_rank.into()),
    ]
}

fn cpus() -> Vec<Fact> {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).and_then(|line| line.split_once(':'));
    let allowed = std::thread::available_parallelism().map_or(Value::Null, |count| count.get().into());
    let siblings: BTreeSet<_> = online_cpus()
        .filter_map(|cpu| read(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))
        .collect();
    let nodes = std::fs::read_dir("/sys/devices/system/node").ok().map(|entries| {
        entries.flatten().filter(|entry| is_numbered(&entry.file_name().to_string_lossy(), "node")).count()
    });
    vec![
        ("model", model.map_or(Value::Null, |(_, model)| model.trim().into())),
        ("usable_by_this_process", allowed),
        ("online", online_cpus().count().into()),
        ("cores", if siblings.is_empty() { Value::Null } else { siblings.len().into() }),
        ("numa_nodes", nodes.map_or(Value::Null, Value::from)),
    ]
}

fn online_cpus() -> impl Iterator<Item = usize> {
    let list = read("/sys/devices/system/cpu/online").unwrap_or_default();
    let ranges: Vec<_> = list
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
        })
        .collect();
    ranges.into_iter().flatten()
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn shared_memory() -> Vec<Fact> {
    use rustix::fs::{MemfdFlags, memfd_create, statvfs};
    let memfd = memfd_create(c"cableway-info", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let space = statvfs("/dev/shm").ok();
    let bytes = |blocks: fn(&rustix::fs::StatVfs) -> u64| {
        space.as_ref().map_or(Value::Null, |space| (blocks(space) * space.f_frsize).into())
    };
    vec![
        ("sealed_memfd", memfd.is_ok().into()),
        ("dev_shm_bytes", bytes(|space| space.f_blocks)),
        ("dev_shm_free_bytes", bytes(|space| space.f_bavail)),
    ]
}

/// Returns whether the kernel allows cross memory attach between processes of one user.
fn single_copy() -> Vec<Fact> {
    // A kernel without Yama allows it.
    let scope = read("/proc/sys/kernel/yama/ptrace_scope").and_then(|scope| scope.parse::<u32>().ok());
    let meaning = match scope {
        None | Some(0) => "allowed between processes of one user",
        Some(1) => "allowed where btl_sm_set_ptracer=yes, or with CAP_SYS_PTRACE",
        Some(2) => "allowed with CAP_SYS_PTRACE only",
        Some(_) => "forbidden",
    };
    vec![("cma", meaning.into()), ("yama_ptrace_scope", scope.map_or(Value::Null, Value::from))]
}

fn interfaces() -> Vec<Vec<Fact>> {
    let mut found = BTreeMap::<String, (InterfaceFlags, Vec<String>)>::new();
    for address in getifaddrs().into_iter().flatten() {
        let interface = found.entry(address.interface_name).or_insert((address.flags, Vec::new()));
        let Some(storage) = address.address else { continue };
        if let Some(v4) = storage.as_sockaddr_in() {
            interface.1.push(v4.ip().to_string());
        } else if let Some(v6) = storage.as_sockaddr_in6() {
            interface.1.push(v6.ip().to_string());
        }
    }
    let speed = |name: &str| {
        let megabits = read(format!("/sys/class/net/{name}/speed"))?.parse::<i64>().ok()?;
        (megabits > 0).then_some(megabits)
    };
    let describe = |(name, (flags, addresses)): (String, (InterfaceFlags, Vec<String>))| {
        vec![
            ("name", name.clone().into()),
            ("up", flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING).into()),
            ("addresses", addresses.into()),
            ("megabits", speed(&name).map_or(Value::Null, Value::from)),
        ]
    };
    found.into_iter().map(describe).collect()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
