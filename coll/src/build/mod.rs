//! Builds the plan of a call.

mod checks;
mod one_shot;

use crate::by_function::by_function;
use crate::call::{Call, Edge, Memory, Operands as CallOperands, packed_len_of};
use crate::choice::{self, Algorithm, Asked, Choice, Gathered, Operation, Rules, Setting};
use crate::error::Error;
use crate::function::{FunctionOperands, Reduced};
use crate::placing::{Placing, Span, Working};
use crate::plan::one_shot::MOST_DATA;
use crate::plan::shares::Shares;
use crate::plan::{Block, Combine, Me, Place, Plan, StepId, alltoall, gather, neighbors, reduction, scan, tree};
use crate::slots::Slots;
use crate::staged::{Output, Staged};

/// What the plans of a communicator's calls have in common.
pub(crate) struct Basis<'b> {
    pub(crate) me: Me,
    pub(crate) choice: &'b Choice,
    pub(crate) rules: &'b Rules,
    /// The slots for operations in one shot, if this call may be one.
    pub(crate) slots: Option<&'b Slots>,
    /// Is told of new choices.
    pub(crate) report: Option<fn(&str)>,
}

/// Builds the plan of one rank.
pub(crate) fn build(call: &Call<'_>, basis: &Basis<'_>, placing: &Placing<'_>) -> Result<(Plan, Working), Error> {
    let mut builder = Builder { plan: Plan::default(), me: basis.me, basis, placing, working: Working::Host };
    builder.call(call)?;
    let Builder { mut plan, working, .. } = builder;
    plan.known = placing.known.borrow().clone();
    Ok((plan, working))
}

struct Builder<'a> {
    plan: Plan,
    me: Me,
    basis: &'a Basis<'a>,
    placing: &'a Placing<'a>,
    /// Where the scratch memory must be.
    working: Working,
}

type Steps = Vec<StepId>;

impl<'a> Builder<'a> {
    fn call(&mut self, call: &Call<'_>) -> Result<(), Error> {
        match call {
            Call::Broadcast { memory, root } => self.broadcast(memory, *root),
            Call::Gather { send, receive, root } => self.gather(send.as_ref(), receive, *root),
            Call::Scatter { send, receive, root } => self.scatter(send, receive.as_ref(), *root),
            Call::Allgather { send, receive } => self.allgather(send.as_ref(), receive),
            Call::Alltoall { send, receive, even } => self.alltoall(send.as_deref(), receive, *even),
            Call::Neighbors { send, receive, with_empty } => self.neighbors(send, receive, *with_empty),
            Call::Allreduce(operands) => self.allreduce(operands),
            Call::Reduce { operands, root } => self.reduce(operands, *root),
            Call::ReduceScatter { operands, counts } => self.reduce_scatter(operands, counts),
            Call::Scan(operands) => self.scan(operands, false),
            Call::ExclusiveScan(operands) => self.scan(operands, true),
            Call::ReduceLocal(operands) => self.reduce_local(operands),
            Call::ByFunction(operands, reduced) => self.by_function(operands, reduced),
        }
    }

    fn broadcast(&mut self, memory: &Memory<'_>, root: u32) -> Result<(), Error> {
        self.check_root(root)?;
        let bytes = memory.packed_len();
        if bytes == 0 || self.me.size == 1 {
            return Ok(());
        }
        let algorithm = self.choose(Operation::Broadcast, bytes);
        if algorithm == Algorithm::Tree {
            let block = self.plan.block(memory);
            tree::broadcast(&mut self.plan, self.me, root, block, &[]);
            return Ok(());
        }
        // Shares are ranges of bytes, so data with gaps is packed.
        let (me, setting) = (self.me, self.setting(1));
        match memory.run() {
            Some((address, _)) => {
                choice::broadcast(&mut self.plan, algorithm, setting, (Place::User(address), bytes, root), &[]);
            }
            None => {
                self.working = self.placing.beside(memory);
                let packed = self.plan.scratch(bytes);
                let (block, run) = (self.plan.block(memory), Block::bytes(packed, bytes));
                let ready = if me.rank == root { vec![self.plan.copy(block, run, &[])] } else { Steps::new() };
                let here = choice::broadcast(&mut self.plan, algorithm, setting, (packed, bytes, root), &ready);
                if me.rank != root {
                    self.plan.copy(run, block, &here);
                }
            }
        }
        Ok(())
    }

