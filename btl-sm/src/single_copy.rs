//! Single copy between processes by cross-memory attach (CMA).
//!
//! A pid alone does not identify a peer: pids of another container name other processes, and a dead peer's pid may be
//! reused. So CMA is used only between processes of one pid and user namespace, and every `get` reads the peer's cookie
//! in the same system call as the data. Data without the right cookie is discarded.

use std::io;

/// A peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) pid: u32,
    pub(crate) cookie_address: u64,
    pub(crate) cookie: u64,
}

/// The reason why a copy failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("the process of that pid is not the peer")]
    NotThePeer,
}

impl CopyError {
    /// Returns whether the process has ended.
    pub(crate) fn is_death(&self) -> bool {
        matches!(self, CopyError::System(error) if error.raw_os_error() == Some(libc::ESRCH))
    }
}

/// Logs once why single copy does not work.
pub(crate) fn explain(error: &CopyError) {
    let refused = matches!(error, CopyError::System(error) if error.raw_os_error() == Some(libc::EPERM));
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let advice = match scope.trim() {
        "1" if refused => "; Yama forbids it (kernel.yama.ptrace_scope = 1): set btl_sm_set_ptracer",
        "2" | "3" if refused => "; Yama forbids it (kernel.yama.ptrace_scope)",
        _ if refused => "; a container may need CAP_SYS_PTRACE or another seccomp profile",
        _ => "",
    };
    cableway_base::warn_once("sm/single-copy", || {
        format!("sm: large messages are copied twice, because single copy does not work: {error}{advice}")
    });
}

impl Remote {
    /// Returns whether the memory is readable and belongs to the peer.
    pub(crate) fn check(&self) -> Result<(), CopyError> {
        // SAFETY: nothing but the cookie is copied.
        unsafe { self.read(std::ptr::null_mut(), 0, 0) }
    }

    /// Copies `len` bytes at the peer's `address` to `local`. After an error some of them may have been copied.
    ///
    /// # Safety
    /// `local` is valid for writes of `len` bytes, and no other code accesses it meanwhile.
    pub(crate) unsafe fn read(&self, local: *mut u8, address: u64, len: usize) -> Result<(), CopyError> {
        let mut done = 0;
        loop {
            let mut cookie = [0_u8; 8];
            let rest = local.wrapping_add(done);
            let ours = [vector(cookie.as_mut_ptr(), 8), vector(rest, len - done)];
            let theirs = [
                vector(self.cookie_address as *mut u8, 8),
                vector(address.wrapping_add(done as u64) as *mut u8, len - done),
            ];
            let parts = if len == done { 1 } else { 2 };
            // SAFETY: the local vectors are ours to write; the remote ones are read by the kernel, which checks them.
            let copied = unsafe {
                libc::process_vm_readv(self.pid as libc::pid_t, ours.as_ptr(), parts, theirs.as_ptr(), parts, 0)
            };
            let copied = usize::try_from(copied).map_err(|_| io::Error::last_os_error())?;
            if copied < 8 || u64::from_ne_bytes(cookie) != self.cookie {
                return Err(CopyError::NotThePeer);
            }
            done += copied - 8;
            if done == len {
                return Ok(());
            }
            if copied == 8 {
                return Err(io::Error::from_raw_os_error(libc::EFAULT).into());
            }
        }
    }

    /// Copies `len` bytes at `local` to the peer's `address`. After an error some of them may have been copied.
    ///
    /// # Safety
    /// `local` is valid for reads of `len` bytes, and no code writes it meanwhile.
    pub(crate) unsafe fn write(&self, local: *const u8, address: u64, len: usize) -> Result<(), CopyError> {
        self.check()?;
        let mut done = 0;
        while done < len {
            let ours = vector(local.wrapping_add(done).cast_mut(), len - done);
            let theirs = vector(address.wrapping_add(done as u64) as *mut u8, len - done);
            // SAFETY: the local vector is only read; the remote one is written by the kernel, in a process that has
            // just been seen to be the peer and said that it may be.
            let copied = unsafe { libc::process_vm_writev(self.pid as libc::pid_t, &ours, 1, &theirs, 1, 0) };
            match usize::try_from(copied) {
                Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT).into()),
                Ok(copied) => done += copied,
                Err(_) => return Err(io::Error::last_os_error().into()),
            }
        }
        Ok(())
    }
}

/// Lets any process of this user copy from this one, although Yama permits only its ancestors.
pub(crate) fn let_peers_attach() {
    // SAFETY: sets a flag of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    if result != 0 {
        // Without Yama the flag neither exists nor is needed.
        log::debug!("sm: PR_SET_PTRACER was refused: {}", io::Error::last_os_error());
    }
}

fn vector(address: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address.cast(), iov_len: len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_intended_process_is_read() {
        let cookie = Box::new(0x1234_5678_9abc_def0_u64);
        let source = vec![7_u8; 100_000];
        let mut target = vec![0_u8; 100_000];
        let mut remote = Remote { pid: std::process::id(), cookie_address: &raw const *cookie as u64, cookie: *cookie };
        // SAFETY: both vectors are ours.
        unsafe { remote.read(target.as_mut_ptr(), source.as_ptr() as u64, source.len()) }.unwrap();
        assert_eq!(source, target);
        target.fill(1);
        // SAFETY: as above; the target is written through the kernel while only its address is held.
        unsafe { remote.write(source.as_ptr(), target.as_mut_ptr() as u64, source.len()) }.unwrap();
        assert_eq!(source, target);
        // SAFETY: the local range is ours; the remote one is nobody's.
        let error = unsafe { remote.read(target.as_mut_ptr(), 4096, 100) }.unwrap_err();
        assert!(!error.is_death(), "{error}");
        remote.cookie += 1;
        assert!(matches!(remote.check(), Err(CopyError::NotThePeer)));
        remote.pid = i32::MAX as u32;
        assert!(remote.check().unwrap_err().is_death());
    }
}
