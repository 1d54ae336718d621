//! The table of what children do not share, and the handlers of `pthread_atfork(3)`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use slab::Slab;

use super::GENERATION;
use crate::lock::this_thread;

/// Something that children do not share.
#[derive(Clone, Copy)]
pub(super) enum Entry {
    Descriptor(RawFd),
    Mapping { base: usize, len: usize },
    Call(fn()),
}

/// Names an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key(usize);

pub(super) struct Table {
    entries: Slab<Entry>,
    /// The file that descriptors stand for in a child. There is one as long as there are entries, because a child may
    /// have no room for one more.
    substitute: Option<OwnedFd>,
}

impl Table {
    pub(super) fn insert(&mut self, entry: Entry) -> Key {
        if self.substitute.is_none() {
            self.substitute = substitute();
        }
        Key(self.entries.insert(entry))
    }

    pub(super) fn remove(&mut self, key: Key) {
        self.entries.remove(key.0);
        if self.entries.is_empty() {
            self.substitute = None;
        }
    }

    /// Acts on every entry, in a child. Allocates nothing, and takes no lock.
    fn forked(&self) {
        for (_, entry) in &self.entries {
            match *entry {
                Entry::Descriptor(descriptor) => replace(descriptor, self.substitute.as_ref()),
                Entry::Mapping { base, len } => make_private(base, len),
                Entry::Call(act) => act(),
            }
        }
    }
}

/// An event descriptor that never becomes readable. None: the process has no room for it.
fn substitute() -> Option<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: a system call, and its result is a new descriptor.
    unsafe {
        let made = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        (made >= 0).then(|| OwnedFd::from_raw_fd(made))
    }
}

fn replace(descriptor: RawFd, with: Option<&OwnedFd>) {
    // SAFETY: a system call on a descriptor that the entry's maker owns, in a copy of its process. Without a substitute
    // the number becomes free, which is the lesser evil.
    unsafe {
        match with {
            Some(with) => libc::dup3(with.as_raw_fd(), descriptor, libc::O_CLOEXEC),
            None => libc::close(descriptor),
        };
    }
}

fn make_private(base: usize, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the pages are a mapping's whose maker promised that a child does not rely on them.
    unsafe {
        let put = |access| libc::mmap(base as *mut libc::c_void, len, access, flags, -1, 0);
        // Where the system does not grant so much memory, the child faults should it use it after all.
        if put(libc::PROT_READ | libc::PROT_WRITE) == libc::MAP_FAILED {
            put(libc::PROT_NONE);
        }
    }
}

static LOCKED: Locked = Locked {
    holder: AtomicUsize::new(FREE),
    forks: AtomicU32::new(0),
    table: UnsafeCell::new(Table { entries: Slab::new(), substitute: None }),
};

/// Threads are named by an address of their own, which this is not.
const FREE: usize = 0;

/// A lock that may be taken before a fork and released on both sides of it, which no lock of a library promises. It is
/// held for a few system calls.
struct Locked {
    holder: AtomicUsize,
    /// For how many forks the holder has it: a signal's handler may fork in the midst of a fork. 0 if for something else.
    forks: AtomicU32,
    table: UnsafeCell<Table>,
}

// SAFETY: the table is touched by the holder of the lock alone.
unsafe impl Sync for Locked {}

impl Locked {
    fn acquire(&self) {
        while self.holder.compare_exchange_weak(FREE, this_thread(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
    }

    fn release(&self) {
        self.holder.store(FREE, Ordering::Release);
    }
}

/// The table, until dropped.
pub(super) struct Guard(());

pub(super) fn lock() -> Guard {
    install();
    LOCKED.acquire();
    Guard(())
}

impl Deref for Guard {
    type Target = Table;

    fn deref(&self) -> &Table {
        // SAFETY: a guard is the holder's.
        unsafe { &*LOCKED.table.get() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Table {
        // SAFETY: as above.
        unsafe { &mut *LOCKED.table.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        LOCKED.release();
    }
}

/// Has forks act on the table from here on.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this program or of a library that is never unloaded (`ompi/build.rs`).
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(in_child));
    });
}

extern "C" fn before() {
    if LOCKED.holder.load(Ordering::Relaxed) != this_thread() {
        LOCKED.acquire();
        LOCKED.forks.store(1, Ordering::Relaxed);
    } else if LOCKED.forks.load(Ordering::Relaxed) != 0 {
        LOCKED.forks.fetch_add(1, Ordering::Relaxed);
    }
    // Else a signal came while this thread changed the table, and its handler forks: that child keeps everything.
}

extern "C" fn after() {
    match LOCKED.forks.load(Ordering::Relaxed) {
        0 => {}
        1 => {
            LOCKED.forks.store(0, Ordering::Relaxed);
            LOCKED.release();
        }
        more => LOCKED.forks.store(more - 1, Ordering::Relaxed),
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if LOCKED.forks.load(Ordering::Relaxed) != 0 {
        // SAFETY: this thread is a copy of the lock's holder.
        unsafe { &*LOCKED.table.get() }.forked();
    }
    after();
}
