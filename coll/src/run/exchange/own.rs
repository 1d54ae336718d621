//! This rank's own block in an exchange of blocks. Its copy waits for no other rank, so it begins before their offers come,
//! unless one kernel copies all blocks.

use cableway_common_cuda::{Completion, CopyShape, Devices, Direction, Order};
use smallvec::SmallVec;

use super::blocks::{DeviceBlocks, Source};
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

/// This rank's own block, if a device reaches it on both sides.
pub(super) struct OnDevice {
    pub(super) from: DeviceBlocks,
    pub(super) to: DeviceBlocks,
}

impl OnDevice {
    /// Locates the block. Returns `None` if it is elsewhere, or has another length on the other side.
    pub(super) fn of(scene: &Scene<'_>, from: &Block, to: &Block) -> Option<OnDevice> {
        let (from, to) = (scene.here(from)?, scene.here(to)?);
        (from.bytes() == to.bytes()).then_some(OnDevice { from, to })
    }

    /// Checks whether the block is one run on both sides.
    pub(super) fn is_run(&self) -> bool {
        self.from.blocks.is_none() && self.to.blocks.is_none()
    }

    /// Describes its copy.
    pub(super) fn shape(&self) -> CopyShape {
        self.to.copy_from(&Source { address: self.from.range.address, blocks: self.from.blocks })
    }

    /// Returns what the copy must wait for.
    pub(super) fn order(&self, devices: &Devices) -> Order {
        devices.order(&self.from.range.location).max(devices.order(&self.to.range.location))
    }
}

/// Has the device where this rank works copy its block. Returns `None` if it cannot.
fn copy(scene: &Scene<'_>, from: &Block, to: &Block) -> Result<Option<Completion>, Error> {
    let Some(block) = OnDevice::of(scene, from, to) else { return Ok(None) };
    let devices = &scene.shared.pools.devices;
    if !block.is_run() && ![&block.to, &block.from].into_iter().all(|side| side.reached_by_kernels(devices)) {
        return Ok(None);
    }
    let (to, from) = (block.to.range, block.from.range);
    let mut batch = devices.batch(&to.location, Direction::WithinDevice, block.order(devices))?;
    // SAFETY: this rank's blocks stay until the exchange is over, and blocks of an operation do not overlap.
    unsafe { batch.copy_shape(to.address, from.address, to.len, &block.shape()) };
    Ok(Some(batch.finish()?))
}
