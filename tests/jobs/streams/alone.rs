//! Puts that a stream makes alone, into memory of a peer that it has mapped.

use std::time::Instant;

use cableway::{
    BufferKind, DeviceBuffer, DeviceIndex, EngineError, PutPath, RemoteKey, Signal, SignalUpdate, StreamRef,
    WaitCondition,
};

use super::graphs::capture;
use super::puts::{Words, is_dead, on_device, share, signals};
use super::{Outcome, Program, Random, answered, expect, expect_bytes, pattern, raw};
use crate::device_programs::app::NON_BLOCKING_STREAM;
use crate::faults::{kill_myself, survived};
use crate::support::SOON;

/// Returns whether streams make puts alone in this job.
fn alone() -> bool {
    std::env::var_os("STREAMS_BY_THREAD").is_none()
}

/// Maps memory of a peer, and checks what makes puts to it.
fn map(stream: &StreamRef, key: &RemoteKey, alone: bool) -> Outcome {
    let path = stream.map_for_puts(key)?;
    if (path == PutPath::Stream) == alone { Ok(()) } else { Err(format!("{path:?} of {key:?}").into()) }
}

fn set(key: &RemoteKey, offset: u64, value: u64) -> Option<Signal<'_>> {
    Some(Signal { at: key.at(offset), update: SignalUpdate::Set(value) })
}

/// Messages that this rank has sent.
fn sent(program: &Program) -> u64 {
    let counters = program.world.counters();
    counters.sends_eager.get() + counters.sends_rendezvous.get()
}

/// The streams of two ranks give each other fields of changing bytes, with random skew. The rank that a field is for reads
/// it as soon as the signal is there, and no message is sent.
pub(super) fn there_and_back() -> Outcome {
    let program = Program::start()?;
    let (me, peer) = (program.me, 1 - program.me);
    let mut random = Random::new(u64::from(me) + 3);
    for stream_kind in [NON_BLOCKING_STREAM, 0] {
        let handle = program.app.stream(stream_kind);
        for len in [1, 8, 64, 5000, 300_000] {
            let window = share(&program, on_device(&program, len), len)?;
            // The data and its signal in two registrations, and the answer in one of them.
            let counts = signals(&program, Words::Device)?;
            let rounds = 40_u64;
            let (source, log) = (program.app.malloc(len), program.app.malloc(len * rounds as usize));
            let landed = window.mine.key().base();
            let (their_window, their_counts) = (&window.theirs[peer as usize], &counts.theirs[peer as usize]);
            let mut field = raw(source, len);
            let mut nothing: [u8; 0] = [];
            let stream = program.describe(handle)?;
            map(&stream, their_window, alone())?;
            map(&stream, their_counts, alone())?;
            program.world.communicator().barrier()?;
            stream.scope(|scope| -> Outcome {
                let (field, nothing) = (scope.lend(&mut field)?, scope.lend(&mut nothing)?);
                let path = scope.put_path(&field, their_window.at(0), set(their_counts, 0, 1))?;
                expect(path == PutPath::Stream, alone())?;
                let before = sent(&program);
                for round in 1..=rounds {
                    if round % 8 == 0 {
                        random.skew();
                    }
                    program.fill(handle, source, (round * 2 + u64::from(me)) as u8, len)?;
                    scope.put(&field, their_window.at(0), set(their_counts, 0, round))?;
                    // Overwritten at once: the stream has waited until the put was done.
                    program.fill(handle, source, 0xee, len)?;
                    scope.wait_signal(&counts.mine, 0, round, peer)?;
                    program.copy(handle, log + (round - 1) * len as u64, landed, len)?;
                    scope.put(&nothing, their_window.at(0), set(their_counts, 8, round))?;
                    scope.wait_signal(&counts.mine, 8, round, peer)?;
                }
                program.app.cuStreamSynchronize(handle).map_err(answered)?;
                if alone() {
                    expect(sent(&program), before)?;
                }
                Ok(())
            })?;
            stream.check()?;
            for (round, found) in (1..=rounds).zip(program.app.download(log, len * rounds as usize).chunks(len)) {
                let value = (round * 2 + u64::from(peer)) as u8;
                expect_bytes(&format!("{len} bytes, round {round}"), found, &vec![value; len])?;
            }
            // The peer may still put into this rank's words.
            program.world.communicator().barrier()?;
        }
    }
    Ok(())
}