    fn gather(&mut self, send: Option<&Memory<'_>>, receive: &[Memory<'_>], root: u32) -> Result<(), Error> {
        self.check_root(root)?;
        let own = send.map(|memory| self.plan.block(memory));
        if self.me.rank == root {
            let blocks = self.blocks(receive, "memory to receive")?;
            gather::gather_at_root(&mut self.plan, self.me, own, &blocks);
        } else if let Some(own) = own {
            self.plan.send(root, 0, own, &[]);
        }
        Ok(())
    }

    fn scatter(&mut self, send: &[Memory<'_>], receive: Option<&Memory<'_>>, root: u32) -> Result<(), Error> {
        self.check_root(root)?;
        let own = receive.map(|memory| self.plan.block(memory));
        if self.me.rank == root {
            let blocks = self.blocks(send, "memory to send")?;
            gather::scatter_at_root(&mut self.plan, self.me, own, &blocks);
        } else if let Some(own) = own {
            self.plan.receive(root, 0, own, &[]);
        }
        Ok(())
    }

    fn allgather(&mut self, send: Option<&Memory<'_>>, receive: &[Memory<'_>]) -> Result<(), Error> {
        let blocks = self.blocks(receive, "memory to receive")?;
        let own = blocks[self.me.rank as usize];
        // What is sent need not wait for the copy.
        let from = send.map_or(own, |memory| self.plan.block(memory));
        let bytes = packed_len_of(receive);
        let algorithm = self.choose(Operation::Allgather, bytes);
        if algorithm == Algorithm::OneShot {
            self.allgather_in_one_shot(send, receive);
            return Ok(());
        }
        let ready: Steps = match send {
            Some(_) if algorithm != Algorithm::PeerAccess || self.me.size == 1 => vec![self.plan.copy(from, own, &[])],
            _ => Steps::new(),
        };
        if algorithm == Algorithm::PeerAccess {
            self.working = self.beside_first(receive);
            self.placing.locate_all(send.map_or(&[], std::slice::from_ref));
        }
        if self.me.size > 1 {
            let setting = self.setting(1);
            let gathered = Gathered { own: from, in_place: send.is_none(), blocks: &blocks };
            choice::allgather(&mut self.plan, algorithm, setting, gathered, &ready);
        }
        Ok(())
    }

    /// Returns where the first block in device memory is.
    fn beside_first(&self, blocks: &[Memory<'_>]) -> Working {
        self.placing.locate_all(blocks);
        let mut kinds = blocks.iter().map(|memory| self.placing.beside(memory));
        kinds.find(|kind| matches!(kind, Working::Device(_))).unwrap_or(Working::Host)
    }

    fn alltoall(&mut self, send: Option<&[Memory<'_>]>, receive: &[Memory<'_>], even: bool) -> Result<(), Error> {
        let receives = self.blocks(receive, "memory to receive")?;
        let rank = self.me.rank as usize;
        match send {
            Some(send) => {
                let sends = self.blocks(send, "memory to send")?;
                let bytes = packed_len_of(receive);
                // An alltoall moves as many bytes as an allgather.
                if even && self.choose(Operation::Allgather, bytes) == Algorithm::OneShot {
                    self.alltoall_in_one_shot(send, receive);
                    return Ok(());
                }
                let own = (sends[rank], receives[rank]);
                let Basis { choice, rules, .. } = self.basis;
                if self.me.size > 1 && choice.alltoall_by_peer_access(rules) {
                    self.working = self.beside_first(receive);
                    self.placing.locate_all(send);
                    choice::alltoall_by_peer_access(
                        &mut self.plan,
                        (sends.to_vec(), receives.to_vec()),
                        Some(own),
                        &[],
                    );
                } else {
                    self.plan.copy(own.0, own.1, &[]);
                    alltoall::exchange(&mut self.plan, self.me, &sends, &receives, &[]);
                }
            }
            None if self.me.size > 1 => {
                let packed: Vec<u64> = receive.iter().map(Memory::packed_len).collect();
                self.working =
                    receive.iter().map(|memory| self.placing.beside(memory)).fold(Working::Host, Working::or);
                alltoall::exchange_in_place(&mut self.plan, self.me, &receives, &packed);
            }
            None => {}
        }
        Ok(())
    }

    fn neighbors(&mut self, send: &[Edge<'_>], receive: &[Edge<'_>], with_empty: bool) -> Result<(), Error> {
        let mut edges = |edges: &[Edge<'_>]| -> Vec<neighbors::Edge> {
            let edge = |edge: &Edge<'_>| neighbors::Edge {
                rank: edge.rank,
                message: edge.message,
                block: self.plan.block(&edge.memory),
                bytes: edge.memory.packed_len(),
            };
            // Where neighbours agree on the length, edges without data need no message.
            edges.iter().map(edge).filter(|edge| with_empty || edge.bytes != 0).collect()
        };
        let (sends, receives) = (edges(send), edges(receive));
        neighbors::exchange(&mut self.plan, self.me, &sends, &receives);
        Ok(())
    }

    fn allreduce(&mut self, call: &CallOperands) -> Result<(), Error> {
        let bytes = self.check(call)?;
        if bytes == 0 {
            return Ok(());
        }
        let algorithm = self.choose(Operation::Allreduce, bytes);
        if algorithm == Algorithm::OneShot {
            self.allreduce_in_one_shot(call);
            return Ok(());
        }
        let mut staged = self.stage(call, algorithm, Output::Here(call.count));
        let (me, count) = (self.me, call.count);
        let ready = std::mem::take(&mut staged.ready);
        let ends = if me.size == 1 {
            staged.copy_through(&mut self.plan, count, &ready)
        } else {
            let setting = self.setting(call.element.size());
            choice::allreduce(&mut self.plan, algorithm, setting, (&staged.operands, count), &ready)
        };
        let plan = &mut self.plan;
        staged.finish(plan, count, &ends);
        Ok(())
    }

    fn reduce(&mut self, call: &CallOperands, root: u32) -> Result<(), Error> {
        self.check_root(root)?;
        let bytes = self.check(call)?;
        if bytes == 0 {
            return Ok(());
        }
        let algorithm = self.choose(Operation::Reduce, bytes);
        let output = if self.me.rank == root {
            Output::Here(call.count)
        } else {
            Output::Scratch(choice::scratch_of_reduce(algorithm, call.count, root, self.me))
        };
        let mut staged = self.stage(call, algorithm, output);
        let (me, count) = (self.me, call.count);
        let ready = std::mem::take(&mut staged.ready);
        let ends = if me.size == 1 {
            staged.copy_through(&mut self.plan, count, &ready)
        } else {
            let setting = self.setting(call.element.size());
            choice::reduce(&mut self.plan, algorithm, setting, (&staged.operands, count, root), &ready)
        };
        let plan = &mut self.plan;
        if me.rank == root {
            staged.finish(plan, count, &ends);
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, call: &CallOperands, counts: &[u64]) -> Result<(), Error> {
        self.check_counts(counts, call.count)?;
        let bytes = self.check(call)?;
        if bytes == 0 {
            return Ok(());
        }
        let algorithm = self.choose(Operation::ReduceScatter, bytes);
        if algorithm == Algorithm::OneShot {
            self.reduce_scatter_in_one_shot(call, counts);
            return Ok(());
        }
        let mine = counts[self.me.rank as usize];
        // In place, the output would overwrite input of rank 0 that is not sent yet.
        let mut staged = self.stage(call, algorithm, Output::Apart(mine));
        let setting = self.setting(call.element.size());
        let (plan, operands) = (&mut self.plan, &staged.operands);
        let ready = std::mem::take(&mut staged.ready);
        let ends = if self.me.size == 1 {
            staged.copy_through(plan, mine, &ready)
        } else {
            let shares = Shares::of(counts.iter().copied());
            choice::reduce_scatter(plan, algorithm, setting, (operands, shares), &ready)
        };
        staged.finish(plan, mine, &ends);
        Ok(())
    }

    fn scan(&mut self, call: &CallOperands, exclusive: bool) -> Result<(), Error> {
        if self.check(call)? == 0 {
            return Ok(());
        }
        let has_output = !exclusive || self.me.rank > 0;
        let output = if has_output { Output::Here(call.count) } else { Output::Scratch(call.count) };
        let mut staged = self.stage(call, Algorithm::Doubling, output);
        let (me, count) = (self.me, call.count);
        let (plan, operands) = (&mut self.plan, &staged.operands);
        let ready = std::mem::take(&mut staged.ready);
        let ends = if exclusive {
            scan::exclusive(plan, me, (operands, count), &ready)
        } else {
            scan::inclusive(plan, me, (operands, count), &ready)
        };
        if has_output {
            staged.finish(plan, count, &ends);
        }
        Ok(())
    }

    fn reduce_local(&mut self, call: &CallOperands) -> Result<(), Error> {
        if self.check(call)? == 0 {
            return Ok(());
        }
        let mut staged = self.stage(call, Algorithm::Direct, Output::Here(call.count));
        let (plan, operands) = (&mut self.plan, &staged.operands);
        let mut ready = std::mem::take(&mut staged.ready);
        let (input, output) = (operands.input(0), operands.output(0));
        if let Some(result) = staged.result {
            // The output is an operand, too.
            ready.push(plan.copy(operands.block(result, call.count), operands.block(output, call.count), &[]));
        }
        let reduced = plan.reduce(output, [input, output], call.count, &ready);
        staged.finish(plan, call.count, &[reduced]);
        Ok(())
    }

    fn by_function(&mut self, call: &FunctionOperands<'_>, reduced: &Reduced) -> Result<(), Error> {
        match reduced {
            Reduced::AtRoot(root) => self.check_root(*root)?,
            Reduced::Scattered(counts) => self.check_counts(counts, call.count)?,
            _ => {}
        }
        by_function(&mut self.plan, (self.me, self.basis.rules.segment), call, reduced)
    }

    fn choose(&self, operation: Operation, bytes: u64) -> Algorithm {
        if self.me.size == 1 {
            // It has nobody to exchange data with.
            return Algorithm::Tree;
        }
        let Basis { choice, rules, report, slots, .. } = self.basis;
        let may_be_one_shot = slots.is_some() && bytes <= MOST_DATA;
        let report = |line: &str| report.iter().for_each(|report| report(line));
        choice.choose(rules, Asked { operation, bytes, may_be_one_shot }, report)
    }

    /// Returns the setting of an algorithm whose elements have this size in bytes.
    fn setting(&self, size: usize) -> Setting<'a> {
        let Basis { choice, rules, .. } = self.basis;
        Setting { me: self.me, nodes: &choice.setup().nodes, segment: rules.segment / size as u64 }
    }

    /// Decides where the reduction works, and adds the steps that bring the operands there.
    fn stage(&mut self, call: &CallOperands, algorithm: Algorithm, output: Output) -> Staged {
        self.plan.combine = Some(Combine { operation: call.operation, element: call.element });
        let size = call.element.size() as u64;
        let (bytes, room) = (call.count * size, output.room() * size);
        let input = Span { address: call.input.map_or(call.output as usize, |input| input as usize), bytes };
        let has_output = !matches!(output, Output::Scratch(_));
        let user_output = has_output.then_some(Span { address: call.output as usize, bytes: room });
        let on_device = matches!(algorithm, Algorithm::PeerAccess | Algorithm::OneShot);
        let least = if on_device { 0 } else { self.placing.device_limit };
        self.working = self.placing.reduction(call, input, user_output, least);
        if algorithm == Algorithm::OneShot {
            self.keep_in_reach();
        }
        let usable = |span| self.placing.is_usable(&self.working, span, call.element);
        let plan = &mut self.plan;
        let apart = matches!(output, Output::Apart(_));
        let output_here = user_output.filter(|&span| usable(span) && !(apart && span.address == input.address));
        let input_here = if usable(input) { Some(Place::User(input.address)) } else { None };
        let output_place = output_here.map_or_else(|| plan.scratch(room), |span| Place::User(span.address));
        let input_place = input_here.unwrap_or_else(|| plan.scratch(bytes));
        let operands = reduction::operands(plan, call.element, input_place, output_place);
        let ready = if input_here.is_none() {
            let from = operands.block(Place::User(input.address), call.count);
            vec![plan.copy(from, operands.block(input_place, call.count), &[])]
        } else {
            Steps::new()
        };
        let result = user_output.filter(|_| output_here.is_none()).map(|span| Place::User(span.address));
        Staged { operands, ready, result }
    }
}
