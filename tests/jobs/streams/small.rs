//! Small messages of device memory, which pass through host memory.

use cableway::WaitCondition;

use super::{Outcome, Program, expect, expect_bytes, pattern, raw};
use crate::device_programs::app::{CAPTURE_THREAD_LOCAL, Handle, NON_BLOCKING_STREAM};

/// The room of each receive, and the bytes around it.
const ROOM: usize = 8 << 10;
const AROUND: usize = 64;
const LENGTHS: [usize; 7] = [1, 8, 100, 511, 4097, ROOM - 1, ROOM];
const ROUNDS: usize = 8;
/// More sends than a stream has chunks.
const MANY: usize = 40;

/// Messages are as long as what is sent, and bytes behind them stay. Many sends need no receive. Copy engines copy nothing.
pub(super) fn small() -> Outcome {
    let program = Program::start()?;
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    program.world.communicator().barrier()?;
    let before = copies(&program);
    there_and_back(&program, handle)?;
    many(&program, handle)?;
    let by_engines = before.zip(copies(&program)).map(|(before, after)| after - before);
    match by_engines {
        Some(by_engines) if std::env::var_os("STREAMS_BY_ENGINES").is_none() => expect(by_engines, 0)?,
        _ => {}
    }
    far_ahead(&program, handle)?;
    refused(&program, handle)?;
    too_long(&program, handle)?;
    Ok(program.world.communicator().barrier()?)
}

/// Returns the number of copies that Cableway has made by copy engines: the program of this test makes none that is asynchronous.
fn copies(program: &Program) -> Option<i64> {
    [c"cuMemcpyAsync", c"cuMemcpyBatchAsync"].into_iter().map(|name| program.app.calls(name)).sum()
}

fn there_and_back(program: &Program, handle: Handle) -> Outcome {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let stream = program.describe(handle)?;
    let kept = program.app.malloc(ROUNDS * LENGTHS.len() * (ROOM + AROUND));
    let slot = |at: usize| kept + (at * (ROOM + AROUND)) as u64;
    let untouched = vec![0xCC_u8; ROUNDS * LENGTHS.len() * (ROOM + AROUND)];
    program.app.upload(kept, &untouched);
    let sent = program.app.malloc(LENGTHS.len() * ROOM);
    let content = pattern(LENGTHS.len() * ROOM, 7);
    program.app.upload(sent, &content);
    on.barrier()?;
    let all = (0..ROUNDS).flat_map(|round| LENGTHS.iter().enumerate().map(move |(index, len)| (round, index, *len)));
    for (at, (_, index, len)) in all.clone().enumerate() {
        // At every place within 16 bytes.
        let (out, mut back) = (raw(sent + (index * ROOM) as u64, len), raw(slot(at) + (at % 16) as u64, ROOM));
        stream.scope(|scope| -> Outcome {
            let (out, back) = (scope.lend_shared(&out)?, scope.lend(&mut back)?);
            if program.me == 0 {
                scope.send(on, &out, peer, 3)?;
                return Ok(scope.recv(on, &back, peer, 4)?);
            }
            scope.recv(on, &back, peer, 3)?;
            Ok(scope.send(on, &out, peer, 4)?)
        })?;
    }
    stream.check()?;
    let found = program.app.download(kept, untouched.len());
    for (at, (round, index, len)) in all.enumerate() {
        let mut expected = vec![0xCC; ROOM + AROUND];
        expected[at % 16..][..len].copy_from_slice(&content[index * ROOM..][..len]);
        let found = &found[at * (ROOM + AROUND)..][..ROOM + AROUND];
        expect_bytes(&format!("round {round} of {len} bytes"), found, &expected)?;
    }
    Ok(())
}

