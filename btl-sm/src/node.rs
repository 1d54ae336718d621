//! The node and the namespaces of this process.

use std::io;
use std::os::linux::fs::MetadataExt as _;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A namespace, as the kernel identifies it on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Namespace {
    device: U64,
    inode: U64,
}

impl Namespace {
    fn of_this_process(kind: &str) -> io::Result<Self> {
        let metadata = std::fs::metadata(format!("/proc/self/ns/{kind}"))?;
        Ok(Namespace { device: metadata.st_dev().into(), inode: metadata.st_ino().into() })
    }
}

/// The node and namespaces of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Node {
    /// Differs between nodes and between boots of one node; containers share it with their host.
    pub(crate) boot_id: [u8; 36],
    /// Abstract sockets work only within this namespace.
    pub(crate) network: Namespace,
    /// Pids are valid within this namespace.
    pub(crate) pid: Namespace,
    /// Uids and capabilities are valid within this namespace.
    pub(crate) user: Namespace,
}

impl Node {
    /// Returns the node and namespaces of this process.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let text = std::fs::read("/proc/sys/kernel/random/boot_id")?;
        let boot_id = text.first_chunk().copied();
        Ok(Node {
            boot_id: boot_id.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the boot id is too short"))?,
            network: Namespace::of_this_process("net")?,
            pid: Namespace::of_this_process("pid")?,
            user: Namespace::of_this_process("user")?,
        })
    }
}
