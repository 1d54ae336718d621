//! References from a pool's memory: to the pool, and to the import count that processes share. The documentation requires
//! that importers free memory before its owner does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::pool::{POOLS, Pool};
use crate::store::Piece;

/// A reference from a pool's memory to the pool.
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

/// Releases the handle of a pool after it is destroyed and all of its memory is freed.
pub(crate) fn remove_if_done(handle: usize, pool: &Arc<Pool>) {
    let Ok(pools) = POOLS.get() else { return };
    let mut pools = pools.handles.lock();
    let is_done = pool.is_destroyed.load(Ordering::SeqCst) && pool.ranges.load(Ordering::SeqCst) == 0;
    if is_done && pools.get(handle).is_some_and(|known| Arc::ptr_eq(&known, pool)) {
        drop(pools.remove(handle));
    }
}

/// An import of another process's pool memory. Two shared words report it to the owner: the number of imports, and the
/// last importer.
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
