//! Random programs. Every rank derives the same list of messages from a seed, adds its own side of each to one of its
//! streams, and compares what arrived with the list.
//!
//! A program has no deadlock: each side of a message comes after earlier messages only, on both ranks.

use cableway::{Communicator, RawBuffer, StreamRequest, StreamScope};

use super::{Outcome, Program, Random, expect, expect_bytes, pattern, raw};
use crate::device_programs::app::{BLOCKING_STREAM, Handle, NON_BLOCKING_STREAM};

const MESSAGES: usize = 90;
const STREAMS: usize = 3;
const LENGTHS: [usize; 6] = [0, 8, 300, 5000, 20_000, 90_000];
/// The bytes of a receive's buffer behind the message.
const SPARE: usize = 77;

/// One message of a program.
#[derive(Debug)]
struct Planned {
    ends: [End; 2],
    communicator: usize,
    tag: i32,
    len: usize,
}

/// The sender's or the receiver's side of a message.
#[derive(Debug)]
struct End {
    rank: u32,
    stream: usize,
    on_device: bool,
    /// The stream waits at once, or later.
    blocks: bool,
}

fn plan(random: &mut Random, ranks: u64) -> Planned {
    let mut end = || End {
        rank: random.below(ranks) as u32,
        stream: random.below(STREAMS as u64) as usize,
        on_device: random.below(3) != 0,
        blocks: random.below(2) == 0,
    };
    let (mut sender, mut receiver) = (end(), end());
    if sender.rank == receiver.rank {
        // A rank that sends to itself must not wait for the message before it has received it.
        (sender.blocks, receiver.blocks) = (false, false);
    }
    // The order of two streams is not defined, so only messages between the same streams share a tag.
    let tag = (sender.stream * STREAMS + receiver.stream) as i32;
    let len = LENGTHS[random.below(LENGTHS.len() as u64) as usize];
    Planned { ends: [sender, receiver], communicator: random.below(2) as usize, tag, len }
}

/// The memory of one end of a message, and what should be in it at last.
struct Memory {
    buffer: Option<RawBuffer<'static>>,
    /// Device memory, if it is that.
    device: Option<u64>,
    host: Vec<u8>,
    received: bool,
}

impl Memory {
    fn new(program: &Program, planned: &Planned, side: usize, content: &[u8]) -> Memory {
        let received = side == 1;
        let mut host = if received { vec![0xCC; planned.len + SPARE] } else { content.to_vec() };
        if !planned.ends[side].on_device {
            let buffer = raw(host.as_mut_ptr() as u64, host.len());
            return Memory { buffer: Some(buffer), device: None, host, received };
        }
        let address = program.app.malloc(host.len().max(1));
        program.app.upload(address, &host);
        Memory { buffer: Some(raw(address, host.len())), device: Some(address), host, received }
    }

    fn content(&self, program: &Program) -> Vec<u8> {
        self.device.map_or_else(|| self.host.clone(), |address| program.app.download(address, self.host.len()))
    }
}

pub(super) fn random() -> Outcome {
    let program = Program::start()?;
    let everyone = program.world.communicator();
    let seed: u64 = std::env::var("STREAMS_SEED")?.parse()?;
    let communicators = [everyone.clone(), everyone.dup()?];
    let kinds = [NON_BLOCKING_STREAM, BLOCKING_STREAM, NON_BLOCKING_STREAM];
    let handles: Vec<Handle> = kinds.into_iter().map(|kind| program.app.stream(kind)).collect();
    for round in 0..4 {
        let mut random = Random::new(seed * 1000 + round);
        let planned: Vec<Planned> = (0..MESSAGES).map(|_| plan(&mut random, u64::from(everyone.size()))).collect();
        one_program(&program, &communicators, &handles, &planned, seed + round)?;
    }
    Ok(())
}

