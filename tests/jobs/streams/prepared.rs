//! Prepared operations.

use std::time::Instant;

use cableway::{EngineError, PreparedMessage, PreparedPath};

use super::ends::Fault;
use super::{Outcome, Program, Random, expect, expect_bytes, pattern, raw};
use crate::device_programs::app::{BLOCKING_STREAM, Handle, NON_BLOCKING_STREAM};
use crate::faults::{kill_myself, survived};
use crate::support::SOON;

const ROUNDS: usize = 40;
/// Pieces of work on the stream before its operations are prepared.
const WORKS: usize = 50;
const SIZES: [usize; 4] = [1, 64, 6000, 200_000];

/// Returns whether the streams alone can move device memory in this job.
fn alone() -> bool {
    std::env::var_os("STREAMS_BY_THREAD").is_none()
}

/// Checks what moves the data.
pub(super) fn expect_path(message: &PreparedMessage<'_>, alone: bool) -> Outcome {
    let path = message.agree()?;
    if (path == PreparedPath::Streams) == alone { Ok(()) } else { Err(format!("moved by {path:?}").into()) }
}

/// Device memory there and back, with work of the streams between.
pub(super) fn there_and_back() -> Outcome {
    let program = Program::start()?;
    let mut random = Random::new(u64::from(program.me) + 5);
    for kind in [NON_BLOCKING_STREAM, BLOCKING_STREAM] {
        let handle = program.app.stream(kind);
        for len in SIZES {
            device(&program, handle, len, &mut random)?;
        }
    }
    host(&program)?;
    Ok(program.world.communicator().barrier()?)
}

fn device(program: &Program, handle: Handle, len: usize, random: &mut Random) -> Outcome {
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let stream = program.describe(handle)?;
    let (out, back) = (program.app.malloc(len), program.app.malloc(len));
    let kept = program.app.malloc(len * ROUNDS);
    let (mut first, mut second) = (raw(out, len), raw(back, len));
    // Work that ends by itself delays the agreement only.
    (0..WORKS).try_for_each(|_| program.fill(handle, kept, 0xCC, len * ROUNDS))?;
    stream.scope(|scope| -> Outcome {
        let (out_lent, back_lent) = (scope.lend(&mut first)?, scope.lend(&mut second)?);
        let send = scope.prepare_send(on, &out_lent, peer, 3)?;
        let receive = scope.prepare_recv(on, &back_lent, peer, 3)?;
        // In the opposite order on the other side.
        let order = if me == 0 { [&send, &receive] } else { [&receive, &send] };
        for message in order {
            expect_path(message, alone())?;
        }
        for round in 0..ROUNDS {
            random.skew();
            if me == 0 {
                program.fill(handle, out, round as u8 + 1, len)?;
                scope.post(&[&send])?;
                // The message has left, so the stream may change the buffer.
                program.fill(handle, out, 0xEE, len)?;
                scope.post(&[&receive])?;
                program.copy(handle, kept + (round * len) as u64, back, len)?;
            } else {
                scope.post(&[&receive])?;
                program.copy(handle, out, back, len)?;
                program.fill(handle, back, 0xDD, len)?;
                scope.post(&[&send])?;
            }
        }
        Ok(())
    })?;
    stream.check()?;
    if me == 0 {
        let found = program.app.download(kept, len * ROUNDS);
        for (round, bytes) in found.chunks(len).enumerate() {
            expect_bytes(&format!("round {round} of {len} bytes"), bytes, &vec![round as u8 + 1; len])?;
        }
    }
    Ok(())
}

/// A thread moves host memory.
fn host(program: &Program) -> Outcome {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let stream = program.describe(program.app.stream(NON_BLOCKING_STREAM))?;
    let (mut out, mut back) = (pattern(5000, program.me), vec![0_u8; 5000]);
    stream.scope(|scope| -> Outcome {
        let (out, back) = (scope.lend_shared(&out)?, scope.lend(&mut back)?);
        // Both ends may wait for each other's receive, so both receive at once.
        let (send, receive) = (scope.prepare_send(on, &out, peer, 1)?, scope.prepare_recv(on, &back, peer, 1)?);
        expect_path(&send, false)?;
        expect_path(&receive, false)?;
        for _ in 0..3 {
            let order = if program.me == 0 { [&send, &receive] } else { [&receive, &send] };
            scope.post(&order)?;
        }
        let refused = scope.prepare_recv(on, &out, peer, 1).err().ok_or("a shared buffer is written")?;
        expect(refused.to_string().contains("StreamScope::lend"), true)
    })?;
    stream.check()?;
    expect_bytes("host memory", &back, &pattern(5000, peer))?;
    out.clear();
    Ok(())
}

