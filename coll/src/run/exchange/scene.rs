//! What an exchange is executed with, and what it asks of each rank.

use cableway_pml::{Buffer, Communicator, DeviceRange};
use smallvec::SmallVec;

use super::blocks::{DeviceBlocks, Extent};
use crate::error::Error;
use crate::placing::Working;
use crate::plan::exchange::{Exchange, Moves, Reduction};
use crate::plan::{Block, Place, Plan};
use crate::run::shared::Collectives;
use crate::run::site::{Message, Site};
use crate::run::tags;

/// An exchange, and what it is executed with.
#[derive(Clone, Copy)]
pub(in crate::run) struct Scene<'s> {
    pub(in crate::run) shared: &'s Collectives,
    pub(in crate::run) on: &'s Communicator,
    pub(in crate::run) site: Site,
    pub(in crate::run) plan: &'s Plan,
    pub(in crate::run) exchange: &'s Exchange,
}

/// What a rank uses of the memory of another one. Of blocks, the bytes of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uses {
    /// The bytes that must be mapped to read the input. 0 if it reads nothing.
    pub(super) input: u64,
    /// The bytes that must be mapped to write the output. 0 if it writes nothing.
    pub(super) output: u64,
    /// The number that divides the addresses.
    pub(super) alignment: usize,
}

impl Scene<'_> {
    pub(super) fn me(&self) -> u32 {
        self.on.rank()
    }

    pub(super) fn tag(&self, message: u32) -> i32 {
        tags::of_message(self.site.first_tag, message)
    }

    /// Returns whether this rank would reduce everything for itself, if the other one of two does the same.
    pub(super) fn offers_whole(&self) -> bool {
        match (self.exchange, &self.site.working) {
            (Exchange::Reduce(reduction), Working::Device(_)) => reduction.may_be_whole(),
            _ => false,
        }
    }

    /// Returns what this rank lends to another one: memory to read, and memory to write.
    pub(super) fn lends(&self, to: u32) -> [Option<Block>; 2] {
        match self.exchange {
            Exchange::Reduce(reduction) => {
                let used = !reduction.shares.of_rank(to).is_empty();
                let all = |place: Place| Some(Block::bytes(place, reduction.bytes()));
                let written = used && reduction.gets_all(self.me());
                [
                    all(reduction.operands.input(0)).filter(|_| used || self.offers_whole()),
                    all(reduction.operands.output(0)).filter(|_| written),
                ]
            }
            Exchange::Move(moves) => [Some(moves.sends[to as usize]), None],
        }
    }

    /// Returns what this rank uses of the memory of another one, if each reduces the `whole` or its share.
    pub(super) fn uses(&self, of: u32, whole: bool) -> Uses {
        match self.exchange {
            Exchange::Reduce(reduction) => {
                let used = !reduction.part(self.me(), whole).is_empty();
                let bytes = |uses: bool| if uses { reduction.bytes() } else { 0 };
                let alignment = self.plan.combine.map_or(1, |combine| combine.element.alignment());
                Uses { input: bytes(used), output: bytes(used && !whole && reduction.gets_all(of)), alignment }
            }
            Exchange::Move(moves) => {
                let input = self.plan.packed_len(&moves.receives[of as usize]);
                Uses { input, output: 0, alignment: 1 }
            }
        }
    }

    /// Returns the blocks of messages that take the place of another rank's access: the input that it reads, and the result
    /// that it writes.
    pub(super) fn instead_of(&self, rank: u32, whole: bool) -> [Option<Block>; 2] {
        match self.exchange {
            Exchange::Reduce(reduction) => {
                let Reduction { operands, .. } = reduction;
                let share = reduction.part(rank, whole);
                let block = |place: Place| Some(operands.block(place, share.end - share.start));
                let result = if rank == self.me() { reduction.own_output(rank, &share) } else { share.start };
                [block(operands.input(share.start)), block(operands.output(result))]
            }
            Exchange::Move(moves) => [Some(moves.sends[rank as usize]), None],
        }
    }

    /// Returns the memory of a block if it is device memory that may be mapped: a run, or blocks at regular distances, in
    /// one allocation.
    pub(super) fn on_device(&self, block: &Block) -> Option<DeviceBlocks> {
        if self.site.settled {
            return None;
        }
        let Extent { address, len, blocks } = Extent::of(&self.site, self.plan, block)?;
        let devices = &self.shared.pools.devices;
        let locate = || {
            let location = devices.classify(address, len);
            (location.on_device() && devices.one_allocation(&location, address, len)).then_some(location)
        };
        let location = self.plan.known.find(address as usize, len).or_else(locate)?;
        Some(DeviceBlocks { range: DeviceRange { address, len, location }, blocks })
    }

    /// Returns the memory of a block if it is memory of the device and context where this rank works.
    pub(super) fn here(&self, block: &Block) -> Option<DeviceBlocks> {
        let Working::Device(at) = &self.site.working else { return None };
        let memory = self.on_device(block)?;
        let location = &memory.range.location;
        (location.device == at.device && location.context == at.context).then_some(memory)
    }

    /// Sends a block, or a message without data.
    pub(super) fn send(
        &self,
        to: (u32, u32),
        block: Option<Block>,
        messages: &mut SmallVec<[Message; 2]>,
    ) -> Result<(), Error> {
        self.site.send(self.shared, self.on, to, self.buffer(block), messages)
    }

    pub(super) fn receive(
        &self,
        from: (u32, u32),
        block: Option<Block>,
        messages: &mut SmallVec<[Message; 2]>,
    ) -> Result<(), Error> {
        self.site.receive(self.shared, self.on, from, self.buffer(block), messages)
    }

    fn buffer(&self, block: Option<Block>) -> Buffer<'_> {
        block.map_or(Buffer::EMPTY, |block| self.site.buffer(self.plan, &block))
    }
}

impl Moves {
    /// Returns what this rank copies from its own memory, unless nothing.
    pub(super) fn own_copy(&self, plan: &Plan) -> Option<(Block, Block)> {
        self.own.filter(|(_, to)| plan.packed_len(to) != 0)
    }
}
