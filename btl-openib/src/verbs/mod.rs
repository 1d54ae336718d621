//! Verbs, by a library that is loaded at first use.
//!
//! Every object keeps the objects alive that it was made from, so they may be dropped in any order. Dropping destroys.
//! The types are rdma-core's, as `rdma-mummy-sys` declares them. Its functions are not used: they would load libibverbs
//! and two more libraries before `main` of every program, which costs milliseconds. Values that the kernel or the
//! library returns are integers here, never Rust enumerations.

mod connection_manager;
mod context;
mod events;
mod forks;
mod library;
mod objects;
mod path;
mod queue_pair;
mod registered;
mod results;

pub(crate) use connection_manager::{CmEvent, ConnectRequest, Events, Id, Param, Reads};
pub(crate) use context::{Context, PortFacts};
pub(crate) use events::Event;
pub(crate) use library::Library;
pub(crate) use objects::{AddressHandle, Channel, CompletionQueue, Protection, SharedReceiveQueue};
pub(crate) use path::{Path, Patience, Priority};
pub(crate) use queue_pair::{Data, Gather, Post, QueuePair, QueuePairOptions, Remote, Work};
pub(crate) use rdma_mummy_sys::{ibv_wc as Completion, ibv_wc_opcode as opcode, ibv_wc_status as status};
pub(crate) use registered::{Access, MemoryRegion};

/// The kernel's list of devices.
const SYSFS: &str = "/sys/class/infiniband";

/// Returns whether this machine has any device. The check takes a microsecond.
pub(crate) fn any_device() -> bool {
    std::fs::read_dir(SYSFS).is_ok_and(|mut entries| entries.next().is_some())
}

/// Returns whether a test finds a device. If not, prints that.
#[cfg(test)]
pub(crate) fn has_device() -> bool {
    let found = any_device();
    if !found {
        println!("skipped: this machine has no verbs device (tests/rxe-guest/run emulates one that has)");
    }
    found
}

/// Reads the kernel's information about a device's port: a file below `ports/N`, trimmed.
pub(crate) fn port_file(device: &str, port: u8, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("{SYSFS}/{device}/ports/{port}/{file}")).ok()?;
    Some(text.trim().to_owned())
}
