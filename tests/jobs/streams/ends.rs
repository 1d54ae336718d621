//! Errors, deaths, and a thread that sleeps.

use std::ffi::{CStr, c_void};
use std::time::Instant;

use cableway::{EngineError, StreamRef, World};

use super::prepared::{expect_path, until_error};
use super::{Outcome, Program, expect, expect_bytes, raw};
use crate::device_programs::app::{App, Handle, NON_BLOCKING_STREAM};
use crate::faults::{kill_myself, survived};
use crate::support::SOON;

/// Messages that do not fit, calls that are refused, and what the stream does after them.
pub(super) fn errors() -> Outcome {
    let program = Program::start()?;
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    for len in [100, 100_000_usize] {
        let (large, small) = (program.app.malloc(len), program.app.malloc(len / 2));
        program.app.upload(large, &vec![7; len]);
        let (mut out, mut back) = (raw(large, len), raw(small, len / 2));
        stream.scope(|scope| -> Outcome {
            let (out, back) = (scope.lend(&mut out)?, scope.lend(&mut back)?);
            if program.me == 0 {
                scope.send(on, &out, peer, 1)?;
                scope.send(on, &out, peer, 1)?;
                scope.send(on, &out, peer, 2)?;
                return Ok(());
            }
            // By the request.
            let coming = scope.irecv(on, &back, peer, 1)?;
            let error = coming.finish().err().ok_or("a message was not truncated")?;
            expect(is_truncated(&error), true)?;
            // By the stream, once.
            scope.recv(on, &back, peer, 1)?;
            let error = loop {
                match stream.check() {
                    Err(error) => break error,
                    Ok(()) => std::thread::yield_now(),
                }
            };
            expect(is_truncated(&error), true)?;
            scope.recv(on, &out, peer, 2)?;
            Ok(())
        })?;
        stream.check()?;
        expect_bytes("after errors", &program.app.download(large, len), &vec![7; len])?;
        // An error that nobody was told at the end of a scope waits for the next call, which does nothing else.
        let (mut out, mut back) = (raw(large, len), raw(small, len / 2));
        stream.scope(|scope| -> Outcome {
            match program.me {
                0 => scope.send(on, &scope.lend(&mut out)?, peer, 3)?,
                _ => scope.recv(on, &scope.lend(&mut back)?, peer, 3)?,
            }
            Ok(())
        })?;
        let out = raw(large, len);
        stream.scope(|scope| -> Outcome {
            let lent = scope.lend_shared(&out)?;
            if program.me == 1 {
                let error = scope.send(on, &lent, peer, 4).err().ok_or("the call hid an error")?;
                return expect(is_truncated(&error), true);
            }
            // Wrong arguments add nothing.
            expect(scope.send(on, &lent, 2, 1).is_err(), true)?;
            expect(scope.send(on, &lent, peer, -1).is_err(), true)?;
            expect(scope.recv(on, &lent, peer, 1).is_err(), true)
        })?;
        // Nothing of it has come.
        expect(on.iprobe(peer, cableway::Any)?.is_none(), true)?;
        on.barrier()?;
    }
    Ok(())
}

fn is_truncated(error: &cableway::Error) -> bool {
    matches!(error.engine_error(), Some(EngineError::Truncated { .. }))
}

/// The thread looks for nothing while the program sends thousands of messages of its own.
pub(super) fn idle() -> Outcome {
    let program = Program::start()?;
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    expect(program.world.stream_thread(), None)?;
    let stream = program.describe(program.app.stream(NON_BLOCKING_STREAM))?;
    let mut byte = [program.me as u8];
    for _ in 0..3 {
        stream.scope(|scope| -> Outcome {
            let lent = scope.lend(&mut byte)?;
            if program.me == 0 {
                scope.send(on, &lent, peer, 1)?;
                Ok(scope.recv(on, &lent, peer, 1)?)
            } else {
                scope.recv(on, &lent, peer, 1)?;
                Ok(scope.send(on, &lent, peer, 1)?)
            }
        })?;
        expect(byte, [0])?;
        sleeps(&program)?;
    }
    Ok(())
}

/// Returns the thread's rounds once it sleeps. It looks for nothing meanwhile.
fn sleeps(program: &Program) -> Result<u64, Box<dyn std::error::Error>> {
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let asleep = |world: &World| world.stream_thread().filter(|(_, asleep)| *asleep).map(|(rounds, _)| rounds);
    while asleep(&program.world).is_none() {
        std::thread::yield_now();
    }
    // The rounds are read before the sleep is seen, so only now they are the last ones.
    let before = asleep(&program.world).ok_or("the thread was woken")?;
    for _ in 0..3000 {
        on.sendrecv(&[1_u8; 100], (peer, 2), &mut [0_u8; 100], (peer, 2))?;
    }
    expect(asleep(&program.world), Some(before))?;
    Ok(before)
}

