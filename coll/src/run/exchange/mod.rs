//! Executes exchanges: operations by peer access.
//!
//! ```text
//! owner of memory                  rank that uses it
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

mod blocks;
mod fetch;
mod lent;
mod own;
mod peer;
mod scene;
mod settled;
mod together;
mod wire;
mod work;

use cableway_base::Rank;
use cableway_pml::Engine;

use crate::error::Error;
use crate::plan::exchange::Exchange;
use own::OwnBlock;
use peer::Peer;
pub(super) use scene::Scene;
use settled::Settled;
use together::Together;
pub(crate) use wire::recode;
use work::Running;

/// An exchange under way.
pub(super) struct Exchanging {
    peers: Vec<Peer>,
    stage: Stage,
    settled: Settled,
    /// Present while one kernel may copy all blocks. The rank's own block waits for the others then.
    together: Option<Together>,
    own: OwnBlock,
    failure: Option<Error>,
}

enum Stage {
    /// Inputs are missing.
    Gathering,
    Running(Running),
    Done,
}

impl Exchanging {
    /// Begins an exchange. After a failure of the operation it begins with that, and exchanges messages without data.
    pub(super) fn new(scene: &Scene<'_>, failure: Option<Error>) -> Exchanging {
        let (me, size) = (scene.me(), scene.on.group().len() as u32);
        let mut failure = failure;
        let mut peers = Vec::with_capacity(size as usize - 1);
        for rank in (1..size).map(|distance| (me + distance) % size) {
            match Peer::new(scene, rank) {
                Ok(peer) => peers.push(peer),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        let together = if failure.is_none() { Together::of(scene) } else { None };
        let (settled, own) = (Settled::default(), OwnBlock::default());
        Exchanging { peers, stage: Stage::Gathering, settled, together, own, failure }
    }

    /// Makes progress. Returns true once the output is complete and nobody uses this rank's memory.
    pub(super) fn poll(&mut self, scene: &Scene<'_>) -> Result<bool, Error> {
        if let Err(error) = self.advance(scene) {
            self.failure.get_or_insert(error);
        }
        // The answers tell that this rank accesses the peers' memory no more, which is not so while it works.
        if self.failure.is_some() && !matches!(self.stage, Stage::Running(_)) {
            self.peers.iter_mut().for_each(|peer| peer.owe_nothing(scene));
        }
        let own_is_over = self.own.poll().unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            false
        });
        let quiet = own_is_over && self.peers.iter().all(Peer::is_over);
        if matches!(self.stage, Stage::Running(_)) || !quiet {
            return Ok(false);
        }
        if self.failure.is_none() && !matches!(self.stage, Stage::Done) {
            return Ok(false);
        }
        self.peers.iter_mut().for_each(Peer::release);
        self.failure.clone().map_or(Ok(true), Err)
    }

    /// Makes it fail.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| error.clone());
    }

    /// Checks whether no message wakes this process for the next step.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
            || self.own.is_on_device()
            || self.peers.iter().any(Peer::waits_for_device)
    }

    /// Returns a process whose failure made another one refuse a message.
    pub(super) fn told_of(&self) -> Option<Rank> {
        self.peers.iter().find_map(Peer::told_of)
    }

    /// Cancels receives that no message has matched.
    pub(super) fn cancel(&self, engine: &Engine) {
        self.peers.iter().for_each(|peer| peer.cancel(engine));
    }

    fn advance(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        let failed = self.failure.is_some();
        let mut first = Ok(());
        for peer in &mut self.peers {
            let advanced = peer.advance(scene, &mut self.settled, failed);
            first = first.and(advanced);
        }
        if let Stage::Running(running) = &mut self.stage {
            match running.poll() {
                Ok(false) => return first,
                Ok(true) => self.stage = Stage::Done,
                Err(error) => {
                    self.stage = Stage::Done;
                    first = first.and(Err(error));
                }
            }
        }
        first?;
        if failed {
            return Ok(());
        }
        self.together = self.together.take().filter(|together| together.may_still(scene, &self.peers));
        if self.together.is_none() {
            self.own.begin(scene)?;
        }
        if matches!(self.stage, Stage::Gathering) && self.peers.iter().all(Peer::has_input) {
            self.begin(scene)?;
        }
        if matches!(self.stage, Stage::Done) {
            for peer in &mut self.peers {
                peer.give_back(scene)?;
            }
        }
        Ok(())
    }

    /// Begins this rank's work. It may find that it must try again later.
    fn begin(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        let begun = match scene.exchange {
            Exchange::Reduce(reduction) => work::reduce(scene, reduction, &mut self.peers)?,
            Exchange::Move(_) => Some(self.copy(scene)?),
        };
        if let Some(running) = begun {
            self.stage = if running.is_done() { Stage::Done } else { Stage::Running(running) };
        }
        Ok(())
    }

    /// Begins to copy this rank's blocks.
    fn copy(&mut self, scene: &Scene<'_>) -> Result<Running, Error> {
        if let Some(together) = self.together.take() {
            if let Some(run) = together.begin(scene, &self.peers)? {
                self.own.leave_out();
                scene.shared.engine.count_moves();
                return Ok(Running::Kernel(run));
            }
            self.own.begin(scene)?;
        }
        work::copy(scene, &self.peers)
    }
}
