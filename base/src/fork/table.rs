//! The table of descriptors and mappings that children do not share, and the handlers of `pthread_atfork(3)`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use slab::Slab;

use super::GENERATION;
use crate::lock::this_thread;

/// One object that children do not share, or a function to call in them.
#[derive(Clone, Copy)]
pub(super) enum Entry {
    Descriptor(RawFd),
    Mapping { base: usize, len: usize },
    Call(fn()),
}

/// Identifies an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key(usize);

pub(super) struct Table {
    entries: Slab<Entry>,
    /// The file that replaces descriptors in a child. The parent opens it together with the first entry, because a child
    /// may have no free descriptor.
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

    /// Isolates the child from every entry. Allocates no memory and takes no lock.
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

/// Opens an event descriptor that never becomes readable. Returns `None` if the process has no free descriptor.
fn substitute() -> Option<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: eventfd(2) returns a new descriptor.
    unsafe {
        let made = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        (made >= 0).then(|| OwnedFd::from_raw_fd(made))
    }
}

fn replace(descriptor: RawFd, with: Option<&OwnedFd>) {
    // SAFETY: the descriptor belongs to the code that made the entry, and this is a copy of its process. Without a
    // substitute, close the descriptor: a reused number does less harm than an open connection.
    unsafe {
        match with {
            Some(with) => libc::dup3(with.as_raw_fd(), descriptor, libc::O_CLOEXEC),
            None => libc::close(descriptor),
        };
    }
}

fn make_private(base: usize, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the pages belong to one mapping, and `Registered::mapping` requires that no child relies on them.
    unsafe {
        let put = |access| libc::mmap(base as *mut libc::c_void, len, access, flags, -1, 0);
        // The system has too little memory. Forbid access, so that the child faults if it uses the range.
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

/// No thread has this identifier.
const FREE: usize = 0;

/// A lock that is taken before a fork and released in both the parent and the child. No lock of a library supports that.
/// It is held for a few system calls.
struct Locked {
    holder: AtomicUsize,
    /// The number of nested forks that the holder is in, as a signal handler may fork during a fork. 0 if the holder
    /// took the lock for another reason.
    forks: AtomicU32,
    table: UnsafeCell<Table>,
}

// SAFETY: only the holder of the lock accesses the table.
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

/// Gives access to the table until it is dropped.
pub(super) struct Guard(());

pub(super) fn lock() -> Guard {
    install();
    LOCKED.acquire();
    Guard(())
}

impl Deref for Guard {
    type Target = Table;

    fn deref(&self) -> &Table {
        // SAFETY: only the holder of the lock has a guard.
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

/// Installs the fork handlers once.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers belong to this program or to a library that is never unloaded (`ompi/build.rs`).
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
    // Otherwise a signal handler forks while this thread changes the table. That child keeps everything.
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
