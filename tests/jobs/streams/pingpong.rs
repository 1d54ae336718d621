//! Messages there and back, in streams of every kind and memory of every place.

use cableway::Any;

use super::{Outcome, Program, Random, expect, expect_bytes, pattern, raw};
use crate::device_programs::app::{BLOCKING_STREAM, Handle, LEGACY_STREAM, NON_BLOCKING_STREAM};

const ROUNDS: usize = 24;
const SIZES: [usize; 4] = [1, 64, 6000, 200_000];

pub(super) fn there_and_back() -> Outcome {
    let program = Program::start()?;
    let mut random = Random::new(u64::from(program.me) + 1);
    let legacy = if sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd { 0 } else { LEGACY_STREAM };
    let streams = [program.app.stream(NON_BLOCKING_STREAM), program.app.stream(BLOCKING_STREAM), legacy];
    for handle in streams {
        for len in SIZES {
            device(&program, handle, len, &mut random)?;
        }
    }
    host(&program, streams[0], &mut random)?;
    Ok(program.world.communicator().barrier()?)
}

/// Rank 0 fills a buffer in the stream and sends it. Rank 1 copies what it gets in the stream, and sends the copy back.
/// Rank 0 keeps what comes back, round by round. Nobody stops a stream.
fn device(program: &Program, handle: Handle, len: usize, random: &mut Random) -> Outcome {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let stream = program.describe(handle)?;
    let (out, back) = (program.app.malloc(len), program.app.malloc(len));
    let kept = program.app.malloc(len * ROUNDS);
    let (mut first, mut second) = (raw(out, len), raw(back, len));
    on.barrier()?;
    stream.scope(|scope| -> Outcome {
        let (out_lent, back_lent) = (scope.lend(&mut first)?, scope.lend(&mut second)?);
        for round in 0..ROUNDS {
            random.skew();
            if program.me == 0 {
                program.fill(handle, out, round as u8 + 1, len)?;
                scope.send(on, &out_lent, peer, 3)?;
                // The message has left, so the stream may change the buffer.
                program.fill(handle, out, 0xEE, len)?;
                scope.recv(on, &back_lent, peer, Any)?;
                program.copy(handle, kept + (round * len) as u64, back, len)?;
            } else {
                scope.recv(on, &back_lent, Any, 3)?;
                program.copy(handle, out, back, len)?;
                program.fill(handle, back, 0xDD, len)?;
                scope.send(on, &out_lent, peer, 4)?;
            }
        }
        Ok(())
    })?;
    stream.check()?;
    if program.me == 0 {
        let found = program.app.download(kept, len * ROUNDS);
        for (round, bytes) in found.chunks(len).enumerate() {
            expect_bytes(&format!("round {round} of {len} bytes"), bytes, &vec![round as u8 + 1; len])?;
        }
    }
    Ok(())
}

/// Host memory, which no work of the stream uses. Requests tell lengths and senders.
fn host(program: &Program, handle: Handle, random: &mut Random) -> Outcome {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let stream = program.describe(handle)?;
    for len in SIZES {
        let mut outs: Vec<Vec<u8>> = (0..ROUNDS).map(|round| pattern(len, round as u32 + program.me)).collect();
        let mut backs = vec![vec![0_u8; len + 5]; ROUNDS];
        stream.scope(|scope| -> Outcome {
            let mut coming = Vec::new();
            for (back, out) in backs.iter_mut().zip(&mut outs) {
                random.skew();
                let (back, out) = (scope.lend(back)?, scope.lend_shared(out)?);
                let mut requests = vec![scope.irecv(on, &back, peer, 5)?, scope.isend(on, &out, peer, 5)?];
                scope.wait(&mut requests)?;
                coming.push(requests);
            }
            for mut requests in coming {
                let sent = requests.pop().ok_or("a request")?.finish()?;
                expect((sent.source, sent.tag, sent.bytes), (peer, 5, len as u64))?;
                let came = requests.pop().ok_or("a request")?.finish()?;
                expect((came.source, came.tag, came.bytes), (peer, 5, len as u64))?;
            }
            Ok(())
        })?;
        for (round, back) in backs.iter().enumerate() {
            expect_bytes("host memory", &back[..len], &pattern(len, round as u32 + peer))?;
            expect(&back[len..], &[0; 5])?;
        }
    }
    Ok(())
}
