//! Signals of the launcher, as something to poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// What users and schedulers send to a launcher, meaning its job.
const FORWARDED: [Signal; 8] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];

/// From its creation on, signals wait here instead of acting on the process.
pub(super) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        // Under nohup, SIGHUP is ignored; it stays so, here and in the ranks.
        let hangup_ignored = ignored_signals().is_some_and(|mask| mask & (1 << (Signal::HUP.as_raw() - 1)) != 0);
        let signals = FORWARDED
            .iter()
            .filter(|&&signal| !(signal == Signal::HUP && hangup_ignored))
            .chain([&Signal::CHILD])
            .map(|signal| signal.as_raw());
        Ok(Signals { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, signals)? })
    }

    /// Readable when a signal waits.
    pub(super) fn readiness(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// Signals since the last call, SIGCHLD included.
    pub(super) fn take(&mut self) -> Vec<Signal> {
        self.delivery.pending().filter_map(Signal::from_named_raw).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.delivery.handle().close();
    }
}

/// This process's mask of ignored signals, bit 0 for signal 1.
fn ignored_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
