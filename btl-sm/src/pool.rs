//! Manages the fragments of this process's segments: which are free, and how they return.
//!
//! The receiver marks a fragment as returned in the fragment's own header, where this process looks for it. An endpoint
//! first checks the oldest fragment that it sent itself, so that endpoints share nothing in a steady stream. The use of
//! a fragment is kept in private memory. A peer that returns a fragment too early can therefore only garble its own
//! message.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crossbeam_queue::ArrayQueue;

use crate::prefetch;
use crate::segment::{Class, Memory};

/// Fragment classes, as in references: two in the segment, two in the device segment.
pub(crate) const EAGER: u8 = 0;
pub(crate) const LARGE: u8 = 1;
pub(crate) const DEVICE_SMALL: u8 = 2;
pub(crate) const DEVICE_CHUNK: u8 = 3;

/// A fragment's reference for a peer: 4 bits of class, 20 bits of number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference(u32);

impl Reference {
    pub(crate) fn new(class: u8, id: u32) -> Self {
        Reference(u32::from(class & 0xf) << 20 | id & 0xf_ffff)
    }

    /// Every 24-bit value is a valid reference.
    pub(crate) fn from_bits(bits: u32) -> Self {
        Reference(bits & 0xff_ffff)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn class(self) -> u8 {
        (self.0 >> 20) as u8
    }

    pub(crate) fn id(self) -> u32 {
        self.0 & 0xf_ffff
    }
}

/// The word sent with a reference: how to read and return the fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentWord {
    /// The generation: the number of sends of this fragment.
    pub(crate) generation: u32,
    /// The length of the message in bytes.
    pub(crate) len: u32,
}

impl FragmentWord {
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.len)
    }

    /// Every 64-bit value is valid.
    pub(crate) fn from_bits(bits: u64) -> Self {
        FragmentWord { generation: (bits >> 32) as u32, len: bits as u32 }
    }
}

/// The fragments of one class that an endpoint uses.
#[derive(Default)]
pub(crate) struct OwnFragments {
    /// Fragments in flight, the oldest first, each with the generation of its send.
    sent: VecDeque<(u32, u32)>,
    /// Returned fragments that were not reused.
    ready: Vec<u32>,
}

/// All fragments of one class.
pub(crate) struct Pool {
    memory: Arc<Memory>,
    class: Class,
    /// The use of each fragment: bits 0 to 31 the generation, bits 32 to 63 the holder.
    states: Box<[AtomicU64]>,
    /// Some free fragments.
    free: ArrayQueue<u32>,
    /// The first fragment that was never used.
    unused: AtomicU32,
    /// Where the next search for returned fragments begins.
    cursor: AtomicU32,
    /// The fragments that one endpoint may have in flight. A sender far ahead of its receiver evicts fragments from the
    /// caches of both. At 1000 bytes, 8 to 16 fragments in flight allow 1.5 times the message rate of 64.
    most_in_flight: usize,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Marks a holder, with the peer's number: in flight to that peer.
const SENT: u32 = 2;
/// The number of fragments that an endpoint keeps ready.
const READY: usize = 2;
/// The number of fragments that one search checks.
const SEARCH: u32 = 32;

fn state(who: u32, generation: u32) -> u64 {
    u64::from(who) << 32 | u64::from(generation)
}

impl Pool {
    pub(crate) fn new(memory: Arc<Memory>, class: Class, most_in_flight: usize) -> Self {
        Pool {
            memory,
            class,
            states: (0..class.count).map(|_| AtomicU64::new(state(FREE, 0))).collect(),
            free: ArrayQueue::new(class.count.max(1) as usize),
            unused: AtomicU32::new(0),
            cursor: AtomicU32::new(0),
            most_in_flight,
        }
    }

    /// Returns the bytes of payload in each fragment.
    pub(crate) fn size(&self) -> usize {
        self.class.size
    }

    /// Returns a fragment's payload.
    pub(crate) fn payload(&self, id: u32) -> NonNull<u8> {
        self.memory.payload(&self.class, id)
    }

    /// Returns a fragment for the caller to fill.
    ///
    /// The receiver wrote the line that shows whether a fragment was returned, so reading it is as slow as passing a
    /// message. Therefore `own` holds one or two fragments that are known to be free, found after the previous send.
    /// This checks the oldest one only if there are none.
    #[inline]
    pub(crate) fn acquire(&self, own: &mut OwnFragments) -> Option<u32> {
        if let Some(id) = own.ready.pop() {
            return Some(id);
        }
        if own.sent.len() > 1 && self.find_returned(own) {
            return own.ready.pop();
        }
        self.acquire_another(own)
    }

