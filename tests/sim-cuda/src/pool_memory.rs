//! What memory of a pool keeps: its pool, as long as there is any of it, and, where it is another process's, that one's word
//! that it is imported, which the documentation wants freed before its owner frees it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::driver::driver;
use crate::pool::Pool;
use crate::space::Range;
use crate::store::Piece;

/// What a pool's memory keeps of the pool.
pub(crate) struct InPool {
    handle: usize,
    pool: Arc<Pool>,
}

impl InPool {
    pub(crate) fn new(handle: usize, pool: Arc<Pool>) -> InPool {
        pool.ranges.fetch_add(1, Ordering::SeqCst);
        InPool { handle, pool }
    }
}

impl Drop for InPool {
    fn drop(&mut self) {
        if self.pool.ranges.fetch_sub(1, Ordering::SeqCst) == 1 {
            remove_if_done(self.handle, &self.pool);
        }
    }
}

/// Gives the handle of a pool to others, once it is destroyed and nothing is left of its memory.
pub(crate) fn remove_if_done(handle: usize, pool: &Arc<Pool>) {
    let Ok(driver) = driver() else { return };
    let mut pools = driver.pools.lock();
    let is_done = pool.is_destroyed.load(Ordering::SeqCst) && pool.ranges.load(Ordering::SeqCst) == 0;
    if is_done && pools.get(handle).is_some_and(|known| Arc::ptr_eq(&known, pool)) {
        drop(pools.remove(handle));
    }
}

/// That a process has imported memory of another's pool, told to its owner by the words that they share: how many
/// have, and which was the last.
pub(crate) struct Importing {
    piece: Arc<Piece>,
}

impl Importing {
    pub(crate) fn new(piece: Arc<Piece>) -> Importing {
        piece.shared()[1].store(std::process::id().into(), Ordering::SeqCst);
        piece.shared()[0].fetch_add(1, Ordering::SeqCst);
        Importing { piece }
    }
}

impl Drop for Importing {
    fn drop(&mut self) {
        self.piece.shared()[0].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Ends the process if memory is freed that another has imported and not freed, which the documentation forbids: a real
/// driver gives it to the pool's next allocation, and what is written through the import lands there.
pub(crate) fn check_free(range: &Range) {
    let Some(piece) = range.backing.piece.as_ref().filter(|piece| piece.store().is_some()) else { return };
    let [count, last] = piece.shared();
    let (count, last) = (count.load(Ordering::SeqCst), last.load(Ordering::SeqCst));
    // Who has ended has freed it; of a process that nobody has waited for yet there are no maps.
    let lives = || std::fs::read(format!("/proc/{last}/maps")).is_ok_and(|maps| !maps.is_empty());
    if count > 0 && lives() {
        eprintln!(
            "sim-cuda: memory of a pool at {:#x} is freed that process {last} has imported; with a real driver its \
             copies land in the next allocation",
            range.base
        );
        std::process::abort()
    }
}