/// Tags tell operations apart, in whatever order the sides prepare them. Lines and numbers are used again.
pub(super) fn many() -> Outcome {
    const TAGS: usize = 40;
    const ROUNDS: usize = 30;
    let program = Program::start()?;
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    let (out, back) = (program.app.malloc(TAGS * 100), program.app.malloc(TAGS * 100));
    let mut random = Random::new(u64::from(me) + 99);
    for round in 0..ROUNDS {
        let content = pattern(TAGS * 100, me * 1000 + round as u32);
        program.app.upload(out, &content);
        let mut outs: Vec<_> = (0..TAGS).map(|at| raw(out + at as u64 * 100, 100)).collect();
        let mut backs: Vec<_> = (0..TAGS).map(|at| raw(back + at as u64 * 100, 100)).collect();
        stream.scope(|scope| -> Outcome {
            let mut outs: Vec<_> = outs.iter_mut().enumerate().collect();
            let mut backs: Vec<_> = backs.iter_mut().enumerate().collect();
            random.shuffle(&mut outs);
            random.shuffle(&mut backs);
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for (at, buffer) in backs {
                receives.push((at, scope.prepare_recv(on, &scope.lend(buffer)?, peer, at as i32)?));
            }
            for (at, buffer) in outs {
                sends.push((at, scope.prepare_send(on, &scope.lend(buffer)?, peer, at as i32)?));
            }
            for (_, message) in sends.iter().chain(&receives) {
                expect_path(message, alone())?;
            }
            sends.sort_by_key(|(at, _)| *at);
            receives.sort_by_key(|(at, _)| *at);
            let pairs = sends.iter().zip(&receives);
            let all: Vec<&PreparedMessage<'_>> = pairs
                .flat_map(|((_, send), (_, receive))| if me == 0 { [send, receive] } else { [receive, send] })
                .collect();
            Ok(scope.post(&all)?)
        })?;
        stream.check()?;
        expect_bytes(
            "many",
            &program.app.download(back, TAGS * 100),
            &pattern(TAGS * 100, peer * 1000 + round as u32),
        )?;
    }
    Ok(on.barrier()?)
}

/// What is no error, and what is one.
pub(super) fn refusals() -> Outcome {
    let program = Program::start()?;
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    let (len, gate) = (3000, program.word()?);
    let memory = program.app.malloc(len);
    // A stream that waits forbids to map anything, so the thread moves the data.
    let mut buffer = raw(memory, len);
    program.app.upload(memory, &vec![me as u8 + 1; len]);
    stream.scope(|scope| -> Outcome {
        let lent = scope.lend(&mut buffer)?;
        let message = if me == 0 {
            // SAFETY: the word is never freed.
            unsafe { stream.wait_value(gate.word(), 1, cableway::WaitCondition::Equal)? };
            scope.prepare_send(on, &lent, peer, 1)?
        } else {
            scope.prepare_recv(on, &lent, peer, 1)?
        };
        expect_path(&message, false)?;
        scope.post(&[&message])?;
        gate.open(1);
        Ok(())
    })?;
    stream.check()?;
    expect_bytes("by the thread", &program.app.download(memory, len), &vec![1; len])?;
    // The receiver posts once more than the sender. Its stream is released, and the program is told.
    let mut buffer = raw(memory, len);
    let told = stream.scope(|scope| -> Result<Option<cableway::Error>, Box<dyn std::error::Error>> {
        let lent = scope.lend(&mut buffer)?;
        if me == 0 {
            let send = scope.prepare_send(on, &lent, peer, 2)?;
            expect_path(&send, alone())?;
            scope.post(&[&send, &send])?;
            return Ok(None);
        }
        let receive = scope.prepare_recv(on, &lent, peer, 2)?;
        expect_path(&receive, alone())?;
        if !alone() {
            scope.post(&[&receive, &receive])?;
            return Ok(None);
        }
        scope.post(&[&receive, &receive, &receive])?;
        Ok(Some(until_error(|| stream.check().err())))
    })?;
    if let Some(error) = told {
        let ended = matches!(error.engine_error(), Some(EngineError::PreparedEnded { peer: 0, .. }));
        expect(ended, true)?;
    }
    // Wrong arguments.
    let mut buffer = raw(memory, len);
    stream.scope(|scope| -> Outcome {
        let lent = scope.lend(&mut buffer)?;
        expect(scope.prepare_send(on, &lent, 2, 1).is_err(), true)?;
        expect(scope.prepare_send(on, &lent, peer, -1).is_err(), true)?;
        // To itself.
        let mut other = raw(program.app.malloc(len), len);
        let inner = program.describe(program.app.stream(NON_BLOCKING_STREAM))?;
        inner.scope(|own| -> Outcome {
            let lent_other = own.lend(&mut other)?;
            let (send, receive) = (scope.prepare_send(on, &lent, me, 1)?, own.prepare_recv(on, &lent_other, me, 1)?);
            expect_path(&receive, false)?;
            scope.post(&[&send])?;
            Ok(own.post(&[&receive])?)
        })
    })?;
    stream.check()?;
    Ok(on.barrier()?)
}

