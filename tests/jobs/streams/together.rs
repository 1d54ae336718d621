//! Several calls that reach a stream together.

use cableway::{StreamCall, StreamWord, WaitCondition};

use super::prepared::expect_path;
use super::{Outcome, Program, expect, expect_bytes, pattern, raw};
use crate::device_programs::app::NON_BLOCKING_STREAM;

/// Words of host memory that one call writes: as many as fit.
const WORDS: u64 = 8;

pub(super) fn together() -> Outcome {
    const LEN: usize = 3000;
    let program = Program::start()?;
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let stream = program.describe(program.app.stream(NON_BLOCKING_STREAM))?;
    let (out, back, ready) = (program.app.malloc(LEN), program.app.malloc(LEN), program.app.malloc(LEN));
    program.app.upload(out, &pattern(LEN, me));
    let (mut first, mut second, mut third) = (raw(out, LEN), raw(back, LEN), raw(ready, LEN));
    let gate = program.word()?;
    stream.scope(|scope| -> Outcome {
        let (out, back, ready) = (scope.lend(&mut first)?, scope.lend(&mut second)?, scope.lend(&mut third)?);
        let there = scope.prepare_send(on, &out, peer, 1)?;
        let here = scope.prepare_recv(on, &ready, peer, 1)?;
        expect_path(&there, true)?;
        expect_path(&here, true)?;
        let before = program.app.calls(c"cuStreamBatchMemOp");
        let word = |at: u64| StreamWord::Bits64(gate.address() + 8 * at);
        // SAFETY: the words are never freed.
        let writes: Vec<_> = (0..WORDS * 20)
            .map(|at| unsafe { StreamCall::write_value(word(at % WORDS), at) })
            .collect::<Result<_, _>>()?;
        scope.enqueue(&writes)?;
        if let (Some(before), Some(after)) = (before, program.app.calls(c"cuStreamBatchMemOp")) {
            expect(after - before, 1)?;
        }
        // SAFETY: as above.
        let passed = unsafe { StreamCall::wait_value(word(3), WORDS * 19 + 3, WaitCondition::Equal) }?;
        let (send, receive) = (StreamCall::send(on, &out, peer, 2), StreamCall::recv(on, &back, peer, 2));
        let (post, await_it) = (StreamCall::post(&there), StreamCall::post(&here));
        // SAFETY: as above.
        let last = unsafe { StreamCall::write_value(word(0), 77) }?;
        for _ in 0..10 {
            match me {
                0 => scope.enqueue(&[passed, send, receive, post, await_it, last])?,
                _ => scope.enqueue(&[passed, receive, send, await_it, post, last])?,
            }
        }
        // Nothing is added if a call is wrong.
        expect(scope.enqueue(&[last, StreamCall::send(on, &out, 2, 1)]).is_err(), true)?;
        // SAFETY: nothing is added.
        expect(unsafe { StreamCall::write_value(StreamWord::Bits64(0x1004), 1) }.is_err(), true)
    })?;
    stream.check()?;
    expect(gate.load(), 77)?;
    for address in [back, ready] {
        expect_bytes("what came", &program.app.download(address, LEN), &pattern(LEN, peer))?;
    }
    Ok(on.barrier()?)
}
