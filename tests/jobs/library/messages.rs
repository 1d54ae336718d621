//! Messages in every mode and size, to other ranks and to oneself.

use cableway::{Any, AttachedBuffer, Communicator, World};

use super::{Outcome, SIZES, expect, values};

pub(super) fn modes() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for (number, len) in SIZES.into_iter().enumerate() {
        let (out, mut inbox) = (values(me, number, len), vec![0; len]);
        for mode in ["standard", "synchronous", "ready", "buffered"] {
            let room = AttachedBuffer::new(&world, len * 4 + AttachedBuffer::OVERHEAD);
            let send = |on: &Communicator| match mode {
                "standard" => on.send(&out, peer, 5),
                "synchronous" => on.ssend(&out, peer, 5),
                "ready" => on.rsend(&out, peer, 5),
                _ => on.bsend(&out, peer, 5, &room),
            };
            inbox.fill(0);
            if me == 0 {
                send(on)?;
                on.recv(&mut inbox, peer, 5)?;
            } else {
                let status = on.recv(&mut inbox, peer, 5)?;
                expect((status.source, status.tag, status.count::<u32>()), (peer, 5, Some(len as u64)))?;
                send(on)?;
            }
            expect(&inbox, &values(peer, number, len))?;
        }
        // Both ranks send first. Only the attached buffer prevents a deadlock.
        let room = AttachedBuffer::new(&world, len * 4 + AttachedBuffer::OVERHEAD);
        on.bsend(&out, peer, 6, &room)?;
        on.recv(&mut inbox, peer, 6)?;
        expect(&inbox, &values(peer, number, len))?;
        inbox.fill(0);
        on.sendrecv(&out, (peer, 7), &mut inbox, (peer, 7))?;
        expect(&inbox, &values(peer, number, len))?;
    }
    Ok(())
}

pub(super) fn wildcards() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    if world.rank() != 0 {
        for number in 0..10 {
            on.send(&values(world.rank(), number, 50 * number), 0, number as i32)?;
        }
        on.barrier()?;
        return Ok(());
    }
    let mut counts = [0; 3];
    for _ in 0..5 * 2 {
        let mut inbox = vec![0_u32; 450];
        let status = on.recv(&mut inbox, Any, Any)?;
        let number = counts[status.source as usize];
        expect(status.tag, number)?;
        let len = status.count::<u32>().ok_or("a part of a number arrived")? as usize;
        expect(&inbox[..len], &values(status.source, number as usize, 50 * number as usize))?;
        counts[status.source as usize] += 1;
    }
    for source in [1, 2] {
        let first = counts[source as usize];
        // Receive by tag, out of order.
        for number in (first..10).rev() {
            let probed = on.probe(source, number)?;
            expect(on.iprobe(source, Any)?.map(|status| status.tag), Some(first))?;
            let message = on.mprobe(source, number)?;
            expect(message.status(), probed)?;
            expect(on.iprobe(source, number)?, None)?;
            let mut inbox = vec![0_u32; 50 * number as usize];
            message.recv(&mut inbox)?;
            expect(&inbox, &values(source, number as usize, 50 * number as usize))?;
            if number == first {
                break;
            }
        }
    }
    expect(on.improbe(Any, Any)?.is_none(), true)?;
    on.barrier()?;
    Ok(())
}

pub(super) fn all_to_all() -> Outcome {
    let world = World::init()?;
    let (on, me, size) = (world.communicator(), world.rank(), world.size());
    for len in [1, 3000, 50_000] {
        let out: Vec<_> = (0..size).map(|to| values(me, to as usize, len)).collect();
        let mut inbox = vec![vec![0_u32; len]; size as usize];
        on.scope(|scope| {
            let mut requests = Vec::new();
            for (from, room) in (0..).zip(&mut inbox) {
                requests.push(scope.irecv(room, from, 0)?);
            }
            for (to, data) in (0..).zip(&out) {
                requests.push(scope.isend(data, to, 0)?);
            }
            requests.into_iter().try_for_each(|request| request.wait().map(drop))
        })?;
        for (from, found) in (0..).zip(&inbox) {
            expect(found, &values(from, me as usize, len))?;
        }
    }
    Ok(on.barrier()?)
}

pub(super) fn oneself() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    on.barrier()?;
    for len in SIZES {
        let (out, mut inbox) = (values(0, len, len), vec![0_u32; len]);
        on.sendrecv(&out, (0, 0), &mut inbox, (0, 0))?;
        expect(&inbox, &out)?;
    }
    on.send(&[5_u8], 0, 9)?;
    expect(on.recv_vec::<u8>(Any, Any)?.0, vec![5])?;
    let copy = on.dup()?;
    expect(copy.iprobe(Any, Any)?, None)
}

pub(super) fn large() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let out = values(0, 1, 40 << 20);
    if world.rank() == 0 {
        on.send(&out, 1, 0)?;
    } else {
        let mut inbox = vec![0_u32; out.len()];
        on.recv(&mut inbox, 0, 0)?;
        expect(inbox == out, true)?;
    }
    Ok(())
}
