//! Puts with signals, and waits for signals, in the order of streams.

use std::ffi::c_void;
use std::time::Instant;

use cableway::{EngineError, RawMemory, Registration, RemoteKey, Signal, SignalUpdate};

use super::{Outcome, Program, answered, expect, expect_bytes, raw};
use crate::device_programs::app::NON_BLOCKING_STREAM;
use crate::faults::{kill_myself, survived};
use crate::support::SOON;

/// Where words of signals lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Words {
    Device,
    Pinned,
    Host,
}

const WORDS: [Words; 3] = [Words::Device, Words::Pinned, Words::Host];

/// Words of this rank and the keys of all ranks'.
pub(super) struct Signals {
    pub(super) mine: Registration<RawMemory>,
    pub(super) theirs: Vec<RemoteKey>,
}

/// Registers memory that is never freed, and exchanges the keys.
pub(super) fn share(
    program: &Program,
    address: *mut c_void,
    len: usize,
) -> Result<Signals, Box<dyn std::error::Error>> {
    // SAFETY: the memory is never freed, and accessed by streams and drivers only.
    let mine = program.world.register(unsafe { RawMemory::new(address, len as u64) })?;
    let on = program.world.communicator();
    let mut theirs = vec![RemoteKey::default(); on.size() as usize];
    on.allgather(&[*mine.key()], &mut theirs)?;
    Ok(Signals { mine, theirs })
}

pub(super) fn on_device(program: &Program, len: usize) -> *mut c_void {
    let address = program.app.malloc(len);
    program.app.upload(address, &vec![0; len]);
    // An upload of pageable memory may return before the device has it, and then a peer's put would be overwritten.
    program.app.download(address, len);
    std::ptr::with_exposed_provenance_mut(address as usize)
}

pub(super) fn signals(program: &Program, words: Words) -> Result<Signals, Box<dyn std::error::Error>> {
    match words {
        Words::Device => share(program, on_device(program, 64), 64),
        Words::Pinned => share(program, program.word()?.0.cast(), 64),
        Words::Host => share(program, Box::leak(Box::new([0_u64; 8])).as_mut_ptr().cast(), 64),
    }
}

/// The streams of two ranks give each other fields of changing bytes, and count them. A rank overwrites the other's field
/// only after that one's stream has copied it, which a signal without data tells.
pub(super) fn there_and_back() -> Outcome {
    let program = Program::start()?;
    let (me, peer) = (program.me, 1 - program.me);
    for stream_kind in [NON_BLOCKING_STREAM, 0] {
        let handle = program.app.stream(stream_kind);
        for (len, words) in [64, 5000, 300_000].into_iter().flat_map(|len| WORDS.map(|words| (len, words))) {
            let window = share(&program, on_device(&program, len), len)?;
            let counts = signals(&program, words)?;
            let rounds = 12_u64;
            let (source, log) = (program.app.malloc(len), program.app.malloc(len * rounds as usize));
            let landed = window.mine.key().base();
            let mut field = raw(source, len);
            let mut nothing: [u8; 0] = [];
            let theirs = &counts.theirs[peer as usize];
            let at = |word: u64, value| Some(Signal { at: theirs.at(8 * word), update: value });
            let stream = program.describe(handle)?;
            stream.scope(|scope| -> Outcome {
                let (field, nothing) = (scope.lend(&mut field)?, scope.lend(&mut nothing)?);
                for round in 1..=rounds {
                    let value = (round * 2 + u64::from(me)) as u8;
                    program.fill(handle, source, value, len)?;
                    scope.put(&field, window.theirs[peer as usize].at(0), at(0, SignalUpdate::Set(round)))?;
                    // Overwritten at once: the stream has waited until the put was done.
                    program.fill(handle, source, 0xee, len)?;
                    scope.wait_signal(&counts.mine, 0, round, peer)?;
                    program.copy(handle, log + (round - 1) * len as u64, landed, len)?;
                    scope.put(&nothing, window.theirs[peer as usize].at(0), at(1, SignalUpdate::Add(1)))?;
                    scope.wait_signal(&counts.mine, 8, round, peer)?;
                }
                Ok(())
            })?;
            stream.check()?;
            for (round, found) in (1..=rounds).zip(program.app.download(log, len * rounds as usize).chunks(len)) {
                let value = (round * 2 + u64::from(peer)) as u8;
                expect_bytes(
                    &format!("{len} bytes, {words:?} words, stream kind {stream_kind}, round {round}"),
                    found,
                    &vec![value; len],
                )?;
            }
            // The peer may still put into this rank's words.
            program.world.communicator().barrier()?;
        }
    }
    Ok(())
}

