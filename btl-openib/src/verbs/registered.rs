//! Memory that the device can access.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::ibv_mr;

use super::objects::Protection;
use super::results::made;

/// The permitted kinds of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Own operations may read it.
    LocalRead,
    /// Own operations may read and write it.
    LocalWrite,
    /// Peers may read it.
    RemoteRead,
    /// Peers may read it, and own operations may also write it.
    LocalWriteRemoteRead,
    /// Peers may write it.
    RemoteWrite,
}

impl Access {
    fn flags(self) -> i32 {
        const LOCAL_WRITE: i32 = 1;
        const REMOTE_WRITE: i32 = 2;
        const REMOTE_READ: i32 = 4;
        match self {
            Access::LocalRead => 0,
            Access::LocalWrite => LOCAL_WRITE,
            Access::RemoteRead => REMOTE_READ,
            Access::LocalWriteRemoteRead => LOCAL_WRITE | REMOTE_READ,
            Access::RemoteWrite => LOCAL_WRITE | REMOTE_WRITE,
        }
    }
}

/// A range that the device can access until this is dropped. Its pages stay in place, even if the mapping changes.
pub(crate) struct MemoryRegion {
    protection: Arc<Protection>,
    raw: NonNull<ibv_mr>,
    local_key: u32,
    remote_key: u32,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// # Safety
    /// The range is mapped, and stays so while work on it is under way.
    ///
    /// # Errors
    /// The pages may not be locked, or cannot be written.
    pub(crate) unsafe fn new(
        protection: &Arc<Protection>,
        address: *mut u8,
        len: usize,
        access: Access,
    ) -> io::Result<Self> {
        // SAFETY: the protection domain is live, the range mapped as the caller promises.
        let raw = made(unsafe {
            (protection.context.library.ibv_reg_mr)(protection.raw.as_ptr(), address.cast(), len, access.flags())
        })?;
        Ok(Self::of(protection, raw))
    }

    /// Registers the part of a dma-buf that begins at `offset`. Work names it by the addresses of `range`. Both have
    /// the same offset within a page.
    ///
    /// # Errors
    /// The library is too old, or the device does not support it.
    pub(crate) fn of_dma_buf(
        protection: &Arc<Protection>,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        range: &Range<usize>,
        access: Access,
    ) -> io::Result<Self> {
        let register = protection.context.library.ibv_reg_dmabuf_mr.ok_or(io::ErrorKind::Unsupported)?;
        let (domain, address) = (protection.raw.as_ptr(), range.start as u64);
        // SAFETY: the protection domain is live, the descriptor open; the kernel checks what it is, and the part of it.
        let raw = made(unsafe { register(domain, offset, range.len(), address, dma_buf.as_raw_fd(), access.flags()) })?;
        Ok(Self::of(protection, raw))
    }

    fn of(protection: &Arc<Protection>, raw: NonNull<ibv_mr>) -> Self {
        // SAFETY: the library filled in the structure.
        let (local_key, remote_key) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        MemoryRegion { protection: Arc::clone(protection), raw, local_key, remote_key }
    }

    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        self.local_key
    }

    pub(crate) fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made by us. Work that still names it fails at the device, which touches the memory no more.
        unsafe { (self.protection.context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}
