//! Single copy between processes by cross-memory attach (CMA).
//!
//! A pid alone does not identify a peer: pids of another container name other processes, and a dead peer's pid may be
//! reused. So CMA is used only between processes of one pid and user namespace, and every `get` reads the peer's cookie
//! in the same system call as the data. Data without the right cookie is discarded.

use std::io;

use cableway_btl::{Access, RemoteHandle};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::blocks::Place;

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

/// Memory that a peer may copy from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Handle {
    address: U64,
    len: U64,
    access: u8,
}

const READABLE: u8 = 1;
const WRITABLE: u8 = 2;

impl Handle {
    pub(crate) fn new(address: *const u8, len: usize, access: Access) -> Self {
        let access = match access {
            Access::RemoteRead => READABLE,
            Access::RemoteWrite => WRITABLE,
        };
        Handle { address: (address as u64).into(), len: (len as u64).into(), access }
    }

    /// Returns the length of the memory.
    pub(crate) fn len(&self) -> u64 {
        self.len.get()
    }

    /// Encodes the handle.
    pub(crate) fn to_remote(self) -> Option<RemoteHandle> {
        RemoteHandle::new(self.as_bytes())
    }

    /// Returns the address of `len` bytes at `offset` of the peer's memory, if the peer permits this access.
    pub(crate) fn resolve(handle: &RemoteHandle, access: Access, offset: u64, len: usize) -> Result<u64, &'static str> {
        let (handle, place) = Handle::read_from_prefix(handle.as_bytes()).map_err(|_| "the handle is malformed")?;
        if !place.is_empty() && place.len() != size_of::<Place>() {
            return Err("the handle is malformed");
        }
        let wanted = match access {
            Access::RemoteRead => READABLE,
            Access::RemoteWrite => WRITABLE,
        };
        if handle.access != wanted {
            return Err("the handle was made for the other direction");
        }
        let end = offset.checked_add(len as u64).ok_or("the range overflows")?;
        if end > handle.len.get() {
            return Err("the range leaves the registered memory");
        }
        handle.address.get().checked_add(offset).ok_or("the address overflows")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_checked() {
        let memory = [0_u8; 100];
        let handle = Handle::new(memory.as_ptr(), 100, Access::RemoteRead).to_remote().unwrap();
        let resolve = |access, offset, len| Handle::resolve(&handle, access, offset, len);
        assert_eq!(resolve(Access::RemoteRead, 10, 90), Ok(memory.as_ptr() as u64 + 10));
        assert!(resolve(Access::RemoteRead, 10, 91).is_err());
        assert!(resolve(Access::RemoteRead, u64::MAX, 1).is_err());
        assert!(resolve(Access::RemoteWrite, 0, 1).is_err());
        let short = RemoteHandle::new(&handle.as_bytes()[1..]).unwrap();
        assert!(Handle::resolve(&short, Access::RemoteRead, 0, 1).is_err());
    }

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
