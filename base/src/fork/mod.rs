//! Keeps a forked child apart from the connections of its parent.
//!
//! `fork(2)` gives the child every open descriptor and every shared mapping of its parent. A child that executes no other
//! program keeps them for as long as it lives. The connections of a parent that dies meanwhile stay up, so its peers wait
//! for it; and a child that runs on as if it were the parent writes to the parent's peers.
//!
//! So whatever belongs to a connection is registered here. A handler of `pthread_atfork(3)` acts on it in each child,
//! before `fork` returns there: it puts another file under the number of each descriptor, and private memory under the
//! address of each shared mapping. Code of the child that still uses them, a destructor for instance, then reaches
//! nobody. The numbers and addresses stay taken, so that such code cannot hit what the child opens later.
//!
//! The handler makes system calls only, as a child of a process with threads must. The parent's table is locked from
//! before the fork until after it, so that the child finds it whole.
//!
//! A child keeps everything if the handlers do not run: after `clone(2)` itself, or after a fork that another thread
//! called before the first registration of the process had returned. Such a child must not call this module, because the
//! lock may have been taken when it was copied.

mod table;

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use table::{Entry, Key};

/// How many forks lie between this process and the first one of this program.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made. A forked child has a copy of the thing, and is not to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// This process.
    pub fn here() -> Self {
        table::install();
        Origin(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether the calling process is the one.
    #[inline(always)]
    pub fn is_here(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}

/// Owns an open descriptor that forked children do not share.
///
/// In a child it is a descriptor of something else, which sockets' functions refuse and which is never readable.
pub struct Unshared<F: AsFd> {
    file: std::mem::ManuallyDrop<F>,
    key: Key,
}

impl<F: AsFd> Unshared<F> {
    /// Opens a descriptor. A fork waits meanwhile, so `open` must not block.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<E>(open: impl FnOnce() -> Result<F, E>) -> Result<Self, E> {
        let mut table = table::lock();
        let file = open()?;
        let key = table.insert(Entry::Descriptor(file.as_fd().as_raw_fd()));
        Ok(Unshared { file: std::mem::ManuallyDrop::new(file), key })
    }

    /// Keeps an open descriptor from children that are forked from here on.
    pub fn new(file: F) -> Self {
        let Ok(unshared) = Self::open(|| Ok::<_, std::convert::Infallible>(file));
        unshared
    }
}

impl<F: AsFd> Drop for Unshared<F> {
    fn drop(&mut self) {
        // Both under one lock: a child would else keep it open, or lose another file that got its number.
        let mut table = table::lock();
        table.remove(self.key);
        // SAFETY: dropped once, here.
        unsafe { std::mem::ManuallyDrop::drop(&mut self.file) };
    }
}

impl<F: AsFd> Deref for Unshared<F> {
    type Target = F;

    #[inline(always)]
    fn deref(&self) -> &F {
        &self.file
    }
}

impl<F: AsFd> AsFd for Unshared<F> {
    #[inline(always)]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<F: AsFd + std::fmt::Debug> std::fmt::Debug for Unshared<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

/// Keeps something that this value does not own from forked children, until it is dropped.
#[derive(Debug)]
pub struct Registered(Key);

impl Registered {
    /// Keeps a descriptor that a library has opened and will close.
    ///
    /// # Safety
    /// This process closes the descriptor after the value has been dropped, not before.
    pub unsafe fn descriptor(descriptor: BorrowedFd<'_>) -> Self {
        Registered(table::lock().insert(Entry::Descriptor(descriptor.as_raw_fd())))
    }

    /// Puts private memory, all zeros, in the place of a mapping.
    ///
    /// # Safety
    /// `len` bytes from `base` are whole pages of one mapping, which is unmapped after the value has been dropped. In
    /// a child nothing relies on what the memory held.
    pub unsafe fn mapping(base: NonNull<u8>, len: usize) -> Self {
        Registered(table::lock().insert(Entry::Mapping { base: base.as_ptr() as usize, len }))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        table::lock().remove(self.0);
    }
}

/// Has `act` called in each child that is forked from here on.
///
/// # Safety
/// `act` makes system calls and touches atomics, nothing else: the parent may have had threads that held locks.
pub unsafe fn in_child(act: fn()) {
    let _ = table::lock().insert(Entry::Call(act));
}

#[cfg(all(test, not(loom)))]
mod tests;
