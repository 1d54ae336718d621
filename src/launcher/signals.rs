//! Signals of the launcher, read from a descriptor that can be polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// Signals that users and schedulers send to the launcher and that are forwarded to the job.
const FORWARDED: [Signal; 8] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];

/// The signals that arrived since its creation. They do not act on the process.
pub(super) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        // Under nohup, SIGHUP is ignored. It stays ignored here and in the ranks.
        let hangup_ignored = ignored_signals().is_some_and(|mask| mask & (1 << (Signal::HUP.as_raw() - 1)) != 0);
        let signals = FORWARDED
            .iter()
            .filter(|&&signal| !(signal == Signal::HUP && hangup_ignored))
            .chain([&Signal::CHILD])
            .map(|signal| signal.as_raw());
        Ok(Signals { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, signals)? })
    }

    /// Returns the descriptor, which is readable when a signal is pending.
    pub(super) fn readiness(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// Returns the signals since the last call, SIGCHLD included.
    pub(super) fn take(&mut self) -> Vec<Signal> {
        self.delivery.pending().filter_map(Signal::from_named_raw).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.delivery.handle().close();
    }
}

/// Reads this process's mask of ignored signals; bit 0 is signal 1.
fn ignored_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
