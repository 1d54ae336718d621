//! The kernel's side: see userfaultfd(2), ioctl_userfaultfd(2) and `linux/userfaultfd.h`.

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

/// `struct uffdio_register`, and with other words for the last two `struct uffdio_continue`.
#[repr(C)]
struct Request {
    start: u64,
    len: u64,
    mode: u64,
    answer: u64,
}

/// `struct uffd_msg` of a removal.
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
        // Faults of the kernel's are none of ours: so that unprivileged processes may have it. rustix has no name for
        // it (`UFFD_USER_MODE_ONLY`).
        let user_mode_only = UserfaultfdFlags::from_bits_retain(1);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | user_mode_only;
        // SAFETY: no faults are asked for, so that no memory of anybody's changes by it.
        let kernel = Kernel { descriptor: unsafe { userfaultfd(flags) }? };
        let features = Self::FEATURE_WRITE_PROTECT | Self::FEATURE_REMOVE;
        let mut api = Api { api: Self::VERSION, features, ioctls: 0 };
        // SAFETY: the structure is this request's.
        unsafe { kernel.ask(Self::API, (&raw mut api).cast()) }?;
        Ok(kernel)
    }

    /// Tries whether this kernel answers as the others of which it is known.
    pub(super) fn prove(&self) -> io::Result<()> {
        let len = 4 * PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new mappings; the second takes the place of a part of the first, which nothing refers to.
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
        if told { Ok(()) } else { Err(io::Error::other("this kernel's userfaultfd answers in another way")) }
    }

    /// Registers a mapping. False: it is shared memory, or a file's.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<bool> {
        let register = |mode| {
            let mut request = Request { start: range.start as u64, len: range.len() as u64, mode, answer: 0 };
            // SAFETY: the structure is this request's.
            unsafe { self.ask(Self::REGISTER, (&raw mut request).cast()) }
        };
        // Only shared memory has faults of this kind. None may wait for an answer: it is unregistered at once.
        if register(Self::MINOR).is_ok() {
            self.unregister(range);
            return Ok(false);
        }
        // Pages would have to be protected before anybody faulted, and none are.
        match register(Self::WRITE_PROTECT) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn unregister(&self, range: &Range<usize>) {
        let mut request = [range.start as u64, range.len() as u64];
        // SAFETY: the structure is this request's.
        let done = unsafe { self.ask(Self::UNREGISTER, request.as_mut_ptr().cast()) };
        if let Err(error) = done {
            log::debug!("{NAME}: memory at {:#x} stays watched: {error}", range.start);
        }
    }

    /// Whether the range lies in one mapping that is registered. To continue a fault is for shared memory only: of
    /// ours the kernel says that it is none (`EINVAL`), but before that whether it is registered at all (`ENOENT`).
    pub(super) fn knows(&self, range: &Range<usize>) -> bool {
        /// While somebody discards pages, the kernel has one ask again; not to know after so often is no error.
        const ATTEMPTS: usize = 1000;
        for _ in 0..ATTEMPTS {
            let mut request = Request { start: range.start as u64, len: range.len() as u64, mode: 0, answer: 0 };
            // SAFETY: the structure is this request's, which ends in an error whatever lies there.
            match unsafe { self.ask(Self::CONTINUE, (&raw mut request).cast()) }.map_err(|error| error.raw_os_error()) {
                Err(Some(libc::EAGAIN)) => std::thread::yield_now(),
                answer => return answer == Err(Some(libc::EINVAL)),
            }
        }
        false
    }

    /// A range of pages that are about to be discarded, by a thread that goes on from here; none if none waits.
    pub(super) fn next_report(&self) -> Option<Range<usize>> {
        let mut bytes = [0; size_of::<Report>()];
        loop {
            match rustix::io::read(&self.descriptor, &mut bytes) {
                Ok(len) if len == bytes.len() => {}
                Err(Errno::INTR) => continue,
                _ => return None,
            }
            // SAFETY: integers, for which any bytes will do.
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
