//! As many streams wait as the driver has queues.

use std::process::Command;

use cableway::{RawBuffer, StreamRef};

use super::{Outcome, Program, expect_bytes, raw};
use crate::device_programs::app::NON_BLOCKING_STREAM;
use crate::support::{Driver, finish, libdir_option, role_job, skip};

const LEN: usize = 64;
const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Returns a job of two ranks with the driver, if it has the variable.
fn job(role: &str) -> Option<Command> {
    if sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd {
        skip("only NVIDIA's driver has the variable");
        return None;
    }
    let driver = Driver::find().folder.to_string_lossy().into_owned();
    Some(role_job(2, &[libdir_option(), &driver], role))
}

/// A stream that waits would hold up all others of its context. On an H100 messages then hang.
pub(super) fn one_is_refused() {
    let Some(mut job) = job("streams_pingpong") else { return };
    let finished = finish(job.env(VARIABLE, "1"));
    assert!(
        finished.code() != 0 && finished.stderr.contains("set CUDA_DEVICE_MAX_CONNECTIONS to 2 or more"),
        "{finished:?}"
    );
}

/// On an H200 the copies of the engine, and all work of other streams, would wait behind the eighth stream.
pub(super) fn are_counted() {
    for (streams, queues, warned) in
        [("7", None, false), ("8", None, true), ("8", Some("9"), false), ("3", Some("3"), true)]
    {
        let Some(mut job) = job("streams_many") else { return };
        job.env("STREAMS_COUNT", streams).env_remove(VARIABLE).envs(queues.map(|queues| (VARIABLE, queues)));
        let finished = finish(&mut job).assert_success();
        let found = finished.stderr.matches("streams may wait for messages at once").count();
        assert_eq!(found, usize::from(warned), "{streams} streams, {queues:?} queues: {}", finished.stderr);
    }
}

/// The message for the stream of this index, and its tag.
fn message(at: usize) -> [u8; LEN] {
    [at as u8 + 1; LEN]
}

fn tag(at: usize) -> i32 {
    10 + at as i32
}

/// Each stream of rank 0 waits for a message, in host memory, which needs no copy of a device.
pub(super) fn many() -> Outcome {
    crate::leaving::complaints()?;
    let program = Program::start()?;
    let on = program.world.communicator();
    let count: usize = std::env::var("STREAMS_COUNT")?.parse()?;
    if program.me == 1 {
        on.recv(&mut [0_u8], 0, 2)?;
        for at in 0..count {
            on.send(&message(at), 0, tag(at))?;
        }
        return Ok(on.barrier()?);
    }
    let describe = |_| program.describe(program.app.stream(NON_BLOCKING_STREAM));
    let streams = (0..count).map(describe).collect::<Result<Vec<_>, _>>()?;
    let mut memory = vec![0_u8; count * LEN];
    let start = memory.as_mut_ptr().expose_provenance() as u64;
    let mut buffers: Vec<_> = (0..count).map(|at| raw(start + (at * LEN) as u64, LEN)).collect();
    receive(&program, &streams, &mut buffers)?;
    // The first stream has the last index.
    for (at, bytes) in memory.chunks(LEN).rev().enumerate() {
        expect_bytes("a message", bytes, &message(at))?;
    }
    Ok(on.barrier()?)
}

/// Receives one message on each stream. The messages are sent after all streams wait.
fn receive(program: &Program, streams: &[StreamRef], buffers: &mut [RawBuffer<'_>]) -> Outcome {
    let on = program.world.communicator();
    let (Some((stream, streams)), Some((buffer, buffers))) = (streams.split_first(), buffers.split_first_mut()) else {
        return Ok(on.send(&[1_u8], 1, 2)?);
    };
    stream.scope(|scope| {
        let lent = scope.lend(buffer)?;
        // Streams have no order, so each has its tag.
        scope.recv(on, &lent, 1, tag(streams.len()))?;
        receive(program, streams, buffers)
    })
}