    fn acquire_another(&self, own: &mut OwnFragments) -> Option<u32> {
        if own.sent.len() >= self.most_in_flight && !self.find_returned(own) {
            return None;
        }
        if let Some(id) = own.ready.pop() {
            return Some(id);
        }
        let free = self.free.pop().or_else(|| self.fresh());
        let id = match free {
            Some(id) => id,
            None if self.find_returned(own) => return own.ready.pop(),
            None => return self.search(),
        };
        let generation = self.states[id as usize].load(Relaxed) as u32;
        self.states[id as usize].store(state(HELD, generation), Relaxed);
        Some(id)
    }

    /// Checks whether the endpoint's oldest fragment was returned. If so, makes it ready.
    fn find_returned(&self, own: &mut OwnFragments) -> bool {
        while let Some(&(id, generation)) = own.sent.front() {
            let now = self.states[id as usize].load(Relaxed);
            // Otherwise another endpoint's search has already taken it.
            let ours = now as u32 == generation && now >> 32 >= u64::from(SENT);
            if ours && !self.reclaim(id, HELD) {
                return false;
            }
            own.sent.pop_front();
            if ours {
                own.ready.push(id);
                return true;
            }
        }
        false
    }

    /// Searches for returned fragments after a send, ahead of need, and releases surplus ones.
    #[inline]
    pub(crate) fn tidy(&self, own: &mut OwnFragments) {
        for _ in 0..2 {
            if own.ready.len() >= READY || own.sent.len() < 2 || !self.find_returned(own) {
                return;
            }
        }
    }

    /// Fetches the lines of the fragment that [`acquire`](Self::acquire) returns next, for a message of `len` bytes. The
    /// receiver of the last message in it has them, and the stores of the next one would wait for them.
    #[inline]
    pub(crate) fn prefetch(&self, own: &OwnFragments, len: usize) {
        if let Some(&id) = own.ready.last() {
            prefetch::for_writing(self.payload(id).as_ptr(), len.min(self.size()));
        }
    }

    /// Releases the ready fragments of an endpoint that ends. Searches find those in flight.
    pub(crate) fn take_back(&self, own: &mut OwnFragments) {
        own.ready.drain(..).for_each(|id| self.give_back(id));
    }

    fn fresh(&self) -> Option<u32> {
        if self.unused.load(Relaxed) >= self.class.count {
            return None;
        }
        let id = self.unused.fetch_add(1, Relaxed);
        if id < self.class.count {
            return Some(id);
        }
        self.unused.store(self.class.count, Relaxed);
        None
    }

    /// Searches all fragments for returned ones, some at a time.
    fn search(&self) -> Option<u32> {
        let from = self.cursor.fetch_add(SEARCH, Relaxed);
        for step in 0..SEARCH.min(self.class.count) {
            let id = from.wrapping_add(step) % self.class.count;
            if self.reclaim(id, HELD) {
                return Some(id);
            }
        }
        None
    }

    /// Gives a fragment to `who` if its receiver has returned it.
    fn reclaim(&self, id: u32, who: u32) -> bool {
        let now = self.states[id as usize].load(Relaxed);
        now >> 32 >= u64::from(SENT)
            && self.memory.header(&self.class, id).returned.load(Acquire) == now as u32
            && self.states[id as usize].compare_exchange(now, state(who, now as u32), AcqRel, Relaxed).is_ok()
    }

    /// Marks a filled fragment as in flight to `peer`. The caller then pushes its reference.
    #[inline]
    pub(crate) fn prepare(&self, id: u32, len: usize, peer: u16, own: &mut OwnFragments) -> FragmentWord {
        let generation = (self.states[id as usize].load(Relaxed) as u32).wrapping_add(1);
        self.states[id as usize].store(state(SENT + u32::from(peer), generation), Relaxed);
        own.sent.push_back((id, generation));
        FragmentWord { generation, len: len as u32 }
    }

    /// Writes the details that do not fit beside the reference into the fragment's header.
    pub(crate) fn write_header(&self, id: u32, about: FragmentWord) {
        let header = self.memory.header(&self.class, id);
        header.generation.store(about.generation, Relaxed);
        header.len.store(about.len, Relaxed);
    }

