//! Plans of operations in one shot: their data is brought to where a rank works, and back.

use cableway_common_cuda::Element;

use super::{Builder, Steps};
use crate::call::{Memory, Operands as CallOperands};
use crate::choice::Algorithm;
use crate::placing::{Span, Working};
use crate::plan::one_shot::{Folded, OneShot, Sent};
use crate::plan::operands::Operands;
use crate::plan::shares::Shares;
use crate::plan::{Block, Place};
use crate::slots::Slots;
use crate::staged::Output;

impl Builder<'_> {
    /// Adds an allreduce.
    pub(super) fn allreduce_in_one_shot(&mut self, call: &CallOperands) {
        let mut staged = self.stage(call, Algorithm::OneShot, Output::Here(call.count));
        let (operands, count) = (staged.operands, call.count);
        let own = operands.input(0);
        let sent = Sent::ToAll(run(&operands, own, count));
        let folded = Folded { own, output: operands.output(0), elements: count };
        let ready = std::mem::take(&mut staged.ready);
        let ends = self.fold(sent, &operands, folded, ready);
        staged.finish(&mut self.plan, count, &ends);
    }

    /// Adds a reduce-scatter.
    pub(super) fn reduce_scatter_in_one_shot(&mut self, call: &CallOperands, counts: &[u64]) {
        let (shares, me) = (Shares::of(counts.iter().copied()), self.me);
        let mine = shares.of_rank(me.rank);
        let elements = mine.end - mine.start;
        let mut staged = self.stage(call, Algorithm::OneShot, Output::Apart(elements));
        let operands = staged.operands;
        let share = |rank| {
            let share = shares.of_rank(rank);
            run(&operands, operands.input(share.start), share.end - share.start)
        };
        let blocks: Vec<Block> = (0..me.size).map(share).collect();
        let places = Slots::places(blocks.iter().map(|block| block.count));
        let sent = Sent::ToEach { blocks, places };
        let folded = Folded { own: operands.input(mine.start), output: operands.output(0), elements };
        let ready = std::mem::take(&mut staged.ready);
        let ends = self.fold(sent, &operands, folded, ready);
        staged.finish(&mut self.plan, elements, &ends);
    }

    /// Adds an exchange whose data is reduced. The data of others comes to scratch memory.
    fn fold(&mut self, sent: Sent, operands: &Operands, folded: Folded, ready: Steps) -> Steps {
        let bytes = operands.bytes(folded.elements);
        let receives =
            (0..self.me.size).map(|rank| ((rank != self.me.rank).then(|| self.plan.scratch(bytes)), bytes)).collect();
        vec![self.plan.one_shot(OneShot { sent, receives, reduction: Some(folded), refused: None }, &ready)]
    }

    /// Adds an allgather.
    pub(super) fn allgather_in_one_shot(&mut self, send: Option<&Memory<'_>>, receive: &[Memory<'_>]) {
        self.work_beside(receive);
        let own = self.me.rank as usize;
        let (mut before, mut after) = (Steps::new(), Vec::new());
        let from = self.run_to_send(send.unwrap_or(&receive[own]), &mut before);
        let receives = receive.iter().enumerate().map(|(rank, memory)| {
            let stays = rank == own && send.is_none();
            let place = (!stays).then(|| self.run_to_receive(memory, &mut after));
            (place, memory.packed_len())
        });
        let receives = receives.collect();
        let refused = first_other([from.count], receive[own].packed_len());
        let shot = OneShot { sent: Sent::ToAll(from), receives, reduction: None, refused };
        self.exchange_in_one_shot(shot, &before, after);
    }

    /// Adds an alltoall in which all blocks have one length.
    pub(super) fn alltoall_in_one_shot(&mut self, send: &[Memory<'_>], receive: &[Memory<'_>]) {
        self.work_beside(receive);
        self.placing.locate_all(send);
        let (mut before, mut after) = (Steps::new(), Vec::new());
        let sends: Vec<Block> = send.iter().map(|memory| self.run_to_send(memory, &mut before)).collect();
        let receives =
            receive.iter().map(|memory| (Some(self.run_to_receive(memory, &mut after)), memory.packed_len())).collect();
        let lengths = sends.iter().map(|block| block.count).chain(receive.iter().map(Memory::packed_len));
        let refused = first_other(lengths, receive[self.me.rank as usize].packed_len());
        let sent = Sent::ToEach { blocks: sends, places: Slots::even_places(self.me.size) };
        let shot = OneShot { sent, receives, reduction: None, refused };
        self.exchange_in_one_shot(shot, &before, after);
    }

    /// Decides where an exchange works: beside the first block in device memory, if kernels there reach the slots.
    fn work_beside(&mut self, receive: &[Memory<'_>]) {
        self.working = self.beside_first(receive);
        self.keep_in_reach();
        if let Working::Device(at) = &self.working
            && !self.placing.devices.can_exchange(at)
        {
            self.working = Working::Host;
        }
    }

    /// Has the host work if kernels where this rank works do not reach the slots.
    pub(super) fn keep_in_reach(&mut self) {
        if let Working::Device(at) = &self.working
            && !self.basis.slots.is_some_and(|slots| slots.are_reached_at(self.placing.devices, at))
        {
            self.working = Working::Host;
        }
    }

    fn exchange_in_one_shot(&mut self, shot: OneShot, before: &[u32], after: Vec<(Block, Block)>) {
        let exchanged = self.plan.one_shot(shot, before);
        for (run, block) in after {
            self.plan.copy(run, block, &[exchanged]);
        }
    }

    /// Returns a run of bytes with data to send, where this rank works. It is copied there if it is not.
    fn run_to_send(&mut self, memory: &Memory<'_>, before: &mut Steps) -> Block {
        let bytes = memory.packed_len();
        if let Some(address) = self.run_here(memory) {
            return Block::bytes(Place::User(address), bytes);
        }
        let (block, run) = (self.plan.block(memory), Block::bytes(self.plan.scratch(bytes), bytes));
        before.push(self.plan.copy(block, run, &[]));
        run
    }

    /// Returns where data is received as a run of bytes. It is copied from there if it is to be elsewhere.
    fn run_to_receive(&mut self, memory: &Memory<'_>, after: &mut Vec<(Block, Block)>) -> Place {
        if let Some(address) = self.run_here(memory) {
            return Place::User(address);
        }
        let bytes = memory.packed_len();
        let place = self.plan.scratch(bytes);
        after.push((Block::bytes(place, bytes), self.plan.block(memory)));
        place
    }

    /// Returns the address of memory that is a run of bytes where this rank works.
    fn run_here(&self, memory: &Memory<'_>) -> Option<usize> {
        let (address, bytes) = memory.run()?;
        let usable = bytes == 0 || self.placing.is_usable(&self.working, Span { address, bytes }, Element::U8);
        usable.then_some(address)
    }
}

/// Returns the first length that is another one than it should be, and the expected one.
fn first_other(lengths: impl IntoIterator<Item = u64>, expected: u64) -> Option<(u64, u64)> {
    lengths.into_iter().map(|len| (len, expected)).find(|(len, expected)| len != expected)
}

/// Describes elements as one run of bytes, with the gaps in them.
fn run(operands: &Operands, place: Place, elements: u64) -> Block {
    Block::bytes(place, operands.bytes(elements))
}
