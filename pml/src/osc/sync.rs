//! What the processes of a window tell each other to synchronize, as pure state.

use super::locks::Lock;
use super::wire::Notice;

/// The state of a window's synchronization in one process.
#[derive(Debug)]
pub(super) struct Sync {
    /// The lock of this process's memory.
    lock: Lock,
    peers: Vec<Peer>,
}

/// What a peer has told and nobody has taken yet.
#[derive(Clone, Debug, Default)]
struct Peer {
    granted: u32,
    unlocked: u32,
    posts: u32,
    completes: u32,
}

/// Something that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Granted,
    Unlocked,
    Post,
    Complete,
}

/// A notice to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ToSend {
    pub(super) to: u32,
    pub(super) notice: Notice,
}

impl Sync {
    pub(super) fn new(size: u32) -> Self {
        Sync { lock: Lock::default(), peers: vec![Peer::default(); size as usize] }
    }

    /// Handles a notice. Returns what to send now, or `None` if no correct peer sends it.
    pub(super) fn handle(&mut self, from: u32, notice: Notice) -> Option<Vec<ToSend>> {
        let granted = |ranks: Vec<u32>| ranks.into_iter().map(|to| ToSend { to, notice: Notice::Granted });
        match notice {
            Notice::LockShared => Some(granted(self.lock.want(from, false)?).collect()),
            Notice::LockExclusive => Some(granted(self.lock.want(from, true)?).collect()),
            Notice::Unlock => {
                let released = granted(self.lock.release(from)?);
                Some([ToSend { to: from, notice: Notice::Unlocked }].into_iter().chain(released).collect())
            }
            Notice::Granted => self.note(from, Awaited::Granted),
            Notice::Unlocked => self.note(from, Awaited::Unlocked),
            Notice::Post => self.note(from, Awaited::Post),
            Notice::Complete => self.note(from, Awaited::Complete),
        }
    }

    fn note(&mut self, from: u32, what: Awaited) -> Option<Vec<ToSend>> {
        let count = self.count(from, what)?;
        *count = count.checked_add(1)?;
        Some(Vec::new())
    }

    fn count(&mut self, peer: u32, what: Awaited) -> Option<&mut u32> {
        let peer = self.peers.get_mut(peer as usize)?;
        Some(match what {
            Awaited::Granted => &mut peer.granted,
            Awaited::Unlocked => &mut peer.unlocked,
            Awaited::Post => &mut peer.posts,
            Awaited::Complete => &mut peer.completes,
        })
    }

    /// Takes one notice of each of these peers, once all have come.
    pub(super) fn take(&mut self, what: Awaited, peers: &[u32]) -> bool {
        let all = peers.iter().all(|&peer| self.count(peer, what).is_some_and(|count| *count > 0));
        if all {
            for &peer in peers {
                if let Some(count) = self.count(peer, what) {
                    *count -= 1;
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_counted_and_taken_together() {
        let mut sync = Sync::new(3);
        assert!(sync.take(Awaited::Post, &[]));
        assert_eq!(sync.handle(1, Notice::Post), Some(vec![]));
        assert!(!sync.take(Awaited::Post, &[1, 2]) && !sync.take(Awaited::Complete, &[1]));
        // The next epoch of peer 1 may begin before this one.
        assert_eq!(sync.handle(1, Notice::Post), Some(vec![]));
        assert_eq!(sync.handle(2, Notice::Post), Some(vec![]));
        assert!(sync.take(Awaited::Post, &[1, 2]) && !sync.take(Awaited::Post, &[2]));
        assert!(sync.take(Awaited::Post, &[1]) && !sync.take(Awaited::Post, &[1]));
        assert_eq!(sync.handle(3, Notice::Post), None);
        assert!(!sync.take(Awaited::Post, &[3]));
    }

    #[test]
    fn locks_are_granted_and_given_back() {
        let mut sync = Sync::new(3);
        let granted = |to| ToSend { to, notice: Notice::Granted };
        assert_eq!(sync.handle(1, Notice::LockExclusive), Some(vec![granted(1)]));
        assert_eq!(sync.handle(2, Notice::LockShared), Some(vec![]));
        assert_eq!(sync.handle(2, Notice::LockShared), None);
        assert_eq!(sync.handle(2, Notice::Unlock), None);
        let unlocked = ToSend { to: 1, notice: Notice::Unlocked };
        assert_eq!(sync.handle(1, Notice::Unlock), Some(vec![unlocked, granted(2)]));
    }
}