fn one_program(
    program: &Program,
    communicators: &[Communicator],
    handles: &[Handle],
    planned: &[Planned],
    seed: u64,
) -> Outcome {
    let mut skew = Random::new(seed * 31 + u64::from(program.me));
    let [first, second, third] = handles else { return Err("three streams".into()) };
    let streams = [program.describe(*first)?, program.describe(*second)?, program.describe(*third)?];
    let mut memory: Vec<[Option<Memory>; 2]> = Vec::new();
    for (at, message) in planned.iter().enumerate() {
        let content = pattern(message.len, at as u32 + seed as u32);
        let side = |side: usize| {
            (message.ends[side].rank == program.me).then(|| Memory::new(program, message, side, &content))
        };
        memory.push([side(0), side(1)]);
    }
    let mut buffers: Vec<[Option<RawBuffer<'static>>; 2]> = memory
        .iter_mut()
        .map(|sides| sides.each_mut().map(|side| side.as_mut().and_then(|memory| memory.buffer.take())))
        .collect();
    communicators[0].barrier()?;
    let ends = buffers.iter_mut().map(|sides| sides.each_mut().map(Option::as_mut)).collect::<Vec<_>>();
    let [left, middle, right] = &streams;
    left.scope(move |a| {
        middle.scope(move |b| {
            right.scope(move |c| -> Outcome {
                let (mut in_a, mut in_b, mut in_c) = (Vec::new(), Vec::new(), Vec::new());
                for (message, [from, to]) in planned.iter().zip(ends) {
                    wait(a, &mut in_a)?;
                    wait(b, &mut in_b)?;
                    wait(c, &mut in_c)?;
                    // The receive first: a rank may send to itself.
                    for (side, buffer) in [(1, to), (0, from)] {
                        let Some(buffer) = buffer else { continue };
                        skew.skew();
                        let on = &communicators[message.communicator];
                        match message.ends[side].stream {
                            0 => add(a, &mut in_a, on, buffer, message, side)?,
                            1 => add(b, &mut in_b, on, buffer, message, side)?,
                            _ => add(c, &mut in_c, on, buffer, message, side)?,
                        }
                    }
                }
                Ok(())
            })
        })
    })?;
    for stream in &streams {
        stream.check()?;
    }
    for (at, sides) in memory.iter().enumerate() {
        let expected = pattern(planned[at].len, at as u32 + seed as u32);
        for side in sides.iter().flatten() {
            let what = format!("message {at} of seed {seed}, {:?}, received: {}", planned[at], side.received);
            let spare = if side.received { SPARE } else { 0 };
            let expected = [&expected[..], &vec![0xCC; spare]].concat();
            expect_bytes(&what, &side.content(program), &expected)?;
            if let Some(address) = side.device {
                program.app.cuMemFree(address).map_err(super::answered)?;
            }
        }
    }
    expect(planned.len(), memory.len())
}

/// Adds a side of a message to a stream.
fn add<'s>(
    scope: &'s StreamScope<'s, '_>,
    open: &mut Vec<StreamRequest<'s>>,
    on: &Communicator,
    buffer: &'s mut RawBuffer<'static>,
    message: &Planned,
    side: usize,
) -> Outcome {
    let (lent, tag) = (scope.lend(buffer)?, message.tag);
    let [sender, receiver] = &message.ends;
    match (side, message.ends[side].blocks) {
        (0, true) => scope.send(on, &lent, receiver.rank, tag)?,
        (0, false) => open.push(scope.isend(on, &lent, receiver.rank, tag)?),
        (_, true) => scope.recv(on, &lent, sender.rank, tag)?,
        (_, false) => open.push(scope.irecv(on, &lent, sender.rank, tag)?),
    }
    Ok(())
}

/// From time to time a stream waits for all that it has begun. Both sides of these messages have been added.
fn wait<'s>(scope: &'s StreamScope<'s, '_>, open: &mut Vec<StreamRequest<'s>>) -> Outcome {
    if open.len() > 5 {
        scope.wait(open)?;
        open.clear();
    }
    Ok(())
}
