//! The pools of exported memory.
//!
//! The driver has no id for a pool, and may reuse the handle of a destroyed pool. But a pool lasts as long as any
//! allocation in it, and allocations have ids. So the owner numbers its pools. A number is valid while one of the
//! allocations that were exported under it exists; after that, the pool gets a new number.

use std::os::fd::OwnedFd;

use ahash::{AHashMap, AHashSet};

use super::Answer;
use super::piece::{Piece, warn_refused};
use crate::devices::Devices;
use crate::exported::PieceDescriptor;
use crate::location::Location;
use crate::platform::Platform;

/// The number of pools to keep. The least recently used one is forgotten.
const MOST: usize = 16;

/// A pool whose memory was exported.
pub(super) struct Pool {
    /// The driver's handle.
    handle: u64,
    /// Created while memory of the pool certainly existed.
    descriptor: OwnedFd,
    /// The most recently exported allocation of the pool.
    witness: Piece,
    told: AHashSet<u32>,
    used: u64,
}

/// The pools whose memory was exported, by number.
#[derive(Default)]
pub(super) struct Pools(AHashMap<u64, Pool>);

impl Pool {
    /// Makes a descriptor of the pool that has this handle and contains `piece`. Returns `None`, with a warning, if the
    /// driver refuses.
    pub(super) fn new(platform: &Platform, at: &Location, handle: u64, piece: Piece) -> Option<Pool> {
        let object = || format!("the memory pool {handle:#x}");
        match platform.within(at, object, |driver| driver.pool_descriptor(handle)) {
            Ok(descriptor) => Some(Pool { handle, descriptor, witness: piece, told: AHashSet::new(), used: 0 }),
            Err(error) => {
                warn_refused("cuda/ipc/pool", &error);
                None
            }
        }
    }
}

impl Pools {
    /// Returns the number of the pool that has this handle. The caller has just removed pools without any allocation.
    pub(super) fn find(&self, handle: u64) -> Option<u64> {
        self.0.iter().find(|(_, pool)| pool.handle == handle).map(|(&number, _)| number)
    }

    /// Returns the number of the pool that must be removed before another one is added.
    pub(super) fn in_the_way(&self) -> Option<u64> {
        let oldest = || self.0.iter().min_by_key(|(_, pool)| pool.used).map(|(&number, _)| number);
        if self.0.len() < MOST { None } else { oldest() }
    }

    pub(super) fn add(&mut self, number: u64, pool: Pool) {
        self.0.insert(number, pool);
    }

    /// Removes a pool. Returns the processes that have exports of its memory.
    pub(super) fn remove(&mut self, number: u64) -> Option<AHashSet<u32>> {
        self.0.remove(&number).map(|pool| pool.told)
    }

    /// Records that a process has exports of memory in a pool.
    pub(super) fn tell(&mut self, number: u64, piece: Piece, peer: u32, use_number: u64) {
        if let Some(pool) = self.0.get_mut(&number) {
            pool.witness = piece;
            pool.used = use_number;
            pool.told.insert(peer);
        }
    }

    /// Answers a peer's request for a pool.
    pub(super) fn answer(&self, number: u64, peer: u32) -> Answer {
        let Some(pool) = self.0.get(&number).filter(|pool| pool.told.contains(&peer)) else { return Answer::Gone };
        match pool.descriptor.try_clone() {
            Ok(descriptor) => Answer::Descriptors(vec![PieceDescriptor { descriptor, len: 0 }]),
            // This process has no room for one more descriptor.
            Err(_) => Answer::Gone,
        }
    }

    /// Returns the numbers of pools whose most recently exported allocation was freed.
    pub(super) fn without_witness(&self, devices: &Devices) -> Vec<u64> {
        self.0.iter().filter(|(_, pool)| !pool.witness.is_there(devices)).map(|(&number, _)| number).collect()
    }

    pub(super) fn forget_peer(&mut self, peer: u32) {
        for pool in self.0.values_mut() {
            pool.told.remove(&peer);
        }
    }
}
