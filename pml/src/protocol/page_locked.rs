//! Copies between page-locked host memory of one process and device memory of another, by a device of the first one. So
//! the process with the host memory stores what it sends (PUT), and fetches what it receives (GET).

use cableway_btl::Flags;

use super::one_copy::OneCopyHistory;
use super::probe::Shape;

/// What is known of such copies to and from a peer. Only the link knows the devices, so it refuses some copies: those
/// between two contexts of one device, and those with memory that is not mapped yet. After several refusals in a row
/// there is a pause.
#[derive(Debug, Default)]
pub(crate) struct PageLockedCopies {
    stores: OneCopyHistory,
    fetches: OneCopyHistory,
    /// Whether the peer would have fetched the last device message, for which it had to request fragments.
    peer_fetches: bool,
}

impl PageLockedCopies {
    /// Returns whether to announce a message of `shape` as one that this process stores in device memory.
    pub(crate) fn announce_store(&mut self, shape: &Shape, any: Flags, copy_only: bool) -> bool {
        able(any, copy_only) && shape.page_locked && self.next(true)
    }

    /// Returns whether to fetch a device message into memory of `shape`.
    pub(crate) fn fetch(&mut self, shape: &Shape, any: Flags, copy_only: bool) -> bool {
        able(any, copy_only) && shape.page_locked && self.next(false)
    }

    /// Returns whether the next such message would be fetched.
    pub(crate) fn would_fetch(&self, shape: &Shape, any: Flags, copy_only: bool) -> bool {
        able(any, copy_only) && shape.page_locked && self.fetches.is_promising()
    }

    /// Returns whether to try the next store, or else the next fetch.
    pub(crate) fn next(&mut self, store: bool) -> bool {
        self.history(store).next_is_one_copy()
    }

    /// Notes whether a store, or else a fetch, was possible.
    pub(crate) fn moved(&mut self, store: bool, possible: bool) {
        let history = self.history(store);
        if possible {
            history.succeeded();
        } else {
            history.missed();
        }
    }

    /// Notes what the peer's answer to a device message says.
    pub(crate) fn let_peer_fetch(&mut self, peer_fetches: bool) {
        self.peer_fetches = peer_fetches;
    }

    /// Returns whether the peer fetches device messages, if they are announced with a remote key.
    pub(crate) fn peer_fetches(&self) -> bool {
        self.peer_fetches
    }

    fn history(&mut self, store: bool) -> &mut OneCopyHistory {
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

    #[test]
    fn refusals_in_a_row_cause_a_pause_of_one_direction() {
        let shape = Shape { on_device: false, contiguous: true, one_run: true, packed: false, page_locked: true };
        let any = Flags::DEVICE_PAGE_LOCKED;
        let mut copies = PageLockedCopies::default();
        assert!(!copies.announce_store(&shape, Flags::empty(), false) && !copies.announce_store(&shape, any, true));
        assert!(!copies.announce_store(&Shape { page_locked: false, ..shape }, any, false));
        assert!((0..100).all(|_| copies.announce_store(&shape, any, false)));
        (0..100).for_each(|_| copies.moved(true, false));
        assert!(!copies.announce_store(&shape, any, false));
        assert!(copies.would_fetch(&shape, any, false) && copies.fetch(&shape, any, false));
        copies.moved(true, true);
        assert!(copies.announce_store(&shape, any, false));
    }
}
