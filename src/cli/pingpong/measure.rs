//! The loops that send, time and verify messages.

use std::time::{Duration, Instant};

use cableway::{Communicator, Rank, RawBuffer, Request, Scope, World};

use super::active::Active;
use super::kind::{Devices, MemoryKind};
use super::landing::Landing;
use super::memory::Memory;
use super::plan::{Plan, Test};
use super::remote::Remote;
use super::shape::Shape;
use super::side::Side;
use super::stream::{Figures, StreamSetup, StreamWay};
use super::windows::Endpoint;
use crate::cli::Failure;

const DATA: i32 = 1;
const DONE: i32 = 2;
const COUNT: i32 = 3;

/// One rank's side of the measurement.
pub(crate) struct Bench<'a> {
    // Ends before the memory.
    way: Way<'a>,
    side: Side<'a>,
    /// Whether a size was measured before: processors and devices then run at full speed.
    warm: bool,
}

/// How messages reach the other rank.
enum Way<'a> {
    Messages,
    Put(Remote<'a>),
    Get(Remote<'a>),
    Active(Active<'a>),
    Puts(Vec<Endpoint<'a>>),
    Gets(Vec<Endpoint<'a>>),
    Posts(Vec<Landing<'a>>),
    Register(&'a World),
    Stream(Box<StreamWay>),
}

impl<'a> Bench<'a> {
    /// Makes the bench of messages in the order of a stream, with buffers as [`new`](Self::new).
    pub(crate) fn on_stream(world: &'a World, plan: &'a Plan, setup: StreamSetup<'_>) -> Result<Self, Failure> {
        let mut bench = Bench::new(&[world], plan, setup.kinds, setup.devices, setup.shapes.clone())?;
        bench.way = Way::Stream(Box::new(StreamWay::new(world, setup, &bench.side.out)?));
        Ok(bench)
    }

    /// Returns what the last measurement on a stream found besides the latency.
    pub(crate) fn figures(&self) -> Option<&Figures> {
        match &self.way {
            Way::Stream(stream) => Some(stream.figures()),
            _ => None,
        }
    }

    /// Makes the bench of messages on the first of the `worlds`, with buffers of `kinds` and `shapes`, by rank. Where the
    /// plan has several threads, each has a world of its own, or all have the only one.
    pub(crate) fn new(
        worlds: &[&'a World],
        plan: &'a Plan,
        kinds: [MemoryKind; 2],
        devices: &Devices,
        shapes: [Shape; 2],
    ) -> Result<Self, Failure> {
        let (world, bytes) = (worlds[0], plan.buffer_bytes());
        let mine = world.rank() as usize;
        let (shape, peers) = (&shapes[mine], || shapes[1 - mine].clone());
        let memory_of = |world, bytes| Memory::new(world, kinds[mine], devices.index[mine], shape.clone(), bytes);
        let memory = |bytes| memory_of(world, bytes);
        // The world of each thread.
        let each = worlds.iter().copied().cycle().take(plan.threads as usize);
        let endpoints = |make: fn(&'a World, Memory, Memory) -> Result<Endpoint<'a>, Failure>| {
            let made = each.clone().map(|world| make(world, memory_of(world, bytes)?, memory_of(world, bytes)?));
            made.collect::<Result<Vec<_>, _>>()
        };
        let landings = || {
            let made = (0..).zip(each.clone());
            let made = made.map(|(thread, world)| Landing::new(world, memory_of(world, bytes)?, thread));
            made.collect::<Result<Vec<_>, _>>()
        };
        // Active messages land in memory that their handler owns, and each endpoint of puts and gets has its own.
        let (sends, receives) = match plan.test {
            Test::PutRate | Test::GetRate => (0, 0),
            Test::Am | Test::AmRate | Test::Register => (bytes, 0),
            _ => (bytes, bytes),
        };
        let (out, inbox) = (memory(sends)?, memory(receives)?);
        let way = match plan.test {
            // SAFETY: the memory is dropped after this. This rank accesses it only when it was told that the peer's access
            // has ended, and until it lets the peer begin the next one.
            Test::Put => Way::Put(unsafe { Remote::new(world, &inbox, peers())? }),
            // SAFETY: as above.
            Test::Get => Way::Get(unsafe { Remote::new(world, &out, peers())? }),
            Test::Am => Way::Active(Active::new(world, memory(bytes)?)?),
            Test::PutRate => Way::Puts(endpoints(Endpoint::of_puts)?),
            Test::GetRate => Way::Gets(endpoints(Endpoint::of_gets)?),
            Test::AmRate => Way::Posts(landings()?),
            Test::Register => Way::Register(world),
            Test::Latency | Test::Bandwidth | Test::Bidirectional | Test::MessageRate => Way::Messages,
        };
        let side = Side::new(world.communicator(), plan, out, inbox);
        Ok(Bench { way, side, warm: false })
    }

    /// Measures messages of one size and returns the value in the unit of the test.
    pub(crate) fn run(&mut self, size: u64) -> Result<f64, Failure> {
        if matches!(self.way, Way::Put(_)) {
            self.side.poison_gaps(size)?;
        }
        self.side.on.barrier()?;
        let (warm_up, iterations) = match self.side.plan.seconds {
            Some(seconds) => self.calibrate(size, seconds)?,
            None => (self.side.plan.warm_up(size), self.side.plan.iterations(size)),
        };
        self.timed(size, warm_up)?;
        let (took, iterations) = self.timed_long_enough(size, iterations)?;
        self.side.on.barrier()?;
        self.warm = true;
        Ok(value(self.side.plan, self.side.on.size(), size, took / iterations))
    }

    /// Returns the time of the iterations, and how many they were: more than asked for if they took clearly less than the
    /// wanted time, because the machine was busy when it was predicted.
    fn timed_long_enough(&mut self, size: u64, mut iterations: u32) -> Result<(Duration, u32), Failure> {
        const ENOUGH: f64 = 0.9;
        loop {
            let took = self.timed(size, iterations)?;
            let wanted = self.side.plan.seconds.unwrap_or(0.0);
            let short = took.as_secs_f64() < ENOUGH * wanted;
            let needed = f64::from(iterations) * wanted / took.as_secs_f64().max(1e-9);
            let more = if short { (needed as u32).max(iterations.saturating_add(1)) } else { 0 };
            // Both ranks run as many iterations as rank 0's clock decides.
            match self.broadcast(more)? {
                0 => return Ok((took, iterations)),
                more => iterations = more,
            }
        }
    }

    /// Returns the number of iterations before the clock starts, and the number that take `seconds`.
    fn calibrate(&mut self, size: u64, seconds: f64) -> Result<(u32, u32), Failure> {
        let mut tried = 2;
        let fitting = loop {
            let took = self.timed(size, tried)?.as_secs_f64();
            let probed = took >= seconds / 8.0;
            // Both ranks run as many iterations as rank 0's clock decides.
            match self.broadcast(if probed { 0 } else { tried.saturating_mul(2) })? {
                0 => break self.broadcast((f64::from(tried) * seconds / took) as u32)?.max(2),
                more => tried = more,
            }
        };
        Ok((if self.warm { (fitting / 10).max(1) } else { fitting }, fitting))
    }

    /// Returns the number that rank 0 passes.
    fn broadcast(&self, mut number: u32) -> Result<u32, Failure> {
        match (self.side.on.size(), self.side.on.rank()) {
            (1, _) => {}
            (_, 0) => self.side.on.send(&number.to_le_bytes(), 1, COUNT)?,
            _ => {
                let mut said = [0_u8; 4];
                self.side.on.recv(&mut said, 0, COUNT)?;
                number = u32::from_le_bytes(said);
            }
        }
        Ok(number)
    }

    fn timed(&mut self, size: u64, count: u32) -> Result<Duration, Failure> {
        let start = Instant::now();
        let side = &mut self.side;
        match &mut self.way {
            Way::Put(remote) => side.put(remote, size, count)?,
            Way::Get(remote) => side.get(remote, size, count)?,
            Way::Active(active) => side.post(active, size, count)?,
            Way::Puts(endpoints) => side.puts(endpoints, size, count)?,
            Way::Gets(endpoints) => side.gets(endpoints, size, count)?,
            Way::Posts(landings) => side.posts(landings, size, count)?,
            Way::Register(world) => side.register(world, size, count)?,
            Way::Stream(stream) => return stream.timed(side, size, count),
            Way::Messages if side.plan.check => side.checked(size, count)?,
            Way::Messages => side.unchecked(size, count)?,
        }
        Ok(start.elapsed())
    }
}

impl<'a> Side<'a> {
    /// Uses the same buffers in every iteration, as a program would.
    fn unchecked(&mut self, size: u64, count: u32) -> Result<(), Failure> {
        let (window, exchange) = (self.plan.window(size), self.exchange());
        let messages = self.out.messages(window, size, true);
        let mut buffers = self.inbox.buffers(window, size, true);
        for _ in 0..count {
            exchange.run(&messages, &mut buffers)?;
        }
        Ok(())
    }

    fn checked(&mut self, size: u64, count: u32) -> Result<(), Failure> {
        let (window, exchange) = (self.plan.window(size), self.exchange());
        for _ in 0..count {
            if exchange.sends() {
                self.fill(size, window)?;
            }
            if exchange.receives() {
                self.poison(size, window)?;
            }
            let messages = self.out.messages(window, size, false);
            let mut buffers = self.inbox.buffers(window, size, false);
            exchange.run(&messages, &mut buffers)?;
            drop(buffers);
            if exchange.receives() {
                self.verify(exchange.peer, size, window)?;
            }
        }
        Ok(())
    }

    fn exchange(&self) -> Exchange<'a> {
        let (first, peer) = (self.on.rank() == 0, (self.on.rank() + 1) % self.on.size());
        let pattern = match self.plan.test {
            _ if self.on.size() == 1 => Pattern::Both,
            Test::Bidirectional => Pattern::Both,
            Test::Bandwidth | Test::MessageRate if first => Pattern::Source,
            Test::Bandwidth | Test::MessageRate => Pattern::Sink,
            _ if first => Pattern::Ping,
            _ => Pattern::Pong,
        };
        Exchange { on: self.on, peer, pattern }
    }
}

/// The steps of one rank in one iteration.
#[derive(Clone, Copy)]
enum Pattern {
    /// Sends, then receives the reply.
    Ping,
    /// Receives, then replies.
    Pong,
    /// Sends a window, then waits for its acknowledgment.
    Source,
    /// Receives a window, then acknowledges it.
    Sink,
    /// Sends a window and receives one, at the same time.
    Both,
}

struct Exchange<'a> {
    on: &'a Communicator,
    peer: Rank,
    pattern: Pattern,
}

impl Exchange<'_> {
    fn sends(&self) -> bool {
        !matches!(self.pattern, Pattern::Sink)
    }

    fn receives(&self) -> bool {
        !matches!(self.pattern, Pattern::Source)
    }

    /// Runs one iteration.
    fn run(&self, messages: &[RawBuffer<'_>], buffers: &mut [RawBuffer<'_>]) -> Result<(), Failure> {
        let &Exchange { on, peer, pattern } = self;
        match pattern {
            Pattern::Ping => {
                on.send(&messages[0], peer, DATA)?;
                on.recv(&mut buffers[0], peer, DATA)?;
            }
            Pattern::Pong => {
                on.recv(&mut buffers[0], peer, DATA)?;
                on.send(&messages[0], peer, DATA)?;
            }
            Pattern::Source => {
                on.scope(|scope| wait_all(start_sends(scope, messages, peer)?))?;
                on.recv(&mut [0_u8; 4], peer, DONE)?;
            }
            Pattern::Sink => {
                on.scope(|scope| wait_all(start_receives(scope, buffers, peer)?))?;
                on.send(&[0_u8; 4], peer, DONE)?;
            }
            Pattern::Both => on.scope(|scope| {
                let receives = start_receives(scope, buffers, peer)?;
                wait_all(start_sends(scope, messages, peer)?)?;
                wait_all(receives)
            })?,
        }
        Ok(())
    }
}

type Requests<'scope, 'env> = Vec<Request<'scope, 'env>>;

fn start_sends<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    messages: &'scope [RawBuffer<'_>],
    to: Rank,
) -> Result<Requests<'scope, 'env>, Failure> {
    let mut requests = Vec::with_capacity(messages.len());
    for message in messages {
        requests.push(scope.isend(message, to, DATA)?);
    }
    Ok(requests)
}

fn start_receives<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    buffers: &'scope mut [RawBuffer<'_>],
    from: Rank,
) -> Result<Requests<'scope, 'env>, Failure> {
    let mut requests = Vec::with_capacity(buffers.len());
    for room in buffers {
        requests.push(scope.irecv(room, from, DATA)?);
    }
    Ok(requests)
}

fn wait_all(requests: Requests<'_, '_>) -> Result<(), Failure> {
    for request in requests {
        request.wait()?;
    }
    Ok(())
}

/// Converts the time of one iteration to the unit of the test.
fn value(plan: &Plan, ranks: u32, size: u64, iteration: Duration) -> f64 {
    let seconds = iteration.as_secs_f64();
    let messages = f64::from(plan.window(size));
    match plan.test {
        // A rank that sends to itself sends one way only.
        Test::Latency | Test::Put | Test::Am => seconds * 1e6 / f64::from(ranks),
        Test::Get | Test::Register => seconds * 1e6,
        Test::Bandwidth => messages * size as f64 / seconds / 1e6,
        Test::Bidirectional => messages * size as f64 * f64::from(ranks) / seconds / 1e6,
        Test::MessageRate => messages / seconds,
        Test::PutRate | Test::GetRate | Test::AmRate => messages * f64::from(plan.threads) / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_the_units_of_osu() {
        let plan = |test| Plan {
            test,
            sizes: vec![],
            iterations: None,
            seconds: None,
            window: 64,
            threads: 4,
            check: false,
            stream: None,
        };
        let ms = Duration::from_millis(1);
        assert_eq!(value(&plan(Test::Latency), 2, 8, ms), 500.0);
        assert_eq!(value(&plan(Test::Latency), 1, 8, ms), 1000.0);
        assert_eq!(value(&plan(Test::Bandwidth), 2, 1000, ms), 64.0);
        assert_eq!(value(&plan(Test::Bidirectional), 2, 1000, ms), 128.0);
        assert_eq!(value(&plan(Test::MessageRate), 2, 8, ms), 64_000.0);
        assert_eq!(value(&plan(Test::PutRate), 2, 8, ms), 256_000.0);
        assert_eq!(value(&plan(Test::Register), 2, 8, ms), 1000.0);
    }
}
