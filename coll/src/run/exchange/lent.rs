//! This rank's memory, which another rank accesses in an exchange.

use cableway_pml::{ExposedMemory, Exposure, PeerBlocks};
use smallvec::SmallVec;

use super::scene::Scene;
use super::settled::Settled;
use super::wire::{ANSWER_LEN, OFFER_LEN, Offer};
use crate::error::Error;
use crate::run::note::Note;
use crate::run::site::Message;

/// This rank's memory, which the peer accesses.
pub(super) struct Lent {
    /// Kept until the peer's last answer.
    exposed: [Option<Box<ExposedMemory>>; 2],
    /// The places of the data in the input, if it has gaps.
    blocks: Option<PeerBlocks>,
    /// What was exposed so far, and whether that waits for the default stream.
    progress: [Asked; 2],
    pub(super) offer: Option<Note<OFFER_LEN>>,
    /// `None` after the last answer.
    pub(super) answer: Option<Note<ANSWER_LEN>>,
    pub(super) data: SmallVec<[Message; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Not,
    Waiting,
    Answered,
}

impl Lent {
    /// Lends nothing yet. The `answer` is received.
    pub(super) fn new(answer: Option<Note<ANSWER_LEN>>) -> Lent {
        let (exposed, progress) = ([None, None], [Asked::Not; 2]);
        Lent { exposed, blocks: None, progress, offer: None, answer, data: SmallVec::new() }
    }

    /// Exposes memory to the peer. Returns what it may access, or `None` if the default stream still works on that.
    pub(super) fn expose(&mut self, scene: &Scene<'_>, to: u32, settled: &mut Settled) -> Result<Option<Offer>, Error> {
        let process = scene.on.group()[to as usize];
        for (at, block) in scene.lends(to).into_iter().enumerate() {
            if self.progress[at] == Asked::Answered {
                continue;
            }
            self.progress[at] = Asked::Answered;
            let Some(memory) = block.and_then(|block| scene.on_device(&block)) else { continue };
            if !settled.has(scene, &memory.range)? {
                self.progress[at] = Asked::Waiting;
                return Ok(None);
            }
            // SAFETY: the operation keeps its memory until the peer's last answer. The peer accesses it only before that.
            match unsafe { scene.shared.engine.expose(process, memory.range, at == 1) }? {
                Exposure::Exposed(exposed) => {
                    self.exposed[at] = Some(exposed);
                    // Only inputs have gaps.
                    self.blocks = self.blocks.or(memory.blocks.map(PeerBlocks::new));
                }
                Exposure::Never => {}
            }
        }
        let handle = |at: usize| self.exposed[at].as_ref().map(|exposed| *exposed.handle());
        let (input, output, whole) = (handle(0), handle(1), scene.offers_whole());
        Ok(Some(Offer { input, blocks: self.blocks, output, whole }))
    }

    /// Checks whether the default stream still works on the memory.
    pub(super) fn waits_for_device(&self) -> bool {
        self.progress.contains(&Asked::Waiting)
    }

    /// Checks whether the peer was told how to access memory, and has not said that it does so no more.
    pub(super) fn is_accessible(&self) -> bool {
        self.offer.is_some() && self.answer.is_some() && self.exposed.iter().any(Option::is_some)
    }
}
