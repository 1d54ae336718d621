//! Where the data of an exchange is.

use cableway_common_cuda::OneShot as Lines;
use smallvec::SmallVec;

use crate::plan::one_shot::{Folded, OneShot, Sent};
use crate::plan::{Combine, Place};
use crate::run::scene::Scene;
use crate::slots::Turn;

/// The addresses and lengths of an exchange.
pub(super) struct Lists {
    me: usize,
    sends: SmallVec<[(*const u8, u32); 8]>,
    receives: SmallVec<[(*mut u8, u32); 8]>,
    /// Where segments begin in a slot. Empty if all ranks read one segment.
    places: SmallVec<[u32; 8]>,
}

impl Lists {
    /// Lists the data where the rank works.
    pub(super) fn of(scene: &Scene<'_>, shot: &OneShot) -> Lists {
        let address = |place: Place| scene.site.address(place);
        let sends = shot.sent.blocks().iter();
        let sends = sends.map(|block| (address(block.place).cast_const(), block.count as u32)).collect();
        let receives = shot.receives.iter();
        let receives =
            receives.map(|&(place, len)| (place.map_or(std::ptr::null_mut(), address), len as u32)).collect();
        Lists::at(scene, shot, sends, receives)
    }

    /// Lists data that is elsewhere.
    pub(super) fn at(
        scene: &Scene<'_>,
        shot: &OneShot,
        sends: SmallVec<[(*const u8, u32); 8]>,
        receives: SmallVec<[(*mut u8, u32); 8]>,
    ) -> Lists {
        let places = match &shot.sent {
            Sent::ToAll(_) => SmallVec::new(),
            Sent::ToEach { places, .. } => places.iter().copied().collect(),
        };
        Lists { me: scene.on.rank() as usize, sends, receives, places }
    }

    /// Describes the exchange of a turn.
    pub(super) fn lines<'l>(&'l self, turn: &Turn) -> Lines<'l> {
        Lines {
            layout: turn.layout(),
            me: self.me,
            number: turn.number(),
            places: (!self.places.is_empty()).then_some(&self.places[..]),
            sends: &self.sends,
            receives: &self.receives,
        }
    }

    /// Copies this rank's own data to where it is received.
    ///
    /// # Safety
    /// Both are in host memory of the lengths of the lists.
    pub(super) unsafe fn keep(&self) {
        let (to, len) = self.receives[self.me];
        let from = if self.places.is_empty() { self.sends[0].0 } else { self.sends[self.me].0 };
        if !to.is_null() {
            // SAFETY: the caller's promise. They may be the same.
            unsafe { std::ptr::copy(from, to, len as usize) };
        }
    }

    /// Returns the reduction of an exchange, if it reduces something here.
    pub(super) fn reduction<'s>(&self, scene: &Scene<'_>, shot: &'s OneShot) -> Option<(&'s Folded, Combine)> {
        shot.reduction.as_ref().filter(|folded| folded.elements != 0).zip(scene.plan.combine)
    }

    /// Returns the output and the sources of a reduction, in the order of the ranks.
    pub(super) fn operands(&self, scene: &Scene<'_>, folded: &Folded) -> (*mut u8, SmallVec<[*const u8; 8]>) {
        let own = scene.site.address(folded.own).cast_const();
        let source = |&(address, _): &(*mut u8, u32)| if address.is_null() { own } else { address.cast_const() };
        (scene.site.address(folded.output), self.receives.iter().map(source).collect())
    }
}
