//! The process of one rank.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process_group, waitid};
use rustix::thread::CpuSet;

use super::Launcher;
use super::output::{Source, Stream};
use super::watcher::{self, Watcher};
use crate::modex::{LOCAL_RANK_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE, SOCKET_VARIABLE, announce};

/// A rank that has been started.
pub(super) struct RankProcess {
    pid: Pid,
    child: Child,
    status: Option<ExitStatus>,
}

/// A started rank: its process, the launcher's end of its socket, and its output if that is forwarded.
pub(super) struct Started {
    pub(super) process: RankProcess,
    pub(super) socket: UnixStream,
    pub(super) output: Vec<Source>,
}

/// Starts a rank. The watcher knows its process group before its program runs.
pub(super) fn start(launcher: &Launcher, watcher: &Watcher, rank: u32, place: Option<CpuSet>) -> io::Result<Started> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(&launcher.program);
    command
        .args(&launcher.arguments)
        .envs(launcher.environment.iter().map(|(name, value)| (name, value)))
        .env(SOCKET_VARIABLE, announce(theirs.as_fd())?)
        .env(RANK_VARIABLE, rank.to_string())
        .env(LOCAL_RANK_VARIABLE, rank.to_string())
        .env(SIZE_VARIABLE, launcher.ranks.to_string())
        .stdin(if rank == 0 { standard_input() } else { Stdio::null() })
        .process_group(0);
    let mut output = Vec::new();
    if launcher.tag_output {
        let (pipe, write) = io::pipe()?;
        command.stdout(write);
        output.push(Source { rank, stream: Stream::Out, pipe });
        let (pipe, write) = io::pipe()?;
        command.stderr(write);
        output.push(Source { rank, stream: Stream::Err, pipe });
    }
    let launcher_pid = rustix::process::getpid();
    let (socket, watching) = (theirs.as_raw_fd(), watcher.socket().as_raw_fd());
    // SAFETY: the closure makes system calls only, as a child of a threaded process must; `theirs` and the watcher live
    // until the child has been started, so the numbers name their sockets.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(launcher_pid) {
                return Err(Errno::SRCH.into());
            }
            if let Some(place) = &place {
                rustix::thread::sched_setaffinity(None, place)?;
            }
            fcntl_setfd(BorrowedFd::borrow_raw(socket), FdFlags::empty())?;
            watcher::begin(BorrowedFd::borrow_raw(watching));
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    if let Some(mut to) = child.stdin.take() {
        // Not joined: the thread may block on a terminal, and ends with the launcher.
        std::thread::Builder::new().name("stdin".into()).spawn(move || io::copy(&mut io::stdin(), &mut to))?;
    }
    let pid = Pid::from_child(&child);
    Ok(Started { process: RankProcess { pid, child, status: None }, socket: ours, output })
}

/// Returns the standard input of rank 0. Rank 0 is not in the terminal's foreground group and would be stopped on
/// reading it. The launcher therefore reads a terminal and forwards it, unless the launcher is in the background, too.
fn standard_input() -> Stdio {
    let stdin = io::stdin();
    match rustix::termios::tcgetpgrp(stdin.as_fd()) {
        Err(_) => Stdio::inherit(),
        Ok(foreground) if foreground == rustix::process::getpgrp() => Stdio::piped(),
        Ok(_) => Stdio::null(),
    }
}

impl RankProcess {
    /// Its process and its process group.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn running(&self) -> bool {
        self.status.is_none()
    }

    /// Returns the status of the rank if it has ended since the last call, after killing the rest of its process group.
    pub(super) fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        if !self.running() {
            return Ok(None);
        }
        // Killed before the rank is reaped: until then no other process group can have this number.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::Pid(self.pid), options)?.is_none() {
            return Ok(None);
        }
        self.signal(Signal::KILL);
        self.status = Some(self.child.wait()?);
        Ok(self.status)
    }

    /// Sends `signal` to the rank's process group, if the rank has not ended.
    pub(super) fn signal(&self, signal: Signal) {
        if self.running()
            && let Err(error) = kill_process_group(self.pid, signal)
        {
            log::debug!("signal {} to process group {}: {error}", signal.as_raw(), self.pid.as_raw_nonzero());
        }
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        if self.running() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Returns the exit code that a shell makes of a status.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