/// What the stream does not make alone, and what is refused.
pub(super) fn choices() -> Outcome {
    let program = Program::start()?;
    let (on, me, peer) = (program.world.communicator(), program.me, 1 - program.me);
    let (window, counts) = (share(&program, on_device(&program, 64), 64)?, signals(&program, Words::Device)?);
    let (pinned, host) = (signals(&program, Words::Pinned)?, signals(&program, Words::Host)?);
    let gone = share(&program, on_device(&program, 64), 64)?;
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    map(&stream, &window.theirs[peer as usize], true)?;
    map(&stream, &gone.theirs[peer as usize], true)?;
    // Once more, and for another stream of the context.
    map(&stream, &window.theirs[peer as usize], true)?;
    map(&program.describe(program.app.stream(0))?, &window.theirs[peer as usize], true)?;
    map(&stream, &pinned.theirs[peer as usize], false)?;
    map(&stream, &host.theirs[peer as usize], false)?;
    map(&stream, window.mine.key(), false)?;
    let stale = gone.theirs[peer as usize];
    on.barrier()?;
    // Its end waits for the peer, which is here, too.
    drop(gone);
    on.barrier()?;
    let refused = stream.map_for_puts(&stale).err().ok_or("memory was mapped after its registration")?;
    expect(matches!(refused.engine_error(), Some(EngineError::Refused { .. })), true)?;
    let mut device = raw(program.app.malloc(64), 64);
    let mut on_host = [me as u8; 64];
    let theirs = &window.theirs[peer as usize];
    stream.scope(|scope| -> Outcome {
        let (device, on_host) = (scope.lend(&mut device)?, scope.lend(&mut on_host)?);
        let add = Signal { at: theirs.at(8), update: SignalUpdate::Add(1) };
        let words = [&counts, &pinned, &host].map(|words| &words.theirs[peer as usize]);
        let cases = [
            (true, &device, theirs, None),
            (true, &device, theirs, set(theirs, 8, 1)),
            (false, &on_host, theirs, None),
            (false, &device, theirs, Some(add)),
            (false, &device, theirs, set(words[0], 0, 1)),
            (false, &device, theirs, set(words[1], 0, 1)),
            (false, &device, theirs, set(words[2], 0, 1)),
            (false, &device, &stale, None),
        ];
        for (case, (alone, from, to, signal)) in cases.into_iter().enumerate() {
            let path = scope.put_path(from, to.at(0), signal)?;
            expect((case, path == PutPath::Stream), (case, alone))?;
        }
        // Out of range.
        expect(scope.put(&device, theirs.at(1), None).is_err(), true)?;
        expect(scope.put(&device, theirs.at(0), set(theirs, 60, 1)).is_err(), true)?;
        expect(scope.put(&device, theirs.at(0), set(theirs, 4, 1)).is_err(), true)?;
        // After its registration the owner refuses it.
        scope.put(&device, stale.at(0), None)?;
        let error = loop {
            match scope.put(&device, theirs.at(0), None) {
                Err(error) => break error,
                Ok(()) => std::thread::yield_now(),
            }
        };
        expect(matches!(error.engine_error(), Some(EngineError::Refused { .. })), true)?;
        // A graph contains no puts.
        if sim_cuda::Vendor::tested() == sim_cuda::Vendor::Nvidia {
            let executable = capture(&program, handle, || {
                expect(scope.put(&device, theirs.at(0), set(theirs, 8, 1)).is_err(), true)
            })?;
            program.app.cuGraphExecDestroy(executable).map_err(answered)?;
        }
        Ok(())
    })?;
    stream.check()?;
    on.barrier()?;
    changes(&program, &stream)
}

/// A word that a stream sets and the CPU of its owner adds to, in the order of one stream.
fn changes(program: &Program, stream: &StreamRef) -> Outcome {
    let peer = 1 - program.me;
    let counts = signals(program, Words::Device)?;
    let theirs = &counts.theirs[peer as usize];
    map(stream, theirs, true)?;
    program.world.communicator().barrier()?;
    let mut nothing: [u8; 0] = [];
    stream.scope(|scope| -> Outcome {
        let nothing = scope.lend(&mut nothing)?;
        for round in 0..20 {
            scope.put(&nothing, theirs.at(0), set(theirs, 0, 100 * round))?;
            let add = Signal { at: theirs.at(0), update: SignalUpdate::Add(round + 1) };
            scope.put(&nothing, theirs.at(0), Some(add))?;
        }
        Ok(())
    })?;
    stream.check()?;
    program.world.communicator().barrier()?;
    expect(counts.mine.load(0)?, 1920)?;
    Ok(program.world.communicator().barrier()?)
}

