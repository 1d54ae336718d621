//! The messages of an exchange between two ranks, by their numbers:
//!
//! ```text
//! 0  offer   | input: handle of 144 bytes | output: handle of 144 bytes | blocks: 64 bytes | whole: 1 byte, 0 or 1 |
//!                353 bytes, zeros for memory not exposed
//! 1  answer  | flags: 1 byte |
//! 2  data    this rank's input of the other rank's share
//! 3  data    the result of the sender's share
//! 4  data    a rank's own block, to itself
//! ```
//!
//! `blocks` says where the data is in the input, if that has gaps: | offset: i64 | block: u64 | counts: 3 x u64 |
//! strides: 3 x i64 |, as in a header of the engine. Zeros say that the data is one run.
//!
//! Two ranks that both set `whole` reduce everything, each for itself, and store nothing in the other one's memory. Then
//! message 2 brings the whole input.
//!
//! Each rank sends an offer to each other one, which answers. An answer may ask for data. The last one, without a flag, says
//! that the sender accesses the memory no more. A message without data takes the place of every message that a rank which
//! has failed owes.

use cableway_pml::{PeerBlocks, PeerHandle};

pub(super) const OFFER: u32 = 0;
pub(super) const ANSWER: u32 = 1;
pub(super) const INPUT: u32 = 2;
pub(super) const RESULT: u32 = 3;
pub(super) const OWN: u32 = 4;

pub(super) const OFFER_LEN: usize = 2 * PeerHandle::LEN + PeerBlocks::LEN + 1;
const _: () = assert!(OFFER_LEN == 353);
pub(super) const ANSWER_LEN: usize = 1;

/// Memory that another rank may map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) input: Option<PeerHandle>,
    /// The places of the data in the input, if it has gaps.
    pub(super) blocks: Option<PeerBlocks>,
    pub(super) output: Option<PeerHandle>,
    /// The sender would reduce everything for itself.
    pub(super) whole: bool,
}

impl Offer {
    pub(super) fn to_bytes(self) -> [u8; OFFER_LEN] {
        let mut bytes = [0; OFFER_LEN];
        let (input, rest) = bytes.split_at_mut(PeerHandle::LEN);
        let (output, rest) = rest.split_at_mut(PeerHandle::LEN);
        let (blocks, whole) = rest.split_at_mut(PeerBlocks::LEN);
        whole[0] = u8::from(self.whole);
        if let Some(described) = self.blocks {
            blocks.copy_from_slice(&described.to_bytes());
        }
        for (place, handle) in [(input, self.input), (output, self.output)] {
            if let Some(handle) = handle {
                place.copy_from_slice(&handle.to_bytes());
            }
        }
        bytes
    }

    /// Input whose blocks are impossible counts as not exposed.
    pub(super) fn parse(bytes: &[u8; OFFER_LEN]) -> Offer {
        let (input, rest) = bytes.split_at(PeerHandle::LEN);
        let (output, rest) = rest.split_at(PeerHandle::LEN);
        let (described, whole) = rest.split_at(PeerBlocks::LEN);
        let blocks = PeerBlocks::parse(described);
        let possible = blocks.is_some() || described.iter().all(|&byte| byte == 0);
        let input = PeerHandle::parse(input).filter(|_| possible);
        Offer { input, blocks, output: PeerHandle::parse(output), whole: whole[0] == 1 }
    }
}

/// What a rank asks of the owner of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Send the input by a message.
    pub(super) input: bool,
    /// Receive the result by a message.
    pub(super) result: bool,
}

impl Wanted {
    /// Whether this is the last answer.
    pub(super) fn is_nothing(self) -> bool {
        self == Wanted::default()
    }

    pub(super) fn to_bytes(self) -> [u8; ANSWER_LEN] {
        [u8::from(self.input) | u8::from(self.result) << 1]
    }