/// The stream of rank 0 changes its buffer behind each send. Rank 1 receives only when all have been added.
fn many(program: &Program, handle: Handle) -> Outcome {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let stream = program.describe(handle)?;
    let memory = program.app.malloc(MANY * ROOM);
    let mut rooms: Vec<_> = (0..MANY).map(|at| raw(memory + (at * ROOM) as u64, ROOM)).collect();
    if program.me == 0 {
        let mut out = raw(memory, ROOM);
        stream.scope(|scope| -> Outcome {
            let lent = scope.lend(&mut out)?;
            for at in 0..MANY {
                program.fill(handle, memory, at as u8, ROOM)?;
                scope.send(on, &lent, peer, 5)?;
            }
            Ok(on.send(&[1_u8], peer, 6)?)
        })?;
    } else {
        on.recv(&mut [0_u8], peer, 6)?;
        stream.scope(|scope| -> Outcome {
            for room in &mut rooms {
                let lent = scope.lend(room)?;
                scope.recv(on, &lent, peer, 5)?;
            }
            Ok(())
        })?;
        let expected: Vec<u8> = (0..MANY).flat_map(|at| vec![at as u8; ROOM]).collect();
        expect_bytes("many messages", &program.app.download(memory, MANY * ROOM), &expected)?;
    }
    Ok(stream.check()?)
}

/// The streams wait until all calls are made. A driver does not accept as many kernels.
fn far_ahead(program: &Program, handle: Handle) -> Outcome {
    const CALLS: usize = 700;
    const LEN: usize = 64;
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let (stream, gate) = (program.describe(handle)?, program.word()?);
    let memory = program.app.malloc(CALLS * LEN);
    let content = pattern(CALLS * LEN, 3);
    if program.me == 0 {
        program.app.upload(memory, &content);
    }
    let mut messages: Vec<_> = (0..CALLS).map(|at| raw(memory + (at * LEN) as u64, LEN)).collect();
    // SAFETY: the gate's word is never freed.
    unsafe { stream.wait_value(gate.word(), 1, WaitCondition::GreaterOrEqual) }?;
    stream.scope(|scope| -> Outcome {
        for message in &mut messages {
            let lent = scope.lend(message)?;
            if program.me == 0 { scope.send(on, &lent, peer, 1)? } else { scope.recv(on, &lent, peer, 1)? }
        }
        gate.open(1);
        Ok(())
    })?;
    expect_bytes("messages behind a gate", &program.app.download(memory, CALLS * LEN), &content)
}

/// Calls that a capture refuses change nothing for the messages before and after them.
fn refused(program: &Program, handle: Handle) -> Outcome {
    let stream = program.describe(handle)?;
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let memory = program.app.malloc(ROOM);
    for _ in 0..20 {
        program.app.cuStreamBeginCapture(handle, CAPTURE_THREAD_LOCAL).map_err(super::answered)?;
        let mut buffer = raw(memory, ROOM);
        for sends in [true, false] {
            let done = stream.scope(|scope| {
                let lent = scope.lend(&mut buffer)?;
                if sends { scope.send(on, &lent, peer, 9) } else { scope.recv(on, &lent, peer, 9) }
            });
            expect(done.is_err(), true)?;
        }
        let mut graph = 0;
        program.app.cuStreamEndCapture(handle, &raw mut graph).map_err(super::answered)?;
        program.app.cuGraphDestroy(graph).map_err(super::answered)?;
    }
    there_and_back(program, handle)
}

/// A message that is too long is an error, and nothing behind the buffer changes. The stream goes on.
fn too_long(program: &Program, handle: Handle) -> Outcome {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let stream = program.describe(handle)?;
    let memory = program.app.malloc(ROOM);
    program.app.upload(memory, &vec![0xCC; ROOM]);
    for (len, told) in [(100, true), (50, false)] {
        let mut buffer = raw(memory, if program.me == 0 { len } else { 50 });
        let done = stream.scope(|scope| {
            let lent = scope.lend(&mut buffer)?;
            if program.me == 0 { scope.send(on, &lent, peer, 8) } else { scope.recv(on, &lent, peer, 8) }
        });
        let failed = done.and_then(|()| stream.check()).is_err();
        expect(failed, told && program.me == 1)?;
    }
    if program.me == 1 {
        expect_bytes("behind the buffer", &program.app.download(memory + 50, ROOM - 50), &vec![0xCC; ROOM - 50])?;
    }
    Ok(())
}
