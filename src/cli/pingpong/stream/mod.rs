//! Messages in the order of a stream. The host adds many steps, and waits for the stream once.

#[cfg_attr(not(any(feature = "cuda", feature = "rocm")), path = "no_driver.rs")]
mod driver;
mod figures;
mod late;
mod plan;
mod slots;
mod steps;
mod target;

use std::path::Path;
use std::time::{Duration, Instant};

use cableway::{Communicator, PreparedMessage, PreparedPath, StreamRef, World};

use super::kind::{Devices, MemoryKind};
use super::memory::Memory;
use super::shape::Shape;
use super::side::Side;
use crate::cli::Failure;
use driver::{Graph, ProgramStream};
pub(crate) use figures::Figures;
pub(crate) use plan::{StreamMode, StreamPlan, parse_kernel};
use steps::{DATA, Messages, Steps};
use target::{Target, Word};

/// The number of calls that are timed that add writes of words, and the number of writes of each.
const BATCHES: u32 = 32;
const BATCH: u64 = 16;

/// The number of messages that make the engine map memory.
const MESSAGES_BEFORE: u32 = 32;

/// This rank's stream, and the memory that its messages use.
pub(crate) struct StreamWay {
    /// Ends before the program's stream.
    stream: StreamRef,
    program: ProgramStream,
    /// The stream alone makes puts.
    puts_alone: bool,
    /// Present if messages are puts. Ends before the memory.
    target: Option<Target>,
    word: Word,
    out: Memory,
    inbox: Memory,
    plan: StreamPlan,
    /// The host copies this rank's checked messages.
    by_host: bool,
    figures: Figures,
}

/// What the ways of all ranks are made of.
pub(crate) struct StreamSetup<'a> {
    pub(crate) plan: StreamPlan,
    pub(crate) kinds: [MemoryKind; 2],
    pub(crate) devices: &'a Devices,
    /// By rank, as the kinds.
    pub(crate) shapes: [Shape; 2],
    /// The largest message.
    pub(crate) bytes: u64,
    /// Folders of the command line that may hold drivers.
    pub(crate) folders: &'a [&'a Path],
}

impl StreamWay {
    /// Makes the way of a rank. `late` is the memory of messages that are sent before they are received.
    pub(crate) fn new(world: &World, setup: StreamSetup<'_>, late: &Memory) -> Result<Self, Failure> {
        let (mine, plan) = (world.rank() as usize, setup.plan);
        let device = setup.devices.index[mine].ok_or_else(|| Failure::failed(1, "the stream has no device"))?;
        let mut program = ProgramStream::new(world, device, setup.folders)?;
        if let Some(kernel) = plan.kernel {
            program.load_kernel(kernel.as_nanos() as u64)?;
        }
        let memory = || Memory::new(world, setup.kinds[mine], Some(device), setup.shapes[mine].clone(), setup.bytes);
        let (out, mut inbox) = (memory()?, memory()?);
        for from in [&out, late] {
            send_before(world.communicator(), from, &mut inbox, setup.bytes)?;
        }
        let target = match plan.mode {
            // SAFETY: the memory is dropped after the value. A rank accesses it when a put has come, and until the peer may
            // know that.
            StreamMode::Put => Some(unsafe { Target::new(world, device, &inbox)? }),
            _ => None,
        };
        let word = Word::new(world, device)?;
        let (vendor, handle) = program.handle();
        // SAFETY: the stream is destroyed after the value. Scopes end before, and wait for the stream.
        let stream = unsafe { world.stream(vendor, handle) }?;
        let (by_host, figures) = (setup.kinds[mine].in_host_memory(), Figures::default());
        let puts_alone = match &target {
            Some(target) => {
                let device = matches!(setup.kinds[mine], MemoryKind::Device);
                target.map(world.communicator(), &stream)? && device
            }
            None => false,
        };
        Ok(StreamWay { stream, program, puts_alone, target, word, out, inbox, plan, by_host, figures })
    }