pub(super) fn until_error(mut look: impl FnMut() -> Option<cableway::Error>) -> cableway::Error {
    loop {
        match look() {
            Some(error) => return error,
            None => std::thread::yield_now(),
        }
    }
}

/// Rank 1 dies while a stream of rank 0 waits for it to receive, and another one for it to send.
pub(super) fn dies() -> Outcome {
    const POSTS: usize = 50;
    let program = Program::start()?;
    let on = program.world.communicator();
    let (len, peer) = (5000, 1 - program.me.min(1));
    let handles = [program.app.stream(NON_BLOCKING_STREAM), program.app.stream(NON_BLOCKING_STREAM)];
    let streams = [program.describe(handles[0])?, program.describe(handles[1])?];
    let memory = [program.app.malloc(len), program.app.malloc(len), program.app.malloc(len)];
    if program.me == 2 {
        return survived();
    }
    let (mut first, mut second) = (raw(memory[0], len), raw(memory[1], len));
    streams[0].scope(|left| {
        streams[1].scope(|right| -> Outcome {
            let (first, second) = (left.lend(&mut first)?, right.lend(&mut second)?);
            let send = left.prepare_send(on, &first, peer, 5)?;
            let receive = right.prepare_recv(on, &second, peer, 5)?;
            expect_path(&send, alone())?;
            expect_path(&receive, alone())?;
            // One message each way.
            left.post(&[&send])?;
            right.post(&[&receive])?;
            if program.me == 1 {
                program.app.cuStreamSynchronize(handles[0]).map_err(super::answered)?;
                program.app.cuStreamSynchronize(handles[1]).map_err(super::answered)?;
                on.recv(&mut [0_u8], 0, 1)?;
                return kill_myself();
            }
            let start = Instant::now();
            for _ in 0..POSTS {
                left.post(&[&send])?;
                right.post(&[&receive])?;
            }
            program.fill(handles[1], memory[2], 4, len)?;
            on.send(&[0_u8], 1, 1)?;
            // Both streams pass all of it, though nobody calls.
            program.app.cuStreamSynchronize(handles[0]).map_err(super::answered)?;
            program.app.cuStreamSynchronize(handles[1]).map_err(super::answered)?;
            let errors = [until_error(|| left.post(&[&send]).err()), until_error(|| right.post(&[&receive]).err())];
            for error in errors {
                expect(matches!(error.engine_error(), Some(EngineError::PeerFailed { peer: 1, .. })), true)?;
            }
            expect(start.elapsed() < SOON, true)
        })
    })?;
    expect_bytes("behind the waits", &program.app.download(memory[2], len), &vec![4; len])?;
    survived()
}

/// A kernel faults before the sender's stream has got to a post. The receiver does not go on as if data had come.
pub(super) fn faulted() -> Outcome {
    let program = Program::start()?;
    let (app, on, peer, len) = (&program.app, program.world.communicator(), 1 - program.me, 5000);
    app.create_context(0);
    let handle = app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    let fault = Fault::load(app)?;
    let (mut data, mut gate) = (raw(app.malloc(len), len), [0_u8]);
    stream.scope(|scope| -> Outcome {
        let (data, gate) = (scope.lend(&mut data)?, scope.lend(&mut gate)?);
        if program.me == 0 {
            let send = scope.prepare_send(on, &data, peer, 5)?;
            expect_path(&send, alone())?;
            scope.recv(on, &gate, peer, 6)?;
            fault.launch(app, handle)?;
            scope.post(&[&send])?;
            return Ok(on.barrier()?);
        }
        let receive = scope.prepare_recv(on, &data, peer, 5)?;
        expect_path(&receive, alone())?;
        scope.post(&[&receive])?;
        on.barrier()?;
        on.send(&[1_u8], peer, 6)?;
        let error = until_error(|| stream.check().err());
        expect(matches!(error.engine_error(), Some(EngineError::PreparedEnded { peer: 0 })), true)
    })?;
    Ok(on.barrier()?)
}
