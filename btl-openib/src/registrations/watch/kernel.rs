//! The interface to the kernel: see userfaultfd(2), ioctl_userfaultfd(2) and `linux/userfaultfd.h`.

use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};

use crate::NAME;

pub(crate) const PAGE: usize = 4096;

/// A userfaultfd.
pub(super) struct Kernel {
    pub(super) descriptor: OwnedFd,
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`, also used as `struct uffdio_continue` with other meanings of the last two words.
#[repr(C)]
struct Request {
    start: u64,
    len: u64,
    mode: u64,
    answer: u64,
}

/// `struct uffd_msg` for a removal.
#[repr(C)]
#[derive(Default)]
struct Report {
    event: u8,
    reserved: [u8; 7],
    start: u64,
    end: u64,
    unused: u64,
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Request>() == 32 && size_of::<Report>() == 32);

impl Kernel {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const UNREGISTER: libc::c_ulong = 0x8010_aa01;
    const CONTINUE: libc::c_ulong = 0xc020_aa07;

    const VERSION: u64 = 0xaa;
    const WRITE_PROTECT: u64 = 1 << 1;
    const MINOR: u64 = 1 << 2;
    const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
    const FEATURE_REMOVE: u64 = 1 << 3;
    const REMOVED: u8 = 0x15;

    pub(super) fn open() -> io::Result<Self> {
        // Exclude faults of the kernel, so that unprivileged processes may open it. rustix has no name for the flag
        // (`UFFD_USER_MODE_ONLY`).
        let user_mode_only = UserfaultfdFlags::from_bits_retain(1);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | user_mode_only;
        // SAFETY: no faults are requested, so that the memory does not change.
        let kernel = Kernel { descriptor: unsafe { userfaultfd(flags) }? };
        let features = Self::FEATURE_WRITE_PROTECT | Self::FEATURE_REMOVE;
        let mut api = Api { api: Self::VERSION, features, ioctls: 0 };
        // SAFETY: the structure is the one of this request.
        unsafe { kernel.ask(Self::API, (&raw mut api).cast()) }?;
        Ok(kernel)
    }

    /// Tests whether this kernel answers as expected.
    pub(super) fn prove(&self) -> io::Result<()> {
        let len = 4 * PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new mappings. The second replaces a part of the first, which has no references.
        let told = unsafe {
            let address = mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)?;
            let range = address as usize..address as usize + len;
            let before = self.knows(&range);
            let watched = self.register(&range);
            let registered = self.knows(&range);
            let replaced = mmap_anonymous(address.add(PAGE), PAGE, protection, MapFlags::PRIVATE | MapFlags::FIXED);
            let after = self.knows(&range);
            munmap(address, len)?;
            let shared = mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::SHARED)?;
            let foreign = self.register(&(shared as usize..shared as usize + len));
            munmap(shared, len)?;
            replaced?;
            !before && watched? && registered && !after && !foreign?
        };
        if told { Ok(()) } else { Err(io::Error::other("unexpected answers from this kernel's userfaultfd")) }
    }

    /// Registers a mapping. Returns false for shared memory and files.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<bool> {
        let register = |mode| {
            let mut request = Request { start: range.start as u64, len: range.len() as u64, mode, answer: 0 };
            // SAFETY: the structure is the one of this request.
            unsafe { self.ask(Self::REGISTER, (&raw mut request).cast()) }
        };
        // Only shared memory supports faults of this kind. No thread may wait for an answer, so unregister it at once.
        if register(Self::MINOR).is_ok() {
            self.unregister(range);
            return Ok(false);
        }
        // A thread faults only on protected pages, and none are protected.
        match register(Self::WRITE_PROTECT) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn unregister(&self, range: &Range<usize>) {
        let mut request = [range.start as u64, range.len() as u64];
        // SAFETY: the structure is the one of this request.
        let done = unsafe { self.ask(Self::UNREGISTER, request.as_mut_ptr().cast()) };
        if let Err(error) = done {
            log::debug!("{NAME}: memory at {:#x} stays watched: {error}", range.start);
        }
    }

    /// Returns whether the range lies in one registered mapping. Continuing a fault works only for shared memory. The
    /// kernel first checks whether the range is registered (`ENOENT` if not), and then refuses private memory
    /// (`EINVAL`).
    pub(super) fn knows(&self, range: &Range<usize>) -> bool {
        /// The kernel asks for a retry while another thread discards pages. After that many attempts the answer is
        /// unknown, which is not an error.
        const ATTEMPTS: usize = 1000;
        for _ in 0..ATTEMPTS {
            let mut request = Request { start: range.start as u64, len: range.len() as u64, mode: 0, answer: 0 };
            // SAFETY: the structure is the one of this request, which fails whatever the memory holds.
            match unsafe { self.ask(Self::CONTINUE, (&raw mut request).cast()) }.map_err(|error| error.raw_os_error()) {
                Err(Some(libc::EAGAIN)) => std::thread::yield_now(),
                answer => return answer == Err(Some(libc::EINVAL)),
            }
        }
        false
    }

    /// Returns a range of pages that a thread is about to discard; the thread continues after this. Returns `None` if
    /// no thread waits.
    pub(super) fn next_report(&self) -> Option<Range<usize>> {
        let mut bytes = [0; size_of::<Report>()];
        loop {
            match rustix::io::read(&self.descriptor, &mut bytes) {
                Ok(len) if len == bytes.len() => {}
                Err(Errno::INTR) => continue,
                _ => return None,
            }
            // SAFETY: integers, which any bytes represent.
            let report: Report = unsafe { std::mem::transmute(bytes) };
            if report.event == Self::REMOVED {
                return Some(report.start as usize..report.end as usize);
            }
        }
    }

    /// # Safety
    /// `argument` points to the structure of the request.
    unsafe fn ask(&self, request: libc::c_ulong, argument: *mut libc::c_void) -> io::Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
