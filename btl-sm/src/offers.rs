//! The offers of an endpoint to its peer, and its claims.

use cableway_btl::Offer;

use crate::ring::{Corrupt, offer};
use crate::segment::{Memory, OFFERS};

/// Which of the words for one peer are in use. An offer is named by its word, in the lowest 3 bits, and by how many were
/// made before it.
#[derive(Default)]
pub(crate) struct Offers {
    in_use: [bool; OFFERS],
    made: u64,
}

const _: () = assert!(OFFERS == 1 << 3);

impl Offers {
    /// Makes an offer in this process's segment, in one of the words that `place` yields the offsets of.
    pub(crate) fn make(&mut self, memory: &Memory, place: impl Fn(usize) -> usize) -> Option<Offer> {
        let index = self.in_use.iter().position(|&in_use| !in_use)?;
        self.in_use[index] = true;
        self.made += 1;
        offer::make(memory.word(place(index)), self.made);
        Some(Offer(self.made << 3 | index as u64))
    }

    /// Ends an offer.
    pub(crate) fn withdraw(
        &mut self,
        memory: &Memory,
        place: impl Fn(usize) -> usize,
        offer: Offer,
    ) -> Result<bool, Corrupt> {
        let (index, generation) = parts(offer);
        self.in_use[index] = false;
        offer::withdraw(memory.word(place(index)), generation)
    }
}

/// Claims an offer of the peer's, whose segment this is. Any 64 bits may be said to be one.
pub(crate) fn claim(memory: &Memory, place: impl Fn(usize) -> usize, offer: Offer) -> bool {
    let (index, generation) = parts(offer);
    offer::claim(memory.word(place(index)), generation)
}

fn parts(Offer(bits): Offer) -> (usize, u64) {
    (bits as usize % OFFERS, bits >> 3)
}
