//! Processes of one node. The system reports their end at once, while a network detects it only by silence.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::fs::MetadataExt as _;

use cableway_base::fork::Unshared;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use sha2::{Digest, Sha256};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identifies a process to other processes of its node. All zeros mean unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Process {
    /// Identifies the node, its boot and the pid namespace.
    node: [u8; 16],
    /// The start time in the system's ticks, because pids are reused.
    start: U64,
    pid: U32,
}

/// The result of a search for a peer on this node.
pub enum Found {
    /// The peer is not on this node, or the system does not tell.
    Elsewhere,
    /// The process runs.
    Alive(Watch),
    /// The process has ended.
    Ended,
}

/// A descriptor that becomes readable when the process ends.
pub struct Watch(Unshared<OwnedFd>);

impl Process {
    /// Identifies the calling process.
    pub fn own() -> Self {
        own().unwrap_or_default()
    }

    /// Returns the pid, or 0 if it is unknown.
    pub fn pid(&self) -> u32 {
        self.pid.get()
    }

    /// Looks for this process from the process `by`.
    pub fn find(&self, by: &Process) -> Found {
        let pid = self.pid.get().try_into().ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| self.node == by.node && by.pid != U32::ZERO) else { return Found::Elsewhere };
        let descriptor = match Unshared::open(|| pidfd_open(pid, PidfdFlags::empty())) {
            Ok(descriptor) => descriptor,
            Err(Errno::SRCH) => return Found::Ended,
            Err(_) => return Found::Elsewhere,
        };
        // Compare after opening: a successor under the same pid would have started later.
        match start_of(&self.pid.to_string()) {
            Ok(start) if start == self.start.get() => Found::Alive(Watch(descriptor)),
            Ok(_) | Err(Errno::NOENT | Errno::SRCH) => Found::Ended,
            // This process may have no free descriptor, which tells nothing about the peer.
            Err(_) => Found::Elsewhere,
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn own() -> Option<Process> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let pids = std::fs::metadata("/proc/self/ns/pid").ok()?;
    let mut hash = Sha256::new();
    hash.update(boot);
    hash.update(pids.st_dev().to_le_bytes());
    hash.update(pids.st_ino().to_le_bytes());
    let mut node = [0; 16];
    node.copy_from_slice(&hash.finalize()[..16]);
    let pid = getpid().as_raw_nonzero().get().unsigned_abs();
    // In another pid namespace, /proc shows another process or none under this pid.
    let start = start_of("self").ok().filter(|&start| start_of(&pid.to_string()) == Ok(start))?;
    Some(Process { node, start: U64::new(start), pid: U32::new(pid) })
}

/// Returns the start time of a process: the 22nd field of its line. The second field is a name in parentheses.
fn start_of(pid: &str) -> Result<u64, Errno> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let field = line.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(22 - 3));
    field.and_then(|field| field.parse().ok()).ok_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::process::{Command, Stdio};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[test]
    fn ended_running_and_remote_processes_are_told_apart() {
        let own = Process::own();
        assert!(matches!(own.find(&own), Found::Alive(_)));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let start = start_of(&child.id().to_string()).unwrap();
        let theirs = Process { pid: U32::new(child.id()), start: U64::new(start), ..own };
        let Found::Alive(watch) = theirs.find(&own) else { panic!("it runs") };
        let ended = |wait: Timespec| poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&wait)).unwrap() == 1;
        assert!(!ended(Timespec::default()));
        // A successor with the same pid is a different process.
        let other = Process { start: U64::new(start + 1), ..theirs };
        assert!(matches!(other.find(&own), Found::Ended));
        let away = Process { node: [7; 16], ..theirs };
        assert!(matches!(away.find(&own), Found::Elsewhere));
        assert!(matches!(Process::default().find(&Process::default()), Found::Elsewhere));
        // Without descriptors the state is unknown.
        let limit = getrlimit(Resource::Nofile);
        let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
        let most = |current| setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        most(Some(next + 1));
        let found = theirs.find(&own);
        most(limit.current);
        assert!(matches!(found, Found::Elsewhere));
        drop(child.stdin.take());
        assert!(ended(Timespec { tv_sec: 60, tv_nsec: 0 }));
        child.wait().unwrap();
        assert!(matches!(theirs.find(&own), Found::Ended));
    }
}
