//! Whether those whom a waiting call waits for are there at all.
//!
//! A receive does not connect to the process that it names: usually that one connects, to send. So a call that has
//! waited for a while asks the transports to connect to whoever is awaited; one that has ended is found out by that, and
//! one that ends later by the connection. And a receive from any source ends once nobody is left who could send.

use cableway_base::Rank;

use crate::communicator::Communicator;
use crate::completion::Done;
use crate::engine::Engine;
use crate::error::Error;
use crate::request::{ANY, Status};

/// A call that waits looks around after so many rounds in vain, then each time that they have doubled, and in the end
/// once in so many.
const FIRST_LOOK: u64 = 256;
const LAST_INTERVAL: u64 = 8192;

/// A receive from any source has all members of a communicator connected only where there are no more than these:
/// connections cost memory and descriptors.
const MOST_REACHED: usize = 64;

/// Whether it is time to look around, after so many rounds of waiting.
#[inline]
pub(crate) fn is_due(rounds: u64) -> bool {
    rounds >= FIRST_LOOK && (rounds.is_power_of_two() || rounds.is_multiple_of(LAST_INTERVAL))
}

impl Engine {
    /// For a host whose own calls wait, and poll [`progress`](Self::progress): so many rounds of that were in vain. Now and
    /// then it is looked after whom receives wait for, as this engine's own waiting calls do.
    #[inline]
    pub fn waited(&self, rounds: u64) {
        if is_due(rounds) {
            self.look_around();
        }
    }

    /// Looks after everybody that a posted receive waits for.
    #[cold]
    pub(crate) fn look_around(&self) {
        let mut done = Done::default();
        for communicator in self.registry.read(|registry| registry.all()) {
            let awaited = communicator.matching.lock().matcher.awaited();
            for &source in &awaited {
                self.reach(&communicator, source, &mut done);
            }
            if awaited.contains(&ANY)
                && let Some(error) = self.nobody_left(&communicator)
            {
                let receives = communicator.matching.lock().matcher.abandon_any();
                for request in receives {
                    let status = Status { source: ANY, ..Status::EMPTY };
                    request.complete(status, Some(error.clone()), &mut done);
                }
            }
        }
        done.run();
    }

    /// As [`look_around`](Self::look_around), for a call that waits without having posted a receive.
    ///
    /// # Errors
    /// It waits in vain.
    #[cold]
    pub(crate) fn look_for(&self, on: &Communicator, source: i32) -> Result<(), Error> {
        let mut done = Done::default();
        self.reach(on, source, &mut done);
        done.run();
        if source == ANY { self.nobody_left(on).map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// Has the transports connect to whom a receive of `source` waits for.
    fn reach(&self, on: &Communicator, source: i32, done: &mut Done) {
        match on.group().get(source as usize) {
            Some(&process) => self.reach_process(process, done),
            None if source == ANY && on.group().len() <= MOST_REACHED => {
                on.group().iter().for_each(|&process| self.reach_process(process, done));
            }
            None => {}
        }
    }

    fn reach_process(&self, process: Rank, done: &mut Done) {
        if process == self.modex.job().rank {
            return;
        }
        let peer = match self.peer(process) {
            Ok(peer) => peer,
            // It may be able to reach us.
            Err(error) => return log::debug!("a receive waits for peer {process}: {error}"),
        };
        if peer.gone().is_some() {
            // It was met only now, and cannot be talked to.
            self.end_receives(peer, done);
        } else {
            self.with_links(peer, done, |links, _| {
                if let Some(link) = links.main()
                    && let Err(error) = link.endpoint.connect()
                {
                    links.broken = Some((link.btl, error));
                }
            });
        }
    }

    /// Why nobody can send to this process in a communicator: every other process of it is gone, and this one has never
    /// sent to itself, as another thread of it might.
    fn nobody_left(&self, on: &Communicator) -> Option<Error> {
        let me = self.modex.job().rank;
        let others = || on.group().iter().filter(|&&process| process != me);
        let to_myself = on.rank_of(me).is_some() && self.known_peer(me).is_some();
        let matching = on.matching.lock();
        let gone = |process: &Rank| on.rank_of(*process).is_some_and(|rank| matching.is_gone(rank));
        if to_myself || !others().all(gone) {
            return None;
        }
        self.known_peer(*others().next_back()?)?.check().err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_grow_rarer_and_never_end() {
        let looks: Vec<u64> = (0..50_000).filter(|&rounds| is_due(rounds)).collect();
        assert_eq!(looks[..6], [256, 512, 1024, 2048, 4096, 8192]);
        assert!(looks.windows(2).all(|pair| pair[1] - pair[0] <= LAST_INTERVAL));
    }
}