/// Prepared operations exist, and no stream waits for one: the thread sleeps until a post wakes it.
pub(super) fn idle_beside_prepared() -> Outcome {
    let program = Program::start()?;
    let (on, peer, len) = (program.world.communicator(), 1 - program.me, 3000);
    let handle = program.app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    let (mut out, mut back) = (raw(program.app.malloc(len), len), raw(program.app.malloc(len), len));
    stream.scope(|scope| -> Outcome {
        let (out, back) = (scope.lend(&mut out)?, scope.lend(&mut back)?);
        let (there, here) = (scope.prepare_send(on, &out, peer, 1)?, scope.prepare_recv(on, &back, peer, 1)?);
        expect_path(&there, true)?;
        expect_path(&here, true)?;
        let mut last = sleeps(&program)?;
        for _ in 0..3 {
            for _ in 0..10 {
                match program.me {
                    0 => scope.post(&[&there, &here])?,
                    _ => scope.post(&[&here, &there])?,
                }
            }
            program.app.cuStreamSynchronize(handle).map_err(super::answered)?;
            let rounds = sleeps(&program)?;
            expect(rounds > last, true)?;
            last = rounds;
        }
        Ok(())
    })?;
    stream.check()?;
    Ok(on.barrier()?)
}

/// Streams of ranks 0 and 2 wait for messages of rank 1, which dies.
pub(super) fn dies() -> Outcome {
    let program = Program::start()?;
    let on = program.world.communicator();
    let handles = [program.app.stream(NON_BLOCKING_STREAM), program.app.stream(NON_BLOCKING_STREAM)];
    let streams = [program.describe(handles[0])?, program.describe(handles[1])?];
    let len = 50_000;
    let memory: Vec<u64> = (0..3).map(|_| program.app.malloc(len)).collect();
    if program.me == 1 {
        on.recv(&mut [0_u8], 0, 1)?;
        on.recv(&mut [0_u8], 2, 1)?;
        return kill_myself();
    }
    let start = Instant::now();
    let mut buffers: Vec<_> = memory.iter().map(|&address| raw(address, len)).collect();
    let [first, second, third] = &mut buffers[..] else { return Err("three buffers".into()) };
    let told = streams[0].scope(|scope| {
        streams[1].scope(|other| -> Result<[cableway::Error; 2], Box<dyn std::error::Error>> {
            let (first, second, third) = (scope.lend(first)?, other.lend(second)?, scope.lend(third)?);
            let coming = scope.irecv(on, &first, 1, 5)?;
            scope.recv(on, &third, 1, 6)?;
            other.recv(on, &second, 1, 7)?;
            on.send(&[0_u8], 1, 1)?;
            let by_request = coming.finish().err().ok_or("a message came from the dead")?;
            // The streams pass: work behind the waits is done.
            program.fill(handles[0], memory[2], 4, len)?;
            program.app.cuStreamSynchronize(handles[0]).map_err(super::answered)?;
            program.app.cuStreamSynchronize(handles[1]).map_err(super::answered)?;
            let by_call = loop {
                match other.recv(on, &second, 1, 8) {
                    Err(error) => break error,
                    Ok(()) => std::thread::yield_now(),
                }
            };
            Ok([by_request, by_call])
        })
    })?;
    for error in &told {
        expect(matches!(error.engine_error(), Some(EngineError::PeerFailed { peer: 1, .. })), true)?;
    }
    expect(start.elapsed() < SOON, true)?;
    expect_bytes("behind the wait", &program.app.download(memory[2], len), &vec![4; len])?;
    // The survivors' streams go on, after the errors that they have not told yet.
    for stream in &streams {
        while stream.check().is_err() {}
    }
    let (peer, mut mine) = (2 - program.me, raw(memory[0], len));
    program.app.upload(memory[0], &vec![program.me as u8 + 1; len]);
    streams[0].scope(|scope| -> Outcome {
        let lent = scope.lend(&mut mine)?;
        if program.me == 0 {
            scope.send(on, &lent, peer, 9)?;
            Ok(scope.recv(on, &lent, peer, 9)?)
        } else {
            scope.recv(on, &lent, peer, 9)?;
            Ok(scope.send(on, &lent, peer, 9)?)
        }
    })?;
    streams[0].check()?;
    expect_bytes("the survivors' data", &program.app.download(memory[0], len), &vec![1; len])?;
    survived()
}

