//! Requests in scopes, and persistent ones.

use std::error::Error;

use cableway::World;

use super::{Outcome, SIZES, expect, values};

pub(super) fn scopes() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let out: Vec<_> = SIZES.into_iter().enumerate().map(|(number, len)| values(me, number, len)).collect();
    let mut inbox: Vec<_> = SIZES.map(|len| vec![0_u32; len]).into();
    on.scope(|scope| {
        let mut receives = Vec::new();
        for (number, room) in inbox.iter_mut().enumerate() {
            receives.push(scope.irecv(room, peer, number as i32)?);
        }
        let sends: Vec<_> = out
            .iter()
            .enumerate()
            .map(|(number, data)| scope.isend(data, peer, number as i32))
            .collect::<Result<_, _>>()?;
        while let Some(index) = scope.wait_any(&receives) {
            let request = receives.swap_remove(index);
            if !request.is_complete() {
                return Err("a request that was waited for is not complete".into());
            }
            let status = request.wait()?;
            expect(status.bytes, 4 * SIZES[status.tag as usize] as u64)?;
        }
        for (number, send) in sends.into_iter().enumerate() {
            let status = send.wait()?;
            expect((status.source, status.tag), (peer, number as i32))?;
        }
        Ok::<_, Box<dyn Error>>(())
    })?;
    for (number, (found, len)) in inbox.iter().zip(SIZES).enumerate() {
        expect(found, &values(peer, number, len))?;
    }
    // A synchronous send completes only after a receive has matched it.
    let (data, mut room) = ([7_u8; 3], [0_u8; 3]);
    on.scope(|scope| {
        let send = scope.issend(&data, peer, 100)?;
        expect(send.is_complete(), false)?;
        on.barrier()?;
        on.recv(&mut room, peer, 100)?;
        send.wait()?;
        Ok::<_, Box<dyn Error>>(())
    })?;
    // An unmatched receive is cancelled, a matched one is not.
    let (mut never, mut matched) = ([0_u8; 1], [0_u8; 1]);
    on.scope(|scope| {
        let never = scope.irecv(&mut never, peer, 101)?;
        let matched = scope.irecv(&mut matched, peer, 102)?;
        on.send(&[1_u8], peer, 102)?;
        // Messages between two ranks keep their order: after this, tag 102 has arrived.
        on.barrier()?;
        expect(never.cancel()?, None)?;
        expect(matched.cancel()?.map(|status| status.tag), Some(102))
    })?;
    expect(matched, [1])
}

/// The end of a scope waits for the operations of dropped and leaked requests.
pub(super) fn leak() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for len in [10, 1000, 300_000] {
        let (out, mut inbox) = (values(me, len, len), vec![0_u32; len]);
        on.scope(|scope| {
            let _leaked = std::mem::ManuallyDrop::new(scope.irecv(&mut inbox, peer, 0)?);
            let _dropped = scope.isend(&out, peer, 0)?;
            Ok::<_, cableway::Error>(())
        })?;
        expect(&inbox, &values(peer, len, len))?;
    }
    // A panic within the scope cancels unmatched receives instead of waiting for them forever.
    let mut inbox = [0_u8; 8];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        on.scope(|scope| {
            let _leaked = scope.irecv(&mut inbox, peer, 1);
            panic!("this panic is part of the test");
        })
    }));
    expect(panicked.is_err(), true)?;
    Ok(on.barrier()?)
}

pub(super) fn persistent() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for len in [0, 100, 100_000] {
        let (mut out, mut inbox) = (vec![0_u32; len], vec![0_u32; len]);
        on.scope(|scope| {
            let mut send = scope.send_init(&mut out, peer, 3)?;
            let mut receive = scope.recv_init(&mut inbox, peer, 3)?;
            for round in 0..10 {
                send.buffer_mut()
                    .ok_or("an inactive request keeps its buffer")?
                    .copy_from_slice(&values(me, round, len));
                receive.start()?;
                send.start()?;
                let status = receive.wait()?;
                expect(status.bytes, 4 * len as u64)?;
                let status = send.wait()?;
                expect((status.source, status.tag, status.bytes), (peer, 3, 4 * len as u64))?;
                expect(receive.buffer(), Some(&values(peer, round, len)))?;
            }
            // Under way until the peer replies below: the program cannot access the buffer meanwhile.
            receive.start()?;
            expect(receive.buffer().is_none() && receive.start().is_err(), true)?;
            on.barrier()?;
            send.start()?;
            send.wait()?;
            receive.wait()?;
            Ok::<_, Box<dyn Error>>(())
        })?;
    }
    Ok(())
}
