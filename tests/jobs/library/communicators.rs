//! Communicators whose messages stay apart.

use cableway::{Any, World};

use super::{Outcome, expect};

pub(super) fn communicators() -> Outcome {
    let world = World::init()?;
    let (on, me) = (world.communicator(), world.rank());
    let (next, previous) = ((me + 1) % 4, (me + 3) % 4);
    // The same source and tag on three communicators, received in another order than sent.
    let copies = [on.dup()?, on.dup()?];
    let all = [on, &copies[0], &copies[1]];
    for (number, on) in all.into_iter().enumerate() {
        on.send(&[10 * me + number as u32], next, 0)?;
    }
    for (number, on) in all.into_iter().enumerate().rev() {
        let mut inbox = [0];
        on.recv(&mut inbox, Any, Any)?;
        expect(inbox, [10 * previous + number as u32])?;
    }
    // Even and odd ranks, in reverse order; rank 3 takes no part.
    let half = on.split((me != 3).then_some(me % 2), -(me as i32))?;
    match (&half, me) {
        (None, 3) => {}
        (Some(half), 0 | 2) => {
            expect((half.group(), half.rank()), (&[2, 0][..], u32::from(me == 0)))?;
            let mut inbox = [0];
            let other = 1 - half.rank();
            half.sendrecv(&[me], (other, 0), &mut inbox, (other, 0))?;
            expect(inbox, [2 - me])?;
            // A communicator of a communicator.
            let again = half.dup()?;
            expect(again.group(), half.group())?;
            again.barrier()?;
        }
        (Some(half), 1) => expect(half.group(), &[1][..])?,
        (half, _) => return Err(format!("{half:?}").into()),
    }
    // Communicators are created and freed. Messages that were not received on one do not arrive on the next.
    for round in 0..100 {
        let copy = on.dup()?;
        copy.send(&[round], next, 1)?;
        if round % 2 == 0 {
            let mut inbox = [u32::MAX];
            copy.recv(&mut inbox, previous, 1)?;
            expect(inbox, [round])?;
        }
    }
    Ok(on.barrier()?)
}
