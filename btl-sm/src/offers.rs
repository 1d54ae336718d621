//! The own offers of an endpoint, and its claims of the peer's offers.

use cableway_btl::Offer;

use crate::ring::{Corrupt, offer};
use crate::segment::{Memory, OFFERS};

/// The words in use for one peer. An offer is identified by its word, in the lowest 3 bits, and by the number of
/// earlier offers.
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

/// Claims an offer in the peer's segment. Any 64 bits are accepted as an offer.
pub(crate) fn claim(memory: &Memory, place: impl Fn(usize) -> usize, offer: Offer) -> bool {
    let (index, generation) = parts(offer);
    offer::claim(memory.word(place(index)), generation)
}

fn parts(Offer(bits): Offer) -> (usize, u64) {
    (bits as usize % OFFERS, bits >> 3)
}
