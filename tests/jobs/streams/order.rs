//! What is ordered with what.

use cableway::WaitCondition;

use super::{Outcome, Program, expect, expect_bytes, pattern, raw};
use crate::device_programs::app::NON_BLOCKING_STREAM;

/// Calls are made while the stream is held up. They start in their order when it goes on, and not before.
pub(super) fn thousand() -> Outcome {
    const CALLS: usize = 1000;
    const LEN: usize = 64;
    let program = Program::start()?;
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let (stream, gate) = (program.describe(handle)?, program.word()?);
    let memory = program.app.malloc(CALLS * LEN);
    let mut messages: Vec<_> = (0..CALLS).map(|at| raw(memory + (at * LEN) as u64, LEN)).collect();
    if program.me == 0 {
        program.app.upload(memory, &pattern(CALLS * LEN, 1));
    }
    on.barrier()?;
    // SAFETY: the gate's word is never freed.
    unsafe { stream.wait_value(gate.word(), 1, WaitCondition::GreaterOrEqual) }?;
    stream.scope(|scope| -> Outcome {
        let mut requests = Vec::new();
        for message in &mut messages {
            let lent = scope.lend(message)?;
            requests.push(match program.me {
                0 => scope.isend(on, &lent, peer, 1)?,
                _ => scope.irecv(on, &lent, peer, 1)?,
            });
        }
        // The host's messages are not held up by those on the stream, and do not overtake them either.
        on.sendrecv(&[1_u8], (peer, 2), &mut [0_u8], (peer, 2))?;
        expect(requests.iter().any(|request| request.is_complete()), false)?;
        gate.open(1);
        scope.wait(&mut requests)?;
        for request in requests {
            request.finish()?;
        }
        Ok(())
    })?;
    if program.me == 1 {
        expect_bytes("a thousand messages", &program.app.download(memory, CALLS * LEN), &pattern(CALLS * LEN, 1))?;
    }
    Ok(on.barrier()?)
}

/// Two streams of a rank send to each other, through itself and through the other rank; values go between them, too.
pub(super) fn each_other() -> Outcome {
    const ROUNDS: usize = 30;
    let program = Program::start()?;
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let handles = [program.app.stream(NON_BLOCKING_STREAM), program.app.stream(NON_BLOCKING_STREAM)];
    let (left, right) = (program.describe(handles[0])?, program.describe(handles[1])?);
    let gate = program.word()?;
    for len in [8, 100_000] {
        let (a, b) = (program.app.malloc(len), program.app.malloc(len));
        let (mut first, mut second) = (raw(a, len), raw(b, len));
        on.barrier()?;
        left.scope(|lefts| {
            right.scope(|rights| -> Outcome {
                let (a_lent, b_lent) = (lefts.lend(&mut first)?, rights.lend(&mut second)?);
                program.fill(handles[0], a, 1, len)?;
                for round in 0..ROUNDS {
                    let to = if round % 2 == 0 { me } else { peer };
                    // The left stream sends and waits for the answer, which the right stream sends after it.
                    lefts.send(on, &a_lent, to, 1)?;
                    lefts.recv(on, &a_lent, to, 2)?;
                    rights.recv(on, &b_lent, to, 1)?;
                    rights.send(on, &b_lent, to, 2)?;
                }
                // SAFETY: the word is never freed.
                unsafe {
                    right.write_value(gate.word(), len as u64)?;
                    left.wait_value(gate.word(), len as u64, WaitCondition::Equal)?;
                }
                program.copy(handles[0], b, a, len)?;
                Ok(())
            })
        })?;
        expect_bytes("what went round", &program.app.download(b, len), &vec![1; len])?;
        expect(gate.load(), len as u64)?;
    }
    // SAFETY: nothing is added.
    let misaligned = unsafe { left.write_value(cableway::StreamWord::Bits64(0x1004), 1) };
    expect(misaligned.is_err_and(|error| error.to_string().contains("misaligned")), true)?;
    Ok(on.barrier()?)
}