/// Memory whose kind no handle of its own maps.
pub(super) fn pools() -> Outcome {
    let program = Program::start()?;
    let peer = 1 - program.me;
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    for kind in [BufferKind::Pool, BufferKind::PoolShared, BufferKind::Vmm] {
        let device = DeviceIndex(program.me % program.app.device_count());
        let buffer = DeviceBuffer::new(program.world.devices(), device, kind, 1 << 20)?;
        let window = program.world.register(buffer)?;
        let mut keys = [RemoteKey::default(); 2];
        program.world.communicator().allgather(&[*window.key()], &mut keys)?;
        map(&stream, &keys[peer as usize], false)?;
        let source = program.app.malloc(1 << 20);
        program.app.upload(source, &pattern(1 << 20, program.me));
        // The upload may return before the device has the data.
        program.app.download(source, 1);
        let mut field = raw(source, 1 << 20);
        stream.scope(|scope| scope.put(&scope.lend(&mut field)?, keys[peer as usize].at(0), None))?;
        stream.check()?;
        program.world.communicator().barrier()?;
        let mut found = vec![0; 1 << 20];
        window.read(0, &mut found)?;
        expect_bytes(&format!("{kind:?}"), &found, &pattern(1 << 20, peer))?;
        program.world.communicator().barrier()?;
    }
    Ok(())
}

/// Rank 1 ends a registration into which a stream of rank 0 has puts to make. The end waits for them.
pub(super) fn deregistered() -> Outcome {
    const PUTS: u64 = 100;
    let program = Program::start()?;
    let (on, len) = (program.world.communicator(), 5000);
    for round in 0..10_u8 {
        let memory = on_device(&program, len);
        let window = share(&program, memory, len)?;
        let counts = signals(&program, Words::Device)?;
        let handle = program.app.stream(NON_BLOCKING_STREAM);
        let stream = program.describe(handle)?;
        if program.me == 1 {
            let address = memory.expose_provenance() as u64;
            on.recv(&mut [0_u8], 0, 1)?;
            // Both registrations, of which the second one is not used.
            drop(window);
            let last = round.wrapping_add(PUTS as u8);
            expect_bytes("at the end", &program.app.download(address, len), &vec![last; len])?;
            expect(counts.mine.load(0)?, PUTS)?;
            // Nobody writes the memory any more.
            program.app.upload(address, &vec![0x55; len]);
            on.send(&[0_u8], 0, 2)?;
            on.recv(&mut [0_u8], 0, 3)?;
            expect_bytes("after the end", &program.app.download(address, len), &vec![0x55; len])?;
            drop(counts);
            continue;
        }
        let (theirs, words) = (&window.theirs[1], &counts.theirs[1]);
        map(&stream, theirs, true)?;
        map(&stream, words, true)?;
        let (gate, source, fields) =
            (program.word()?, program.app.malloc(len), program.app.malloc(len * PUTS as usize));
        let values: Vec<u8> = (1..=PUTS).flat_map(|put| vec![round.wrapping_add(put as u8); len]).collect();
        program.app.upload(fields, &values);
        // The upload may return before the device has the data.
        program.app.download(fields, 1);
        let mut field = raw(source, len);
        stream.scope(|scope| -> Outcome {
            let field = scope.lend(&mut field)?;
            // SAFETY: the word is never freed.
            unsafe { stream.wait_value(gate.word(), 1, WaitCondition::GreaterOrEqual) }?;
            for put in 1..=PUTS {
                // A fill could wait for the stream.
                program.copy(handle, source, fields + (put - 1) * len as u64, len)?;
                scope.put(&field, theirs.at(0), set(words, 0, put))?;
            }
            expect(scope.put_path(&field, theirs.at(0), None)?, PutPath::Stream)?;
            on.send(&[0_u8], 1, 1)?;
            // The revocation comes.
            while scope.put_path(&field, theirs.at(0), None)? == PutPath::Stream {
                expect(on.iprobe(1, 2)?.is_none(), true)?;
            }
            for _ in 0..2000 {
                expect(on.iprobe(1, 2)?.is_none(), true)?;
            }
            gate.open(1);
            // It comes before the scope ends, though nothing else was added to the stream.
            on.recv(&mut [0_u8], 1, 2)?;
            Ok(())
        })?;
        stream.check()?;
        on.send(&[0_u8], 1, 3)?;
    }
    Ok(on.barrier()?)
}