/// The program destroys a context while a stream in it waits for a message that never comes.
pub(super) fn destroyed() -> Outcome {
    let program = Program::start()?;
    let (on, peer) = (program.world.communicator(), 1 - program.me);
    let primary = program.app.current();
    let context = program.app.create_context(0);
    let stream = program.describe(program.app.stream(NON_BLOCKING_STREAM))?;
    let other = {
        program.app.cuCtxSetCurrent(primary).map_err(super::answered)?;
        program.describe(program.app.stream(NON_BLOCKING_STREAM))?
    };
    let mut never = [0_u8];
    stream.scope(|scope| -> Outcome {
        let never = scope.lend(&mut never)?;
        let request = scope.irecv(on, &never, peer, 77)?;
        scope.wait(&mut [request])?;
        program.app.cuCtxDestroy(context).map_err(super::answered)?;
        // The end of the scope would wait for the receive.
        on.barrier()?;
        Ok(on.send(&[1_u8], peer, 77)?)
    })?;
    // Streams of other contexts work on.
    works_on(&program, &other)
}

const FAULT: &CStr =
    c".version 6.3\n.target sm_52\n.address_size 64\n.visible .entry fault()\n{\n    trap;\n    ret;\n}\n";

/// A kernel that faults. It is loaded before streams wait.
pub(super) struct Fault(Handle);

impl Fault {
    pub(super) fn load(app: &App) -> Result<Fault, Box<dyn std::error::Error>> {
        let (mut module, mut function) = (0, 0);
        app.cuModuleLoadData(&raw mut module, FAULT.as_ptr()).map_err(super::answered)?;
        app.cuModuleGetFunction(&raw mut function, module, c"fault".as_ptr()).map_err(super::answered)?;
        Ok(Fault(function))
    }

    pub(super) fn launch(&self, app: &App, stream: Handle) -> Outcome {
        let none = std::ptr::null_mut::<c_void>();
        let launched = app.cuLaunchKernel(self.0, 1, 1, 1, 1, 1, 1, 0, stream, none.cast(), none.cast());
        Ok(launched.map_err(super::answered)?)
    }
}

/// A kernel of the program faults, which ends all device work of the process, while a stream has a message to send.
pub(super) fn faulted() -> Outcome {
    let program = Program::start()?;
    let (app, on, peer) = (&program.app, program.world.communicator(), 1 - program.me);
    app.create_context(0);
    let handle = app.stream(NON_BLOCKING_STREAM);
    let stream = program.describe(handle)?;
    let fault = Fault::load(app)?;
    let (mut late, mut out) = ([0_u8], [6_u8]);
    stream.scope(|scope| -> Outcome {
        let (late, out) = (scope.lend(&mut late)?, scope.lend(&mut out)?);
        // The stream waits for a message. The kernel behind it faults once that has come.
        scope.recv(on, &late, peer, 77)?;
        fault.launch(app, handle)?;
        let behind = scope.isend(on, &out, peer, 78)?;
        scope.send(on, &out, peer, 78)?;
        on.barrier()?;
        on.send(&[1_u8], peer, 77)?;
        let error = behind.finish().err().ok_or("the stream sent a message after a fault")?;
        expect(matches!(error.engine_error(), Some(EngineError::StreamContext(_))), true)
    })?;
    // The error of the message without a request.
    let error = until_error(|| stream.check().err());
    expect(matches!(error.engine_error(), Some(EngineError::StreamContext(_))), true)?;
    expect(late, [1])?;
    expect(on.iprobe(peer, 78)?.is_none(), true)?;
    // A driver does no more work of this process, in whichever context. Messages of host memory go on.
    let mut word = [0_u8];
    on.sendrecv(&[program.me as u8 + 7], (peer, 79), &mut word, (peer, 79))?;
    expect(word, [peer as u8 + 7])
}

/// Sends a byte there and back by a stream of another context.
fn works_on(program: &Program, other: &StreamRef) -> Outcome {
    let (on, peer, mut word) = (program.world.communicator(), 1 - program.me, [5_u8]);
    other.scope(|scope| -> Outcome {
        let lent = scope.lend(&mut word)?;
        let mut requests = [scope.isend(on, &lent, peer, 1)?];
        scope.wait(&mut requests)?;
        Ok(scope.recv(on, &lent, peer, 1)?)
    })?;
    expect(word, [5])
}
