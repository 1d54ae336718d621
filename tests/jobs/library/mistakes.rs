//! Calls with wrong arguments, and the texts of the errors.

use std::error::Error;

use cableway::{Communicator, Datatype, EngineError, Predefined, TypedSlice, World};

use super::{Outcome, expect};

pub(super) fn mistakes() -> Outcome {
    let world = World::init()?;
    let (on, peer) = (world.communicator(), 1 - world.rank());
    let text = |result: Result<_, cableway::Error>| result.map(drop).map_err(|error| error.to_string());
    let error = text(on.send(&[1_u64, 2], 7, 3).map(|()| 0)).err().unwrap_or_default();
    expect(
        error.contains("send of 16 bytes to rank 7, tag 3") && error.contains("invalid rank 7: there are 2 ranks"),
        true,
    )
    .map_err(|_| error)?;
    let error = text(on.send(&[1_u8], peer, -3).map(|()| 0)).err().unwrap_or_default();
    expect(error.contains("tag -3"), true).map_err(|_| error)?;
    expect(on.recv(&mut [0_u8], peer, -16).is_err(), true)?;
    // A message that is too long fills the buffer and is an error. The next message is not affected.
    for len in [100_usize, 300_000] {
        on.scope(|scope| {
            let (long, short) = (scope.isend(LONG.get(..len).unwrap_or(LONG), peer, 4)?, scope.isend(&[9_u8], peer, 4)?);
            let mut inbox = vec![0_u8; 64];
            let error = on.recv(&mut inbox, peer, 4).err().ok_or("a truncated message is no error")?;
            let truncated = matches!(error.engine_error(), Some(EngineError::Truncated { sent, capacity: 64, .. }) if *sent == len as u64);
            expect(truncated && inbox.iter().all(|&byte| byte == 3), true).map_err(|_| error)?;
            expect(on.recv_vec::<u8>(peer, 4)?.0, vec![9])?;
            long.wait()?;
            short.wait()?;
            Ok::<_, Box<dyn Error>>(())
        })?;
    }
    expect(on.send(&[1_u8, 2, 3], peer, 5).is_ok(), true)?;
    let error = on.recv_vec::<u16>(peer, 5).map(drop).err().map(|error| error.to_string()).unwrap_or_default();
    expect(error.contains("3 bytes"), true).map_err(|_| error)?;
    no_memory_for_a_message(on, world.rank())?;
    if World::init().is_ok() {
        return Err("a process joined its job twice".into());
    }
    Ok(on.barrier()?)
}

/// A message of 2^60 bytes. The sender has a mebibyte and sends it repeatedly.
fn no_memory_for_a_message(on: &Communicator, me: u32) -> Outcome {
    let memory = vec![0_u8; 1 << 20];
    let mebibyte = Datatype::contiguous(memory.len() as i64, &Predefined::Byte.datatype())?;
    let layout = Datatype::resized(&mebibyte, 0, 0)?.commit();
    let error = if me == 0 {
        on.send(&TypedSlice::new(&memory, 1 << 40, &layout)?, 1, 6)
    } else {
        on.recv_vec::<u8>(0, 6).map(drop)
    };
    let error = error.err().ok_or("there is no room for such a message")?.to_string();
    let reason = if me == 0 { "discarded" } else { "no memory for a message of 1152921504606846976 bytes" };
    expect(error.contains(reason), true).map_err(|_| error)?;
    // The next message is received normally.
    let next = if me == 0 { on.send(&[4_u8], 1, 6).map(|()| vec![4]) } else { on.recv_vec(0, 6).map(|next| next.0) };
    expect(next?, vec![4_u8])
}

static LONG: &[u8] = &[3; 300_000];