/// Memory is registered, mapped, put into and freed again and again.
pub(super) fn again() -> Outcome {
    let program = Program::start()?;
    let (on, peer, len) = (program.world.communicator(), 1 - program.me, 1 << 20);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let source = program.app.malloc(len);
    let mut field = raw(source, len);
    for round in 0..150_u64 {
        let memory = on_device(&program, len);
        let window = share(&program, memory, len)?;
        let theirs = &window.theirs[peer as usize];
        let stream = program.describe(handle)?;
        map(&stream, theirs, true)?;
        on.barrier()?;
        stream.scope(|scope| -> Outcome {
            program.fill(handle, source, round as u8, len)?;
            Ok(scope.put(&scope.lend(&mut field)?, theirs.at(0), None)?)
        })?;
        stream.check()?;
        on.barrier()?;
        expect_bytes(
            "a round",
            &program.app.download(memory.expose_provenance() as u64, len),
            &vec![round as u8; len],
        )?;
        drop(window);
        program.app.cuMemFree(memory.expose_provenance() as u64).map_err(answered)?;
        on.barrier()?;
    }
    // Nothing stays mapped once the thread has closed the last mapping, which it does when a call wakes it.
    let calls = || Some((program.app.calls(c"cuIpcOpenMemHandle")?, program.app.calls(c"cuIpcCloseMemHandle")?));
    if sim_cuda::Vendor::tested() == sim_cuda::Vendor::Nvidia && calls().is_some_and(|(opened, _)| opened == 0) {
        return Err("no memory was mapped".into());
    }
    let stream = program.describe(handle)?;
    while calls().is_some_and(|(opened, closed)| opened != closed) {
        stream.scope(|_| ());
    }
    Ok(on.barrier()?)
}

/// Rank 1 dies while streams of rank 0 and 2 have puts to make.
pub(super) fn dies() -> Outcome {
    let program = Program::start()?;
    let (on, len) = (program.world.communicator(), 1 << 20);
    let window = share(&program, on_device(&program, len), len)?;
    let counts = signals(&program, Words::Device)?;
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    if program.me == 1 {
        // Makes progress while the others map.
        for rank in [0, 2] {
            on.recv(&mut [0_u8], rank, 1)?;
        }
        return kill_myself();
    }
    let (start, gate) = (Instant::now(), program.word()?);
    let stream = program.describe(handle)?;
    map(&stream, &window.theirs[1], alone())?;
    map(&stream, &counts.theirs[1], alone())?;
    let after = program.app.malloc(64);
    let mut field = raw(program.app.malloc(len), len);
    stream.scope(|scope| -> Outcome {
        let field = scope.lend(&mut field)?;
        // SAFETY: the word is never freed.
        unsafe { stream.wait_value(gate.word(), 1, WaitCondition::GreaterOrEqual) }?;
        for put in 1..=20 {
            scope.put(&field, window.theirs[1].at(0), set(&counts.theirs[1], 0, put))?;
        }
        program.fill(handle, after, 4, 64)?;
        on.send(&[0_u8], 1, 1)?;
        // The stream stands at the gate until the death is known.
        let error = loop {
            match scope.put_path(&field, window.theirs[1].at(0), None) {
                Err(error) => break error,
                Ok(_) => drop(on.iprobe(1, 9)),
            }
        };
        expect(is_dead(&error), true)?;
        expect(scope.put(&field, window.theirs[1].at(0), None).is_err_and(|error| is_dead(&error)), true)?;
        gate.open(1);
        Ok(program.app.cuStreamSynchronize(handle).map_err(answered)?)
    })?;
    while stream.check().is_err() {}
    expect_bytes("behind the puts", &program.app.download(after, 64), &[4; 64])?;
    expect(start.elapsed() < SOON, true)?;
    survived()
}
