//! The watcher: a process that ends the ranks' process groups if the launcher is killed. Processes that ranks started do
//! not notice by themselves that the launcher was killed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// The watcher process. It lives as long as this value.
pub(super) struct Watcher {
    process: Pid,
    /// Carries the numbers of process groups that start, and the negative numbers of those that ended. The watcher reads
    /// end of file when this process is gone. It is a socket, because a write to a pipe without a reader would raise
    /// SIGPIPE in a rank that starts.
    socket: UnixStream,
}

impl Watcher {
    /// Starts the watcher for at most `groups` process groups at a time. Call it before installing signal handlers: the
    /// watcher inherits them.
    pub(super) fn start(groups: usize) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        // Allocated before the fork, because the watcher must not allocate.
        let groups = Vec::with_capacity(groups);
        // SAFETY: the child makes system calls only, as a child of a process that may have threads must.
        match unsafe { libc::fork() } {
            0 => watch(theirs.as_raw_fd(), groups),
            pid @ 1.. => match Pid::from_raw(pid) {
                Some(process) => Ok(Watcher { process, socket }),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the descriptor for [`begin`].
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Removes a process group, whose number the system may now reuse.
    pub(super) fn end(&self, group: Pid) {
        if let Err(error) = say(self.socket(), -group.as_raw_nonzero().get()) {
            log::debug!("the launcher's watcher is gone: {error}");
        }
    }
}

/// Adds the process group that the calling process leads. A rank calls it before it executes its program: the launcher
/// may be killed at any time, and the program's first act may be to start other processes. Makes system calls only. A
/// watcher that is gone is no error.
pub(super) fn begin(socket: BorrowedFd<'_>) {
    let _ = say(socket, getpid().as_raw_nonzero().get());
}

/// Sends a word, which arrives as a whole.
fn say(socket: BorrowedFd<'_>, word: i32) -> rustix::io::Result<()> {
    send(socket, &word.to_ne_bytes(), SendFlags::NOSIGNAL).map(|_| ())
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let ended =
            kill_process(self.process, Signal::KILL).and_then(|()| waitpid(Some(self.process), WaitOptions::empty()));
        if let Err(error) = ended {
            log::debug!("the launcher's watcher: {error}");
        }
    }
}

/// Runs the watcher.
fn watch(socket: RawFd, mut groups: Vec<i32>) -> ! {
    // SAFETY: system calls on descriptors of this process, which nobody else uses, and on memory of this frame.
    unsafe {
        // Leave the launcher's process group, so that signals of the terminal do not arrive, and close its descriptors.
        libc::setpgid(0, 0);
        libc::dup2(socket, 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
        loop {
            let mut word = [0_u8; 4];
            match libc::read(0, word.as_mut_ptr().cast(), 4) {
                4 => match i32::from_ne_bytes(word) {
                    group @ 1.. if groups.len() < groups.capacity() => groups.push(group),
                    ended => groups.retain(|&group| group != -ended),
                },
                0 => break,
                _ if *libc::__errno_location() == libc::EINTR => {}
                _ => break,
            }
        }
        for group in groups {
            libc::kill(-group, libc::SIGKILL);
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    impl Watcher {
        /// Does to the watcher what the end of a killed launcher does.
        fn launcher_is_killed(&self) {
            self.socket.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }

    #[test]
    fn a_group_is_known_before_its_program_runs() {
        let watcher = Watcher::start(1).unwrap();
        let socket = watcher.socket().as_raw_fd();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100 & echo started; wait"]).process_group(0).stdout(Stdio::piped());
        // SAFETY: the closure makes system calls only, and the socket is open until the process has been started.
        unsafe {
            command.pre_exec(move || {
                begin(BorrowedFd::borrow_raw(socket));
                Ok(())
            });
        }
        let mut shell = command.spawn().unwrap();
        let mut output = shell.stdout.take().unwrap();
        output.read_exact(&mut [0; "started\n".len()]).unwrap();
        watcher.launcher_is_killed();
        // All processes that hold the pipe end.
        output.read_to_end(&mut Vec::new()).unwrap();
        assert!(!shell.wait().unwrap().success());
    }

    #[test]
    fn a_group_that_ended_is_left_alone() {
        let watcher = Watcher::start(1).unwrap();
        let mut sleep = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&sleep);
        say(watcher.socket(), group.as_raw_nonzero().get()).unwrap();
        watcher.end(group);
        watcher.launcher_is_killed();
        waitid(WaitId::Pid(watcher.process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(sleep.try_wait().unwrap().is_none());
        sleep.kill().unwrap();
        sleep.wait().unwrap();
    }
}