    /// Releases a fragment that was not sent.
    pub(crate) fn give_back(&self, id: u32) {
        let generation = self.states[id as usize].load(Relaxed) as u32;
        self.states[id as usize].store(state(FREE, generation), Release);
        // The queue has room for every fragment.
        let _ = self.free.push(id);
    }

    /// Releases all fragments in flight to a failed peer.
    pub(crate) fn forget_peer(&self, peer: u16) {
        for (id, word) in self.states.iter().enumerate() {
            let now = word.load(Relaxed);
            let gone = now >> 32 == u64::from(SENT + u32::from(peer));
            if gone && word.compare_exchange(now, state(FREE, now as u32), AcqRel, Relaxed).is_ok() {
                let _ = self.free.push(id as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Geometry;

    fn pool(count: u32) -> (Pool, Arc<Memory>, Class) {
        let geometry = Geometry {
            fifo_cells: 2.into(),
            fifo_quota: 1.into(),
            boxes: 0.into(),
            box_slots: 4.into(),
            eager_count: count.into(),
            eager_size: 64.into(),
            large_count: 0.into(),
            large_size: 64.into(),
        };
        let layout = geometry.layout().unwrap();
        let memory = Arc::new(Memory::create("pool-test", layout.len).unwrap());
        (Pool::new(memory.clone(), layout.eager, usize::MAX), memory, layout.eager)
    }

    fn return_it(memory: &Memory, class: &Class, id: u32, about: FragmentWord) {
        memory.header(class, id).returned.store(about.generation, Release);
    }

    #[test]
    fn fragments_come_back_out_of_order_and_across_endpoints() {
        let (pool, memory, class) = pool(3);
        let (mut a, mut b) = (OwnFragments::default(), OwnFragments::default());
        let ids: Vec<u32> = (0..3).map(|_| pool.acquire(&mut a).unwrap()).collect();
        assert_eq!(pool.acquire(&mut a), None);
        let about: Vec<FragmentWord> = ids.iter().map(|&id| pool.prepare(id, 8, 0, &mut a)).collect();
        assert_eq!(pool.acquire(&mut a), None, "nothing was returned");
        return_it(&memory, &class, ids[1], about[1]);
        assert_eq!(pool.acquire(&mut b), Some(ids[1]), "another endpoint finds the returned fragment");
        assert_eq!(pool.acquire(&mut b), None);
        return_it(&memory, &class, ids[0], about[0]);
        assert_eq!(pool.acquire(&mut a), Some(ids[0]));
        return_it(&memory, &class, ids[2], about[2]);
        assert_eq!(pool.acquire(&mut a), Some(ids[2]), "a skips the fragment that b has taken");
        pool.give_back(ids[2]);
        assert_eq!(pool.acquire(&mut b), Some(ids[2]));
    }

    #[test]
    fn an_endpoint_keeps_few_ready_and_leaves_them_at_its_end() {
        let (pool, memory, class) = pool(8);
        let (mut own, mut other) = (OwnFragments::default(), OwnFragments::default());
        for round in 0..100 {
            let id = pool.acquire(&mut own).unwrap();
            assert!(id < 3, "round {round} takes fragment {id}, though the others are free");
            let about = pool.prepare(id, 8, 0, &mut own);
            return_it(&memory, &class, id, about);
            pool.tidy(&mut own);
        }
        pool.take_back(&mut own);
        let mut all: Vec<_> = (0..8).map(|_| pool.acquire(&mut other).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>(), "each fragment is handed out once");
    }

    #[test]
    fn a_dead_peer_holds_nothing() {
        let (pool, memory, class) = pool(2);
        let mut own = OwnFragments::default();
        let about = [4, 5].map(|peer| {
            let id = pool.acquire(&mut own).unwrap();
            pool.prepare(id, 8, peer, &mut own)
        });
        let mut other = OwnFragments::default();
        pool.forget_peer(4);
        assert_eq!(pool.acquire(&mut other), Some(0));
        assert_eq!(pool.acquire(&mut other), None, "peer 5 is alive");
        return_it(&memory, &class, 0, about[0]);
        assert_eq!(pool.acquire(&mut own), None, "a return by the dead peer has an old generation");
    }
}
