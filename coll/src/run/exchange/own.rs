//! This rank's own block in an exchange of blocks. Its copy waits for no other rank, so it begins before their offers come,
//! unless one kernel copies all blocks.

use cableway_common_cuda::{Completion, CopyShape, Direction};
use smallvec::SmallVec;

use super::blocks::Source;
use super::scene::Scene;
use super::wire::OWN;
use crate::error::Error;
use crate::plan::Block;
use crate::plan::exchange::Exchange;
use crate::run::site::{Message, outcome};

/// The copy of this rank's own block.
#[derive(Default)]
pub(super) enum OwnBlock {
    #[default]
    NotBegun,
    /// A device copies it, beside the blocks of other ranks.
    Copying(Completion),
    /// A message to this process copies between any two kinds of memory and types.
    Messages(SmallVec<[Message; 2]>),
    /// It has been copied, there is none, or its copy failed.
    Over,
}

impl OwnBlock {
    /// Begins the copy, unless that was done before.
    pub(super) fn begin(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        if !matches!(self, OwnBlock::NotBegun) {
            return Ok(());
        }
        *self = OwnBlock::Over;
        let Exchange::Move(moves) = scene.exchange else { return Ok(()) };
        let Some((from, to)) = moves.own_copy(scene.plan) else { return Ok(()) };
        if let Some(completion) = copy(scene, &from, &to)? {
            *self = OwnBlock::Copying(completion);
            return Ok(());
        }
        let mut messages = SmallVec::new();
        let begun = scene
            .receive((scene.me(), OWN), Some(to), &mut messages)
            .and_then(|()| scene.send((scene.me(), OWN), Some(from), &mut messages));
        // The engine uses the memory of messages that were begun, also after an error.
        *self = OwnBlock::Messages(messages);
        begun
    }

    /// Records that the copy belongs to that of the other ranks' blocks.
    pub(super) fn leave_out(&mut self) {
        *self = OwnBlock::Over;
    }

    /// Makes progress. Returns true once nobody uses the block's memory.
    pub(super) fn poll(&mut self) -> Result<bool, Error> {
        let polled = match self {
            OwnBlock::NotBegun | OwnBlock::Over => return Ok(true),
            OwnBlock::Copying(completion) => completion.poll().map_err(Error::from),
            OwnBlock::Messages(messages) => outcome(messages),
        };
        let is_over = match (&polled, &self) {
            (Ok(done), _) => *done,
            (Err(_), OwnBlock::Messages(messages)) => messages.iter().all(Message::is_complete),
            (Err(_), _) => true,
        };
        if is_over {
            *self = OwnBlock::Over;
        }
        polled
    }

    /// Checks whether a device copies the block.
    pub(super) fn is_on_device(&self) -> bool {
        matches!(self, OwnBlock::Copying(_))
    }
}

/// Has the device where this rank works copy its block. Returns `None` if it cannot.
fn copy(scene: &Scene<'_>, from: &Block, to: &Block) -> Result<Option<Completion>, Error> {
    let (Some(from), Some(to)) = (scene.here(from), scene.here(to)) else { return Ok(None) };
    if from.bytes() != to.bytes() {
        return Ok(None);
    }
    let devices = &scene.shared.pools.devices;
    let how = to.copy_from(&Source { address: from.range.address, blocks: from.blocks });
    if !matches!(how, CopyShape::Run) && ![&to, &from].into_iter().all(|side| side.reached_by_kernels(devices)) {
        return Ok(None);
    }
    let (to, from) = (to.range, from.range);
    let order = devices.order(&from.location).max(devices.order(&to.location));
    let mut batch = devices.batch(&to.location, Direction::WithinDevice, order)?;
    // SAFETY: this rank's blocks stay until the exchange is over, and blocks of an operation do not overlap.
    unsafe { batch.copy_shape(to.address, from.address, to.len, &how) };
    Ok(Some(batch.finish()?))
}
