//! The pools of exported memory.
//!
//! The driver has no id for a pool, and may reuse the handle of a destroyed pool. But a pool lasts as long as any
//! allocation in it, and allocations have ids. So the owner numbers its pools. A number is valid while one of the
//! allocations that were exported under it exists; after that, the pool gets a new number.

use std::os::fd::OwnedFd;

use ahash::AHashSet;

use super::Answer;
use super::exports::{Piece, State, warn_refused};
use crate::devices::Devices;
use crate::exported::{POOL, PieceDescriptor};
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

impl State {
    /// Returns the number of the pool that has this handle and contains `piece`. The caller has just forgotten known
    /// pools without any allocation.
    pub(super) fn pool(
        &mut self,
        platform: &Platform,
        at: &Location,
        handle: u64,
        piece: Piece,
        most: usize,
    ) -> Option<u64> {
        if let Some((&number, _)) = self.pools.iter().find(|(_, pool)| pool.handle == handle) {
            return Some(number);
        }
        let object = || format!("the memory pool {handle:#x}");
        let descriptor = match platform.within(at, object, |driver| driver.pool_descriptor(handle)) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                warn_refused("cuda/ipc/pool", &error);
                return None;
            }
        };
        if self.pools.len() >= MOST
            && let Some(oldest) = self.pools.iter().min_by_key(|(_, pool)| pool.used).map(|(number, _)| *number)
        {
            self.forget_pool(oldest, most);
        }
        self.numbers += 1;
        let pool = Pool { handle, descriptor, witness: piece, told: AHashSet::new(), used: 0 };
        self.pools.insert(self.numbers, pool);
        Some(self.numbers)
    }

    /// Records that a process has exports of memory in a pool.
    pub(super) fn tell_pool(&mut self, number: u64, piece: Piece, peer: u32) {
        if let Some(pool) = self.pools.get_mut(&number) {
            pool.witness = piece;
            pool.used = self.uses;
            pool.told.insert(peer);
        }
    }

    /// Answers a peer's request for a pool.
    pub(super) fn give_pool(&self, number: u64, peer: u32) -> Answer {
        let Some(pool) = self.pools.get(&number).filter(|pool| pool.told.contains(&peer)) else { return Answer::Gone };
        match pool.descriptor.try_clone() {
            Ok(descriptor) => Answer::Descriptors(vec![PieceDescriptor { descriptor, len: 0 }]),
            // This process has no room for one more descriptor.
            Err(_) => Answer::Gone,
        }
    }

    /// Forgets pools without any known allocation.
    pub(super) fn forget_empty_pools(&mut self, devices: &Devices, most: usize) {
        let is_known = |number: u64| self.known.values().any(|known| known.is_of_pool(number));
        let empty = self.pools.iter().filter(|(number, pool)| !pool.witness.is_there(devices) && !is_known(**number));
        for number in empty.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.forget_pool(number, most);
        }
    }

    fn forget_pool(&mut self, number: u64, most: usize) {
        self.known.retain(|_, known| !known.is_of_pool(number));
        if let Some(pool) = self.pools.remove(&number) {
            self.report_freed(POOL | number, pool.told, most);
        }
    }

    pub(super) fn forget_peer_of_pools(&mut self, peer: u32) {
        for pool in self.pools.values_mut() {
            pool.told.remove(&peer);
        }
    }
}
