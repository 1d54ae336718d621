//! Keeps a forked child away from the connections of its parent.
//!
//! `fork(2)` gives the child every open descriptor and every shared mapping of its parent. A child that executes no
//! other program keeps them until it ends. If the parent dies first, its connections stay open, and its peers wait for
//! it. A child that continues to run the parent's code writes to the parent's peers.
//!
//! Therefore the owner of a connection registers its descriptors and mappings here. A handler of `pthread_atfork(3)`
//! runs in each child before `fork` returns there. It replaces the file behind each descriptor, and maps private memory
//! at the address of each shared mapping. Code of the child that still uses them, such as a destructor, then reaches no
//! peer. The numbers and addresses stay in use, so that such code cannot damage a file or a mapping that the child
//! opens later.
//!
//! The handler makes only system calls, because POSIX allows a child of a multi-threaded process nothing else. The
//! parent locks the table from before the fork until after it, so that the child's copy is consistent.
//!
//! A child keeps everything if the handlers do not run: after a direct `clone(2)`, or after a fork by another thread
//! during the first registration of the process. Such a child must not call this module, because its copy of the lock
//! may be locked.

mod table;

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use table::{Entry, Key};

/// Counts the forks between the program's first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Identifies the process that made an object. A forked child has a copy of the object and must not use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// Identifies the calling process.
    pub fn here() -> Self {
        table::install();
        Origin(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether the calling process is the one that made the object.
    #[inline(always)]
    pub fn is_here(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}

/// Owns an open descriptor that forked children do not share.
///
/// In a child the descriptor refers to another file. Socket functions refuse it, and it never becomes readable.
pub struct Unshared<F: AsFd> {
    file: std::mem::ManuallyDrop<F>,
    key: Key,
}

impl<F: AsFd> Unshared<F> {
    /// Opens a descriptor. Forks wait until `open` returns, so it must not block.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<E>(open: impl FnOnce() -> Result<F, E>) -> Result<Self, E> {
        let mut table = table::lock();
        let file = open()?;
        let key = table.insert(Entry::Descriptor(file.as_fd().as_raw_fd()));
        Ok(Unshared { file: std::mem::ManuallyDrop::new(file), key })
    }

    /// Keeps an open descriptor from children that are forked after this call.
    pub fn new(file: F) -> Self {
        let Ok(unshared) = Self::open(|| Ok::<_, std::convert::Infallible>(file));
        unshared
    }
}

impl<F: AsFd> Drop for Unshared<F> {
    fn drop(&mut self) {
        // One lock covers both steps. Otherwise a child could keep the file open, or lose another file that reused the
        // number.
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

/// Keeps a descriptor or a mapping with another owner from forked children, until it is dropped.
#[derive(Debug)]
pub struct Registered(Key);

impl Registered {
    /// Registers a descriptor that a library has opened and will close.
    ///
    /// # Safety
    /// This process must not close the descriptor before it drops the value.
    pub unsafe fn descriptor(descriptor: BorrowedFd<'_>) -> Self {
        Registered(table::lock().insert(Entry::Descriptor(descriptor.as_raw_fd())))
    }

    /// Registers a mapping. Children get private memory filled with zeros at its address.
    ///
    /// # Safety
    /// The `len` bytes at `base` must be whole pages of one mapping, which is not unmapped before the value is dropped.
    /// No code of a child may rely on the contents.
    pub unsafe fn mapping(base: NonNull<u8>, len: usize) -> Self {
        Registered(table::lock().insert(Entry::Mapping { base: base.as_ptr() as usize, len }))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        table::lock().remove(self.0);
    }
}

/// Calls `act` in each child that is forked after this call.
///
/// # Safety
/// `act` may only make system calls and access atomics, because other threads of the parent may have held locks.
pub unsafe fn in_child(act: fn()) {
    let _ = table::lock().insert(Entry::Call(act));
}

#[cfg(all(test, not(loom)))]
mod tests;
