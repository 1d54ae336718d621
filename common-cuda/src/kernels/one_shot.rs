//! The argument of an exchange through slots, as kernels/one_shot.h declares it.

use crate::one_shot::{MOST_SLOTS, OneShot};

/// How often a kernel reads a line that has not come: some tens of microseconds, because a read of host memory takes about
/// one. Longer waits are the host's.
const PATIENCE: u32 = 32;

/// An exchange for a kernel.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Shot {
    /// 0 if nothing is exchanged.
    slots: u64,
    from: [u64; MOST_SLOTS],
    to: [u64; MOST_SLOTS],
    sent: [u32; MOST_SLOTS],
    received: [u32; MOST_SLOTS],
    places: [u32; MOST_SLOTS],
    slot: u32,
    ranks: u32,
    me: u32,
    number: u32,
    shared: u32,
    patience: u32,
}
const _: () = assert!(size_of::<Shot>() == 480);

impl Shot {
    pub(super) const NOTHING: Shot = Shot {
        slots: 0,
        from: [0; MOST_SLOTS],
        to: [0; MOST_SLOTS],
        sent: [0; MOST_SLOTS],
        received: [0; MOST_SLOTS],
        places: [0; MOST_SLOTS],
        slot: 0,
        ranks: 0,
        me: 0,
        number: 0,
        shared: 0,
        patience: 0,
    };

    /// Describes an exchange of at most [`MOST_SLOTS`] ranks. `memory` is the device address of the slots' memory.
    pub(super) fn new(shot: &OneShot<'_>, memory: u64) -> Shot {
        let mut told = Shot {
            slots: memory + shot.layout.offset as u64,
            slot: shot.layout.slot as u32,
            ranks: shot.receives.len() as u32,
            me: shot.me as u32,
            number: shot.number,
            shared: u32::from(shot.places.is_none()),
            patience: PATIENCE,
            ..Shot::NOTHING
        };
        for (rank, &(address, len)) in shot.sends.iter().enumerate() {
            (told.from[rank], told.sent[rank]) = (address as u64, len);
        }
        for (rank, &(address, len)) in shot.receives.iter().enumerate() {
            (told.to[rank], told.received[rank]) = (address as u64, len);
        }
        for (rank, &place) in shot.places.unwrap_or(&[]).iter().enumerate() {
            told.places[rank] = place;
        }
        told
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.slots == 0
    }
}
