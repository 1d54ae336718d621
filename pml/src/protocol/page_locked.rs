//! Copies between page-locked host memory of one process and device memory of another, by a device of the first one. So
//! the process with the host memory stores what it sends (PUT), and fetches what it receives (GET).

use cableway_btl::Flags;

use super::attempts::Attempts;
use super::probe::Shape;

/// Messages of a pause. It is short: the first copies with each allocation are refused, because its memory is not mapped
/// yet.
const PAUSE: u32 = 32;
/// Device messages to other memory after which a peer is no longer expected to fetch.
const HOLD: u32 = 16;

/// What is known of such copies to and from a peer. Only the link knows the devices, so it refuses some copies: those
/// between two contexts of one device, and those with memory that is not mapped yet.
#[derive(Debug, Default)]
pub(crate) struct PageLockedCopies {
    stores: Attempts<PAUSE>,
    fetches: Attempts<PAUSE>,
    /// Device messages for which the peer is still expected to fetch into page-locked memory. A program may send to both
    /// kinds of memory in turn.
    peer_fetches: u32,
}

impl PageLockedCopies {
    /// Returns whether to announce a message of `shape` as one that this process stores in device memory.
    pub(crate) fn announce_store(&mut self, shape: &Shape, any: Flags, copy_only: bool) -> bool {
        able(any, copy_only) && shape.page_locked && self.next(true)
    }

    /// Returns whether to fetch a device message into memory of `shape`. It was announced with a remote key.
    pub(crate) fn fetch(&mut self, shape: &Shape, any: Flags, copy_only: bool) -> bool {
        able(any, copy_only) && shape.page_locked && self.next(false)
    }

    /// Returns whether the next device message into memory of `shape` would be fetched. This one cannot be.
    pub(crate) fn would_fetch(&mut self, shape: &Shape, any: Flags, copy_only: bool) -> bool {
        able(any, copy_only) && shape.page_locked && self.fetches.pass()
    }

    /// Returns whether to try the next store, or else the next fetch.
    pub(crate) fn next(&mut self, store: bool) -> bool {
        self.attempts(store).next()
    }

    /// Notes whether a store, or else a fetch, was possible.
    pub(crate) fn moved(&mut self, store: bool, possible: bool) {
        self.attempts(store).note(possible);
    }

    /// Notes whether the peer fetched a device message into page-locked memory, or would have.
    pub(crate) fn note_peer_fetches(&mut self, fetches: bool) {
        self.peer_fetches = if fetches { HOLD } else { self.peer_fetches.saturating_sub(1) };
    }

    /// Returns whether to announce device messages with a remote key, because the peer may fetch them.
    pub(crate) fn peer_fetches(&self) -> bool {
        self.peer_fetches > 0
    }

    fn attempts(&mut self, store: bool) -> &mut Attempts<PAUSE> {
        if store { &mut self.stores } else { &mut self.fetches }
    }
}

/// Returns whether links with these abilities may make such copies.
pub(crate) fn able(any: Flags, copy_only: bool) -> bool {
    any.contains(Flags::DEVICE_PAGE_LOCKED) && !copy_only
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::attempts::PATIENCE;

    const SHAPE: Shape = Shape { on_device: false, contiguous: true, one_run: true, packed: false, page_locked: true };
    const ANY: Flags = Flags::DEVICE_PAGE_LOCKED;

    #[test]
    fn refusals_in_a_row_cause_a_pause_of_one_direction() {
        let mut copies = PageLockedCopies::default();
        assert!(!copies.announce_store(&SHAPE, Flags::empty(), false) && !copies.announce_store(&SHAPE, ANY, true));
        assert!(!copies.announce_store(&Shape { page_locked: false, ..SHAPE }, ANY, false));
        for _ in 0..PATIENCE {
            assert!(copies.announce_store(&SHAPE, ANY, false));
            copies.moved(true, false);
        }
        for _ in 0..3 {
            assert!((0..PAUSE).all(|_| !copies.announce_store(&SHAPE, ANY, false)));
            assert!(copies.announce_store(&SHAPE, ANY, false), "one is tried after each pause");
            copies.moved(true, false);
        }
        assert!(copies.fetch(&SHAPE, ANY, false));
        copies.moved(true, true);
        assert!((0..100).all(|_| copies.announce_store(&SHAPE, ANY, false)));
    }

    /// Messages without a remote key count for the pause, too. Otherwise it would never end: the sender announces without
    /// one while the receiver says that it would not fetch.
    #[test]
    fn a_pause_of_fetches_ends_whatever_is_announced() {
        let mut copies = PageLockedCopies::default();
        (0..PATIENCE).for_each(|_| copies.moved(false, false));
        assert!((1..PAUSE).all(|_| !copies.would_fetch(&SHAPE, ANY, false)));
        assert!(copies.would_fetch(&SHAPE, ANY, false) && copies.fetch(&SHAPE, ANY, false));
        copies.moved(false, true);
        assert!((0..100).all(|_| copies.would_fetch(&SHAPE, ANY, false) && copies.fetch(&SHAPE, ANY, false)));
    }

    #[test]
    fn a_peer_that_fetches_now_and_then_is_expected_to() {
        let mut copies = PageLockedCopies::default();
        assert!(!copies.peer_fetches());
        for _ in 0..100 {
            copies.note_peer_fetches(true);
            (1..HOLD).for_each(|_| copies.note_peer_fetches(false));
            assert!(copies.peer_fetches());
        }
        copies.note_peer_fetches(false);
        assert!(!copies.peer_fetches());
    }
}
