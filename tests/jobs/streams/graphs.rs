//! Prepared operations in graphs.

use cableway::{EngineError, PreparedMessage, StreamScope};

use super::prepared::expect_path;
use super::{Outcome, Program, Random, answered, expect, expect_bytes, raw};
use crate::device_programs::app::{Handle, NON_BLOCKING_STREAM};

const LEN: usize = 256;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: i32 = 1;

/// An executable graph of what `work` adds to the stream.
pub(super) fn capture(
    program: &Program,
    stream: Handle,
    work: impl FnOnce() -> Outcome,
) -> Result<Handle, Box<dyn std::error::Error>> {
    let (mut graph, mut executable): (Handle, Handle) = (0, 0);
    program.app.cuStreamBeginCapture(stream, THREAD_LOCAL).map_err(answered)?;
    let worked = work();
    program.app.cuStreamEndCapture(stream, &raw mut graph).map_err(answered)?;
    worked?;
    program.app.cuGraphInstantiate(&raw mut executable, graph, 0).map_err(answered)?;
    program.app.cuGraphDestroy(graph).map_err(answered)?;
    Ok(executable)
}

/// The operations of a rank: both ranks send the content of one buffer and receive into another, twice.
struct Exchange<'s> {
    there: PreparedMessage<'s>,
    back: PreparedMessage<'s>,
    again: PreparedMessage<'s>,
    last: PreparedMessage<'s>,
}

/// Rank 0 sends a value, which comes back by way of three buffers of rank 1 and is sent again.
pub(super) fn replayed() -> Outcome {
    let program = Program::start()?;
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    let memory: Vec<u64> = (0..4).map(|_| program.app.malloc(LEN)).collect();
    // Each launch posts two sends and two receives.
    let launches: usize = std::env::var("STREAMS_LAUNCHES")?.parse()?;
    let kept = program.app.malloc(launches);
    let mut buffers: Vec<_> = memory.iter().map(|&address| raw(address, LEN)).collect();
    let mut random = Random::new(u64::from(me) + 17);
    let [first, second, third, fourth] = &mut buffers[..] else { return Err("four buffers".into()) };
    stream.scope(|scope| -> Outcome {
        let [first, second, third, fourth] =
            [scope.lend(first)?, scope.lend(second)?, scope.lend(third)?, scope.lend(fourth)?];
        let exchange = Exchange {
            there: scope.prepare_send(on, &first, peer, 1)?,
            back: scope.prepare_recv(on, &second, peer, 1)?,
            again: scope.prepare_send(on, &third, peer, 2)?,
            last: scope.prepare_recv(on, &fourth, peer, 2)?,
        };
        for message in [&exchange.there, &exchange.back, &exchange.again, &exchange.last] {
            expect_path(message, true)?;
        }
        let round = || post_all(&program, handle, scope, &exchange, &memory);
        let executable = capture(&program, handle, round)?;
        refused(&program)?;
        for launch in 0..launches {
            if launch % 64 == 0 {
                random.skew();
            }
            if me == 0 {
                program.fill(handle, memory[0], launch as u8, LEN)?;
            }
            // One side posts now and then what the other one's graph contains.
            let posts = (launch / 50 + me as usize).is_multiple_of(5);
            if posts {
                round()?;
            } else {
                program.app.cuGraphLaunch(executable, handle).map_err(answered)?;
            }
            // The last byte of what came back the second time.
            program.copy(handle, kept + launch as u64, memory[3] + LEN as u64 - 1, 1)?;
        }
        program.app.cuStreamSynchronize(handle).map_err(answered)?;
        Ok(program.app.cuGraphExecDestroy(executable).map_err(answered)?)
    })?;
    stream.check()?;
    let expected: Vec<u8> = (0..launches).map(|launch| launch as u8).collect();
    expect_bytes("what the graphs moved", &program.app.download(kept, launches), &expected)?;
    Ok(on.barrier()?)
}

/// Adds a round to the stream.
fn post_all<'s>(
    program: &Program,
    handle: Handle,
    scope: &'s StreamScope<'s, '_>,
    exchange: &Exchange<'s>,
    memory: &[u64],
) -> Outcome {
    let Exchange { there, back, again, last } = exchange;
    let [first, second, third, fourth] = *memory else { return Err("four buffers".into()) };
    if program.me == 0 {
        scope.post(&[there, back])?;
        program.copy(handle, third, second, LEN)?;
        Ok(scope.post(&[again, last])?)
    } else {
        scope.post(&[back])?;
        program.copy(handle, first, second, LEN)?;
        scope.post(&[there, last])?;
        program.copy(handle, third, fourth, LEN)?;
        Ok(scope.post(&[again])?)
    }
}

/// What cannot be captured is an error. The capture goes on.
fn refused(program: &Program) -> Outcome {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    // Only a thread moves host memory.
    let mut host = [program.me as u8; 64];
    let other = program.describe(program.app.stream(NON_BLOCKING_STREAM))?;
    let captured = other.handle() as Handle;
    other.scope(|inner| -> Outcome {
        let lent = inner.lend(&mut host)?;
        let message = match program.me {
            0 => inner.prepare_send(on, &lent, peer, 9)?,
            _ => inner.prepare_recv(on, &lent, peer, 9)?,
        };
        expect_path(&message, false)?;
        let executable = capture(program, captured, || {
            let error = inner.post(&[&message]).err().ok_or("a graph contains a thread's message")?;
            expect(matches!(error.engine_error(), Some(EngineError::NotCapturable { .. })), true)?;
            expect(inner.send(on, &lent, peer, 1).is_err(), true)
        })?;
        program.app.cuGraphExecDestroy(executable).map_err(answered)?;
        // Nothing of it was done.
        Ok(inner.post(&[&message])?)
    })?;
    other.check()?;
    expect(host, [0; 64])?;
    Ok(())
}