    /// Returns what the last measurement found besides the latency.
    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Returns the time of `count` steps.
    pub(super) fn timed(&mut self, side: &mut Side<'_>, size: u64, count: u32) -> Result<Duration, Failure> {
        let steps = count.min(side.plan.steps_together(size)).max(1);
        let rounds = count.div_ceil(steps);
        let by_thread = self.plan.mode == StreamMode::Put && !self.puts_alone;
        self.figures = Figures { by_thread, ..Figures::default() };
        let took = match self.plan.mode {
            StreamMode::Host => self.by_host(side.on, size, steps * rounds)?,
            StreamMode::Late => {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    took += self.late(side, size, steps)?;
                }
                took
            }
            _ => self.there_and_back(side, size, Rounds { rounds, steps })?,
        };
        self.stream.check()?;
        Ok(took.mul_f64(f64::from(count) / (f64::from(steps) * f64::from(rounds))))
    }

    /// Sends and receives by calls of the host. The stream has passed the kernel before each.
    fn by_host(&mut self, on: &Communicator, size: u64, count: u32) -> Result<Duration, Failure> {
        let (first, peer) = (on.rank() == 0, 1 - on.rank());
        let message = self.out.message(0, size);
        let room = &mut self.inbox.buffers(1, size, false)[0];
        on.barrier()?;
        let start = Instant::now();
        for _ in 0..count {
            if first {
                self.program.wait()?;
                on.send(&message, peer, DATA)?;
            }
            on.recv(room, peer, DATA)?;
            self.program.spin()?;
            if !first {
                self.program.wait()?;
                on.send(&message, peer, DATA)?;
            }
        }
        self.program.wait()?;
        Ok(start.elapsed())
    }

    fn there_and_back(&mut self, side: &mut Side<'_>, size: u64, rounds: Rounds) -> Result<Duration, Failure> {
        let StreamWay { stream, program, target, word, out, inbox, plan, by_host, figures, puts_alone: _ } = self;
        let (on, peer) = (side.on, 1 - side.on.rank());
        if side.plan.check {
            // Gaps between blocks are checked, too.
            inbox.poison(1, size)?;
            program.settle()?;
        }
        let slots = side.plan.check.then(|| side.slots(size, *by_host));
        let message = out.message(0, size);
        let room = &mut inbox.buffers(1, size, false)[0];
        stream.scope(|scope| {
            let (out, inbox) = (scope.lend_shared(&message)?, scope.lend(room)?);
            let prepared = match plan.mode {
                StreamMode::Prepared | StreamMode::Graph => {
                    let pair = [scope.prepare_send(on, &out, peer, DATA)?, scope.prepare_recv(on, &inbox, peer, DATA)?];
                    figures.by_thread = agree(&pair)?;
                    Some(pair)
                }
                _ => None,
            };
            let messages = Messages {
                scope,
                on,
                peer,
                out: &out,
                inbox: &inbox,
                prepared: prepared.as_ref(),
                target: target.as_ref(),
            };
            let steps = Steps { messages, program, slots };
            let graph = match plan.mode {
                StreamMode::Graph => {
                    let mut captured = Figures::default();
                    Some(program.capture(|| (0..rounds.steps).try_for_each(|slot| steps.step(slot, &mut captured)))?)
                }
                _ => None,
            };
            let mut took = Duration::ZERO;
            for _ in 0..rounds.rounds {
                if side.plan.check {
                    side.fill(size, rounds.steps)?;
                    side.poison(size, rounds.steps)?;
                    program.settle()?;
                }
                on.barrier()?;
                took += round(&steps, graph.as_ref(), rounds.steps, figures)?;
                if side.plan.check {
                    steps.end_round();
                    side.verify(peer, size, rounds.steps)?;
                }
            }
            if plan.mode == StreamMode::Prepared {
                for _ in 0..BATCHES {
                    figures.batch.time(0, || word.write(scope, BATCH))?;
                }
                program.wait()?;
            }
            Ok(took)
        })
    }
}

/// Sends messages there and back without a stream: while a stream is described, no memory is mapped, and messages between
/// allocations that are not mapped are staged.
fn send_before(on: &Communicator, from: &Memory, to: &mut Memory, bytes: u64) -> Result<(), Failure> {
    let peer = 1 - on.rank();
    let message = from.message(0, bytes);
    let room = &mut to.buffers(1, bytes, false)[0];
    for _ in 0..MESSAGES_BEFORE {
        on.sendrecv(&message, (peer, DATA), room, (peer, DATA))?;
    }
    Ok(())
}

/// How many rounds there are, and how many steps the host adds in each before it waits.
#[derive(Clone, Copy)]
struct Rounds {
    rounds: u32,
    steps: u32,
}

/// Adds a round to the stream, and waits for it.
fn round(
    steps: &Steps<'_, '_, '_>,
    graph: Option<&Graph<'_>>,
    count: u32,
    figures: &mut Figures,
) -> Result<Duration, Failure> {
    let start = Instant::now();
    match graph {
        Some(graph) => figures.launch.time(0, || graph.launch())?,
        None => (0..count).try_for_each(|slot| steps.step(slot, figures))?,
    }
    steps.program.wait()?;
    Ok(start.elapsed())
}

/// Agrees with the peer, before the streams have work, so that the driver maps memory. Returns whether a thread moves any
/// of the messages.
fn agree(prepared: &[PreparedMessage<'_>]) -> Result<bool, Failure> {
    let mut by_thread = false;
    for message in prepared {
        if let PreparedPath::Thread { reason } = message.agree()? {
            log::info!("a thread moves the messages: {reason}");
            by_thread = true;
        }
    }
    Ok(by_thread)
}