/// A thousand puts are made behind a gate, and arrive in their order with their counts.
pub(super) fn behind_a_gate() -> Outcome {
    let program = Program::start()?;
    let (peer, puts) = (1 - program.me, 1000_u64);
    let (window, gate) = (share(&program, on_device(&program, 64), 64)?, program.word()?);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let source = program.app.malloc(8);
    let mut field = raw(source, 8);
    let stream = program.describe(handle)?;
    stream.scope(|scope| -> Outcome {
        let field = scope.lend(&mut field)?;
        // SAFETY: the word is never freed.
        unsafe { stream.wait_value(gate.word(), 1, cableway::WaitCondition::GreaterOrEqual) }?;
        let theirs = &window.theirs[peer as usize];
        for _ in 0..puts {
            let signal = Signal { at: theirs.at(8), update: SignalUpdate::Add(1) };
            scope.put(&field, theirs.at(0), Some(signal))?;
        }
        scope.wait_signal(&window.mine, 8, puts, peer)?;
        // Nothing has come while the streams stand at the gates.
        program.world.communicator().barrier()?;
        expect(window.mine.load(8)?, 0)?;
        program.world.communicator().barrier()?;
        gate.open(1);
        Ok(())
    })?;
    stream.check()?;
    expect(window.mine.load(8)?, puts)?;
    Ok(program.world.communicator().barrier()?)
}

/// What cannot be added is refused at once. What fails later releases the stream and is told by the next call.
pub(super) fn refusals() -> Outcome {
    let program = Program::start()?;
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let (window, counts) = (share(&program, on_device(&program, 64), 64)?, signals(&program, Words::Device)?);
    let gone = share(&program, on_device(&program, 64), 64)?;
    let stale = gone.theirs[peer as usize];
    on.barrier()?;
    drop(gone);
    on.barrier()?;
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let after = program.app.malloc(64);
    let (mut field, mut blocked) = (raw(program.app.malloc(64), 64), raw(program.app.malloc(64), 64));
    let stream = program.describe(handle)?;
    stream.scope(|scope| -> Outcome {
        let (field, blocked) = (scope.lend(&mut field)?, scope.lend(&mut blocked)?);
        let theirs = &window.theirs[peer as usize];
        let refused = [
            scope.put(&field, theirs.at(1), None),
            scope.put(&field, theirs.at(0), Some(Signal { at: theirs.at(4), update: SignalUpdate::Set(1) })),
            scope.put(&field, theirs.at(0), Some(Signal { at: counts.mine.key().at(0), update: SignalUpdate::Set(1) })),
            scope.wait_signal(&counts.mine, 60, 1, peer),
            scope.wait_signal(&counts.mine, 0, 1, 2),
        ];
        for (case, result) in refused.into_iter().enumerate() {
            expect((case, result.is_err()), (case, true))?;
        }
        let coming = scope.irecv(on, &blocked, peer, 3)?;
        expect(scope.put(&blocked, theirs.at(0), None).is_err(), true)?;
        on.send(&[1_u8; 64], peer, 3)?;
        scope.wait(&mut [coming])?;
        // The owner refuses it when the stream gets there.
        scope.put(&field, stale.at(0), None)?;
        program.fill(handle, after, 9, 64)?;
        program.app.cuStreamSynchronize(handle).map_err(answered)?;
        let error = loop {
            match scope.put(&field, theirs.at(0), None) {
                Err(error) => break error,
                Ok(()) => std::thread::yield_now(),
            }
        };
        expect(matches!(error.engine_error(), Some(EngineError::Refused { .. })), true)
    })?;
    stream.check()?;
    expect_bytes("after a refused put", &program.app.download(after, 64), &[9; 64])?;
    Ok(on.barrier()?)
}

/// Streams of ranks 0 and 2 wait for signals of rank 1 and put to it, which dies.
pub(super) fn dies() -> Outcome {
    let program = Program::start()?;
    let on = program.world.communicator();
    let window = share(&program, on_device(&program, 1 << 20), 1 << 20)?;
    let all = [signals(&program, WORDS[0])?, signals(&program, WORDS[1])?, signals(&program, WORDS[2])?];
    if program.me == 1 {
        for rank in [0, 2] {
            on.recv(&mut [0_u8], rank, 1)?;
        }
        return kill_myself();
    }
    let start = Instant::now();
    let after = program.app.malloc(64);
    for (counts, first) in all.iter().zip([true, false, false]) {
        let handle = program.app.stream(NON_BLOCKING_STREAM);
        let stream = program.describe(handle)?;
        let mut field = raw(program.app.malloc(1 << 20), 1 << 20);
        stream.scope(|scope| -> Outcome {
            let field = scope.lend(&mut field)?;
            if first {
                scope.wait_signal(&counts.mine, 0, 1, 1)?;
                on.send(&[0_u8], 1, 1)?;
            } else if let Err(error) = scope.wait_signal(&counts.mine, 0, 1, 1) {
                return expect(is_dead(&error), true);
            }
            program.fill(handle, after, 4, 64)?;
            program.app.cuStreamSynchronize(handle).map_err(answered)?;
            let error = loop {
                match scope.put(&field, window.theirs[1].at(0), None) {
                    Err(error) => break error,
                    Ok(()) => std::thread::yield_now(),
                }
            };
            expect(is_dead(&error), true)
        })?;
        while stream.check().is_err() {}
        expect_bytes("behind the wait", &program.app.download(after, 64), &[4; 64])?;
    }
    expect(start.elapsed() < SOON, true)?;
    survived()
}

pub(super) fn is_dead(error: &cableway::Error) -> bool {
    matches!(error.engine_error(), Some(EngineError::PeerFailed { peer: 1, .. }))
}
