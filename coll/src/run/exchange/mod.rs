//! Executes exchanges: reductions by peer access.
//!
//! ```text
//! owner of memory                  rank that reduces its share
//!     offer               ------->   maps the memory
//!                         <-------   answer, if it cannot: send the input, or receive the result
//!     input, if asked     ------->
//!                                    one kernel reads all inputs and stores the result in all outputs
//!                         <-------   result, if asked
//!                         <-------   last answer
//! ```
//!
//! Every rank is both to every other rank. Nobody waits on a device: a rank launches its kernel once the offers of all
//! ranks have come, and an offer is sent once the data is there. So kernels of different communicators never wait for each
//! other.

mod note;
mod peer;
mod wire;

use cableway_common_cuda::{Order, Reduction, ReductionRun};
use cableway_pml::{Communicator, DeviceRange, Engine};
use smallvec::SmallVec;

use super::shared::Collectives;
use super::site::Site;
use crate::error::Error;
use crate::placing::Working;
use crate::plan::exchange::Exchange;
use crate::plan::{Combine, Place, Plan};
use crate::reduce;
use peer::Peer;

/// An exchange, and what it is executed with.
#[derive(Clone, Copy)]
pub(super) struct Scene<'s> {
    pub(super) shared: &'s Collectives,
    pub(super) on: &'s Communicator,
    pub(super) site: Site,
    pub(super) plan: &'s Plan,
    pub(super) exchange: &'s Exchange,
}

/// An exchange under way.
pub(super) struct Exchanging {
    peers: Vec<Peer>,
    /// The input and the output of this rank, if they are device memory.
    own: [Option<DeviceRange>; 2],
    stage: Stage,
    failure: Option<Error>,
}

enum Stage {
    /// Inputs are missing.
    Gathering,
    Running(ReductionRun),
    Reduced,
}

impl Exchanging {
    /// Begins an exchange. After a failure of the operation it begins with that, and exchanges messages without data.
    pub(super) fn new(scene: &Scene<'_>, failure: Option<Error>) -> Exchanging {
        let &Scene { on, site, exchange, .. } = scene;
        let me = on.rank();
        let mut failure = failure;
        let mut peers = Vec::new();
        for rank in (1..on.group().len() as u32).map(|distance| (me + distance) % on.group().len() as u32) {
            match Peer::new(scene, rank) {
                Ok(peer) => peers.push(peer),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        let own = |place: Place, elements: u64| {
            if site.settled || matches!(site.working, Working::Host) {
                return None;
            }
            let (address, len) = (site.address(place), usize::try_from(exchange.operands.bytes(elements)).ok()?);
            let location = scene.shared.pools.devices.classify(address, len);
            location.on_device().then_some(DeviceRange { address, len, location })
        };
        let operands = &exchange.operands;
        let own = [own(operands.input(0), exchange.input), own(operands.output(0), exchange.output)];
        Exchanging { peers, own, stage: Stage::Gathering, failure }
    }

    /// Makes progress. Returns true once the output is complete and nobody uses this rank's memory.
    pub(super) fn poll(&mut self, scene: &Scene<'_>) -> Result<bool, Error> {
        if let Err(error) = self.advance(scene) {
            self.failure.get_or_insert(error);
        }
        if self.failure.is_some() {
            self.peers.iter_mut().for_each(|peer| peer.owe_nothing(scene));
        }
        if matches!(self.stage, Stage::Running(_)) || !self.peers.iter().all(Peer::is_over) {
            return Ok(false);
        }
        self.peers.iter_mut().for_each(|peer| peer.release(&scene.shared.pools));
        match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(matches!(self.stage, Stage::Reduced)),
        }
    }

    /// Makes it fail.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| error.clone());
    }

    /// Checks whether no message wakes this process for the next step.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(self.stage, Stage::Running(_)) || self.peers.iter().any(Peer::waits_for_device)
    }

    /// After a failure, does not wait for messages that have not come.
    pub(super) fn cancel(&self, engine: &Engine) {
        self.peers.iter().for_each(|peer| peer.cancel(engine));
    }

    fn advance(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        let mut first = Ok(());
        let failed = self.failure.is_some();
        for peer in &mut self.peers {
            let advanced = peer.advance(scene, &self.own, failed);
            first = first.and(advanced);
        }
        first?;
        if let Stage::Running(run) = &mut self.stage {
            match run.poll() {
                Ok(false) => return Ok(()),
                Ok(true) => self.stage = Stage::Reduced,
                Err(error) => {
                    self.stage = Stage::Reduced;
                    return Err(error.into());
                }
            }
        }
        if failed {
            return Ok(());
        }
        if matches!(self.stage, Stage::Gathering) && self.peers.iter().all(Peer::has_input) {
            self.reduce(scene)?;
        }
        if matches!(self.stage, Stage::Reduced) {
            for peer in &mut self.peers {
                peer.give_back(scene)?;
            }
        }
        Ok(())
    }

    /// Reduces this rank's share.
    fn reduce(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        let &Scene { shared, on, site, exchange, plan } = scene;
        let share = exchange.shares.of_rank(on.rank());
        let (count, Some(combine)) = (share.end - share.start, plan.combine) else { return Ok(()) };
        if count == 0 {
            self.stage = Stage::Reduced;
            return Ok(());
        }
        let from = exchange.operands.bytes(share.start) as usize;
        let mut sources: SmallVec<[*const u8; 4]> = smallvec::smallvec![std::ptr::null(); self.peers.len() + 1];
        sources[on.rank() as usize] = site.address(exchange.operands.input(share.start)).cast_const();
        let output = site.address(exchange.operands.output(exchange.own_output(&share)));
        let mut destinations: SmallVec<[*mut u8; 4]> = smallvec::smallvec![output];
        for peer in &self.peers {
            sources[peer.rank as usize] = peer.source(from);
            destinations.extend(peer.destination(from));
        }
        let Combine { operation, element } = combine;
        let Working::Device(at) = &site.working else {
            // SAFETY: all sources and the destination hold the elements, in host memory that no message accesses now.
            unsafe { reduce::on_host(combine, output, &sources, count as usize) };
            self.stage = Stage::Reduced;
            return Ok(());
        };
        let devices = &shared.pools.devices;
        let reduction = Reduction { operation, element, count, destinations: &destinations, sources: &sources };
        // SAFETY: this rank's operands stay until the exchange is over, and peers keep theirs until they get the last
        // answer. Nobody else accesses these elements of the outputs.
        match unsafe { devices.reduce(at, Order::AfterDefaultStream, &reduction) }? {
            Some(run) => self.stage = Stage::Running(run),
            // The next poll tries again: too many kernels are under way.
            None if devices.can_reduce(at, operation, element) => {}
            None => {
                // SAFETY: as above.
                unsafe { reduce::through_host(devices, combine, output, &sources, count as usize) }?;
                for peer in &mut self.peers {
                    peer.send_result_instead(scene)?;
                }
                self.stage = Stage::Reduced;
            }
        }
        Ok(())
    }
}
