//! Memory of peers that is mapped between the messages of a stream.

use super::{Outcome, Program, expect_bytes, pattern, raw};
use crate::device_programs::app::NON_BLOCKING_STREAM;

/// Sends back and forth in the order of a stream, between memory of which no message was sent before the stream was
/// described. So the first messages are staged. Once the stream has been at rest, the memory is mapped.
pub(super) fn between_messages() -> Outcome {
    const LEN: usize = 100_000;
    let program = Program::start()?;
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    let (out, back) = (program.app.malloc(LEN), program.app.malloc(LEN));
    program.app.upload(out, &pattern(LEN, me));
    let (mut sent, mut received) = (raw(out, LEN), raw(back, LEN));
    let direct = || -> u64 { program.world.counters().device_direct.get() };
    for step in 0_u32.. {
        // The stream has work when the calls are made, as programs' streams have.
        program.fill(handle, back, 0, LEN)?;
        stream.scope(|scope| -> Outcome {
            let (out, back) = (scope.lend(&mut sent)?, scope.lend(&mut received)?);
            for _ in 0..3 {
                let receive = scope.irecv(on, &back, peer, 1)?;
                let send = scope.isend(on, &out, peer, 1)?;
                scope.wait(&mut [receive, send])?;
            }
            Ok(())
        })?;
        expect_bytes("what came", &program.app.download(back, LEN), &pattern(LEN, peer))?;
        // Which of the two copies is the protocol's choice.
        let (mine, mut theirs) = (direct(), [0]);
        on.sendrecv(&[mine], (peer, 2), &mut theirs, (peer, 2))?;
        if mine + theirs[0] > 0 {
            println!("rank {me}: messages were direct after {step} steps that were staged");
            break;
        }
    }
    stream.check()?;
    Ok(on.barrier()?)
}
