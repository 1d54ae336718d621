//! Checks that the processes that a waiting call waits for are reachable.
//!
//! A receive does not connect to the process that it names: usually that process connects, to send. So a call that has
//! waited for a while asks the transports to connect. This reveals a process that has ended, and the connection reveals
//! one that ends later. A receive from any source ends once no process is left that could send.

use cableway_base::Rank;

use super::arrive::refuse_all;
use super::communicator::Communicator;
use super::engine::Engine;
use crate::core::{Done, Gone};
use crate::error::Error;
use crate::protocol::Slot;
use crate::status::{ANY, Status};

/// Rounds without an event before a waiting call checks its peers. It checks again each time that the rounds have
/// doubled, and later at a fixed interval.
const FIRST_LOOK: u64 = 256;
const LAST_INTERVAL: u64 = 8192;

/// Largest communicator whose members are all connected for a receive from any source: connections cost memory and
/// descriptors.
const MOST_REACHED: usize = 64;

/// Returns whether to check the peers after this many rounds.
#[inline]
pub(super) fn is_due(rounds: u64) -> bool {
    rounds >= FIRST_LOOK && (rounds.is_power_of_two() || rounds.is_multiple_of(LAST_INTERVAL))
}

/// Checks every process that a posted receive waits for.
#[cold]
pub(super) fn look_around(engine: &Engine) {
    let mut done = Done::default();
    for communicator in engine.registry.read(|registry| registry.all()) {
        let awaited = communicator.matching.lock().matcher.awaited();
        for &source in &awaited {
            reach(engine, &communicator, source, &mut done);
        }
        if awaited.contains(&ANY)
            && let Some(error) = nobody_left(engine, &communicator)
        {
            let receives = communicator.matching.lock().matcher.abandon_any();
            for receive in receives {
                let status = Status { source: ANY, ..Status::EMPTY };
                receive.complete(status, Some(error.clone()), &mut done);
            }
        }
    }
    done.run();
}

/// Checks peers as [`look_around`] does, for a call that waits without a posted receive.
///
/// # Errors
/// The call waits in vain.
#[cold]
pub(super) fn look_for(engine: &Engine, on: &Communicator, source: i32) -> Result<(), Error> {
    let mut done = Done::default();
    reach(engine, on, source, &mut done);
    done.run();
    if source == ANY { nobody_left(engine, on).map_or(Ok(()), Err) } else { Ok(()) }
}

/// Has the transports connect to the processes that a receive of `source` waits for.
fn reach(engine: &Engine, on: &Communicator, source: i32, done: &mut Done) {
    match on.group().get(source as usize) {
        Some(&process) => reach_process(engine, process, done),
        None if source == ANY && on.group().len() <= MOST_REACHED => {
            on.group().iter().for_each(|&process| reach_process(engine, process, done));
        }
        None => {}
    }
}

fn reach_process(engine: &Engine, process: Rank, done: &mut Done) {
    if process == engine.core().modex.job().rank {
        return;
    }
    let slot = match engine.peer(process) {
        Ok(slot) => slot,
        // The peer may be able to reach this process.
        Err(error) => return log::debug!("a receive waits for peer {process}: {error}"),
    };
    if slot.peer.gone().is_some() {
        // The peer was only connected now, and cannot be reached.
        return end_receives(engine, slot, done);
    }
    engine.protocols.with(slot, done, |_, channel| {
        if let Some(link) = channel.links.active.first_mut()
            && let Err(error) = link.endpoint.connect()
        {
            channel.links.main_broke(error);
        }
    });
}

/// Returns why no process can send to this one in a communicator: every other process of it is gone, and this one has
/// never sent to itself, as another thread of it might.
fn nobody_left(engine: &Engine, on: &Communicator) -> Option<Error> {
    let me = engine.core().modex.job().rank;
    let others = || on.group().iter().filter(|&&process| process != me);
    let to_myself = on.rank_of(me).is_some() && engine.known(me).is_some();
    let matching = on.matching.lock();
    let gone = |process: &Rank| on.rank_of(*process).is_some_and(|rank| matching.is_gone(rank));
    if to_myself || !others().all(gone) {
        return None;
    }
    engine.known(*others().next_back()?)?.peer.check().err()
}

/// Ends receives that wait for a peer that is gone. These are the receives that name it. If it died, they include
/// receives from any source in its communicators, because it may have been the one to satisfy them. A peer that left
/// was not.
pub(super) fn end_receives(engine: &Engine, slot: &Slot, done: &mut Done) {
    let died = matches!(slot.peer.gone(), Some(Gone::Failed(_)));
    for communicator in engine.registry.read(|registry| registry.all()) {
        let Some(rank) = communicator.rank_of(slot.peer.rank) else { continue };
        let ((receives, _lost), refused) = {
            let mut matching = communicator.matching.lock();
            matching.note_gone((rank, slot.peer.rank), died);
            (matching.matcher.abandon(rank, died), matching.take_refused())
        };
        refuse_all(engine, &communicator, refused, done);
        for receive in receives {
            receive.complete(Status { source: rank as i32, ..Status::EMPTY }, slot.peer.check().err(), done);
        }
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