    /// Returns `None` for an unknown flag.
    pub(super) fn parse([flags]: [u8; ANSWER_LEN]) -> Option<Wanted> {
        (flags < 4).then_some(Wanted { input: flags & 1 != 0, result: flags & 2 != 0 })
    }
}

/// Parses the messages, and writes them again. For fuzzers.
pub(crate) fn recode(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk::<ANSWER_LEN>()
        && let Some(wanted) = Wanted::parse(*bytes)
    {
        assert_eq!(wanted.to_bytes(), *bytes);
    }
    let Some(bytes) = bytes.first_chunk::<OFFER_LEN>() else { return };
    let offer = Offer::parse(bytes);
    assert_eq!(Offer::parse(&offer.to_bytes()), offer);
    let Some(blocks) = offer.blocks else { return };
    // Numbers that the receiver may compare the blocks with.
    let [a, b, ..] = *bytes;
    for (memory, data) in [(usize::from(a), u64::from(b)), (usize::MAX, 1 << (b % 64))] {
        if let Some(blocks) = blocks.within(memory, data) {
            let inside = |(low, len): (i64, u64)| low >= 0 && low as u64 + len <= memory as u64;
            assert!(blocks.size() == Some(data) && blocks.span().is_some_and(inside));
        }
    }
}

#[cfg(test)]
mod tests {
    use cableway_common_cuda::Strided;

    use super::*;
    use crate::random::Random;

    /// A handle of one byte.
    const HANDLE: [u8; 9] = [7, 0, 0, 0, 1, 1, 0, 0, 9];

    #[test]
    fn messages_are_what_their_bytes_say() {
        for flags in 0..=u8::MAX {
            let wanted = Wanted::parse([flags]);
            assert_eq!(wanted.map(Wanted::to_bytes), (flags < 4).then_some([flags]));
        }
        assert_eq!(Offer::parse(&[0; OFFER_LEN]), Offer::default());
        let mut bytes = [0; OFFER_LEN];
        // A handle of one byte, for the output.
        bytes[PeerHandle::LEN..][..9].copy_from_slice(&HANDLE);
        let offer = Offer::parse(&bytes);
        assert!(offer.input.is_none() && offer.output.is_some() && offer.blocks.is_none() && !offer.whole);
        assert_eq!(offer.to_bytes(), bytes);
        bytes[OFFER_LEN - 1] = 1;
        assert_eq!(Offer::parse(&bytes), Offer { whole: true, ..offer });
        assert_eq!(Offer { whole: true, ..offer }.to_bytes(), bytes);
    }

    #[test]
    fn an_offer_says_where_the_data_is() {
        let mut bytes = [0; OFFER_LEN];
        bytes[..9].copy_from_slice(&HANDLE);
        let run = Offer::parse(&bytes);
        assert!(run.input.is_some() && run.blocks.is_none());
        let strided = Strided { offset: 64, block: 16, dimensions: [(3, 48), (2, -64), (1, 0)] };
        let blocks = Offer { blocks: Some(PeerBlocks::new(strided)), ..run };
        assert_eq!(Offer::parse(&blocks.to_bytes()), blocks);
        let before_the_memory = Some(PeerBlocks::new(Strided { offset: 63, ..strided }));
        let impossible = Offer { blocks: before_the_memory, ..run };
        assert_eq!(Offer::parse(&impossible.to_bytes()), Offer { input: None, blocks: None, ..run });
    }

    #[test]
    fn no_bytes_of_a_peer_do_harm() {
        let mut random = Random(1);
        for round in 0..20_000 {
            let mut bytes = [0; OFFER_LEN];
            for word in bytes.chunks_exact_mut(8) {
                // Small numbers often describe blocks that are possible.
                let number = if round % 2 == 0 { random.next() % 16 } else { random.next() };
                word.copy_from_slice(&number.to_le_bytes());
            }
            recode(&bytes);
            recode(&bytes[..round % OFFER_LEN]);
        }
    }
}
