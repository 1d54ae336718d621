//! Describes the links to a peer to people.

use std::ops::RangeInclusive;

use cableway_base::Rank;

use super::arrive::cannot_wait;
use super::communicator::Communicator;
use super::engine::Engine;
use crate::error::Error;
use crate::protocol::direct::{Asked, explain_accesses};
use crate::protocol::{Explained, Links, Side, explain_links};
use crate::status::ANY;
use crate::wire::NodeCard;

impl Engine {
    /// Checks whether no process of a communicator is known to have died, or said to have
    /// ([`note_told_of_failure`](Self::note_told_of_failure)).
    ///
    /// # Errors
    /// One has died, or the communicator was removed.
    pub fn check_members(&self, of: &Communicator) -> Result<(), Error> {
        let matching = of.matching.lock();
        let told = |peer| Error::PeerFailed { peer, reason: "another process says so".into() };
        cannot_wait(self, of, &matching, ANY).or_else(|| matching.first_failed().map(told)).map_or(Ok(()), Err)
    }

    /// Checks a process that the caller waits for without a receive, as calls of this engine do that wait: the transports
    /// connect to it, and so reveal whether it is gone.
    ///
    /// # Errors
    /// The process has died or left, or nobody reaches it.
    #[cold]
    pub fn reach(&self, on: &Communicator, rank: u32) -> Result<(), Error> {
        super::reach::look_for(self, on, rank as i32)?;
        cannot_wait(self, on, &on.matching.lock(), rank as i32).map_or(Ok(()), Err)
    }

    /// Checks whether this engine can be used.
    ///
    /// # Errors
    /// It was finalized, or this process is a forked child.
    #[inline]
    pub fn check_open(&self) -> Result<(), Error> {
        self.core().check_open()
    }

    /// Returns how often a waiting call polls without an event before it yields its processor.
    #[inline]
    pub fn spins(&self) -> u64 {
        self.core().spin
    }

    /// Returns what a process published of its node when it started. All processes get the same. Returns `None` if it
    /// published nothing that this version understands. Asks the modex each time.
    ///
    /// # Errors
    /// The modex cannot be reached.
    pub fn node_card(&self, process: Rank) -> Result<Option<NodeCard>, Error> {
        let bytes = self.core().modex.get(process, NodeCard::KEY)?;
        Ok(bytes.and_then(|bytes| NodeCard::parse(&bytes)))
    }

    /// Explains which protocols messages to `peer` take. Connects the peer if necessary, and assumes that its ends of
    /// the links are like those of this process.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn explain(
        &self,
        peer: Rank,
        from: Side,
        to: Side,
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Explained>, Error> {
        self.with_links(peer, |links| explain_links(self.core(), &self.protocols.shared, links, (from, to), sizes))
    }

    /// Explains the way of one-sided accesses to memory of `peer`, as [`explain`](Self::explain) does for messages.
    pub(crate) fn explain_access(
        &self,
        peer: Rank,
        asked: Asked,
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Explained>, Error> {
        self.with_links(peer, |links| explain_accesses(self.core(), links, asked, sizes))
    }

    /// Passes on the links to a peer, which it connects if necessary.
    fn with_links<T>(&self, peer: Rank, act: impl FnOnce(&Links) -> T) -> Result<T, Error> {
        let slot = self.peer(peer)?;
        let channel = slot.channel.lock();
        if channel.links.active.is_empty() {
            slot.peer.check()?;
        }
        Ok(act(&channel.links))
    }

    /// Returns notes about the links to `peer`, a line each.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn notes(&self, peer: Rank) -> Result<Vec<String>, Error> {
        let slot = self.peer(peer)?;
        slot.peer.check()?;
        Ok(slot.channel.lock().links.active.iter().flat_map(|link| link.endpoint.notes()).collect())
    }

    /// Returns the names of the transports that carry messages to `peer`, the one for headers first.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn transports(&self, peer: Rank) -> Result<Vec<&'static str>, Error> {
        let slot = self.peer(peer)?;
        slot.peer.check()?;
        let channel = slot.channel.lock();
        let name = |btl: usize| self.core().btls[btl].btl.name();
        let mut names: Vec<_> = channel.links.active.iter().map(|link| name(link.btl)).collect();
        names.dedup();
        Ok(names)
    }
}
