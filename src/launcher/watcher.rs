//! The watcher: a process that ends the ranks' process groups if the launcher is killed. Processes that ranks started do
//! not notice by themselves that the launcher was killed.

use std::io::{self, PipeWriter, Write as _};
use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The watcher process. It lives as long as this value.
pub(super) struct Watcher {
    process: Pid,
    /// Carries the numbers of process groups that start, and the negative numbers of those that ended. The watcher reads
    /// end of file when this process is gone.
    pipe: PipeWriter,
}

impl Watcher {
    /// Starts the watcher for at most `groups` process groups at a time. Call it before installing signal handlers: the
    /// watcher inherits them.
    pub(super) fn start(groups: usize) -> io::Result<Self> {
        let (read, pipe) = io::pipe()?;
        // Allocated before the fork, because the watcher must not allocate.
        let groups = Vec::with_capacity(groups);
        // SAFETY: the child makes system calls only, as a child of a process that may have threads must.
        match unsafe { libc::fork() } {
            0 => watch(read.as_raw_fd(), groups),
            pid @ 1.. => match Pid::from_raw(pid) {
                Some(process) => Ok(Watcher { process, pipe }),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Adds the process group of a rank.
    pub(super) fn begin(&mut self, group: Pid) {
        self.say(group.as_raw_nonzero().get());
    }

    /// Removes a process group, whose number the system may now reuse.
    pub(super) fn end(&mut self, group: Pid) {
        self.say(-group.as_raw_nonzero().get());
    }

    fn say(&mut self, word: i32) {
        if let Err(error) = self.pipe.write_all(&word.to_ne_bytes()) {
            log::debug!("the launcher's watcher is gone: {error}");
        }
    }
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
fn watch(pipe: RawFd, mut groups: Vec<i32>) -> ! {
    // SAFETY: system calls on descriptors of this process, which nobody else uses, and on memory of this frame.
    unsafe {
        // Leave the launcher's process group, so that signals of the terminal do not arrive, and close its descriptors.
        libc::setpgid(0, 0);
        libc::dup2(pipe, 0);
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
