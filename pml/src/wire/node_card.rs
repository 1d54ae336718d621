//! The card with which a process tells all others which node it is on, and what messages cost there.
//!
//! It holds only what the process knows when it starts. So it never changes, and all processes read the same.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number of size classes with measured costs: from 16 KiB on, each twice the last.
pub(crate) const CLASSES: usize = 12;

/// What messages of host memory cost over some route, as estimated without a peer. Both are 0 if there is no route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteCost {
    /// Nanoseconds of a small message.
    pub latency: u32,
    /// Picoseconds of each byte.
    pub each: u32,
}

/// What a process published of its node when it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeCard {
    /// The identity of its node, if it is known. Processes with the same one are on one node.
    pub node: Option<[u8; 16]>,
    /// Estimates for messages to processes on its node.
    pub within: RouteCost,
    /// Estimates for messages to other nodes.
    pub between: RouteCost,
    /// Measured picoseconds of each byte of messages within the node, by size: entry `i` is for messages of `16 KiB << i`
    /// up to twice that. 0 is unknown.
    pub measured: [u32; CLASSES],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 4],
    version: U32,
    /// All zero if unknown.
    node: [u8; 16],
    within: [U32; 2],
    between: [U32; 2],
    measured: [U32; CLASSES],
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Layout, node) == 8 && offset_of!(Layout, within) == 24 && offset_of!(Layout, between) == 32);
    assert!(offset_of!(Layout, measured) == 40 && size_of::<Layout>() == 88);
};

const MAGIC: [u8; 4] = *b"cwnd";
const VERSION: u32 = 1;

/// More picoseconds for a byte, or nanoseconds for a message, are no plausible cost: 1 MB/s and 1 s.
const MOST_EACH: u32 = 1_000_000;
const MOST_LATENCY: u32 = 1_000_000_000;

impl NodeCard {
    pub(crate) const KEY: &'static str = "node";

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let route = |route: RouteCost| [route.latency.into(), route.each.into()];
        let layout = Layout {
            magic: MAGIC,
            version: VERSION.into(),
            node: self.node.unwrap_or_default(),
            within: route(self.within),
            between: route(self.between),
            measured: self.measured.map(U32::from),
        };
        layout.as_bytes().to_vec()
    }

    /// Parses a card. Returns `None` if it is malformed or of another version. Implausible figures are unknown.
    pub(crate) fn parse(bytes: &[u8]) -> Option<NodeCard> {
        let (layout, _) = Layout::ref_from_prefix(bytes).ok()?;
        if layout.magic != MAGIC || layout.version.get() != VERSION {
            return None;
        }
        let route = |[latency, each]: [U32; 2]| {
            let route = RouteCost { latency: latency.get(), each: each.get() };
            let plausible = route.latency <= MOST_LATENCY && route.each <= MOST_EACH;
            if plausible { route } else { RouteCost::default() }
        };
        let figure = |each: U32| if each.get() <= MOST_EACH { each.get() } else { 0 };
        Some(NodeCard {
            node: Some(layout.node).filter(|node| *node != [0; 16]),
            within: route(layout.within),
            between: route(layout.between),
            measured: layout.measured.map(figure),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_parsed_and_other_bytes_refused() {
        let mut card = NodeCard { node: Some([7; 16]), ..NodeCard::default() };
        card.within = RouteCost { latency: 120, each: 77 };
        card.between = RouteCost { latency: 25_000, each: 800 };
        card.measured[3] = 151;
        let bytes = card.to_bytes();
        assert_eq!(NodeCard::parse(&bytes), Some(card));
        assert_eq!(NodeCard::parse(&[&bytes[..], b"later"].concat()), Some(card), "later versions may append fields");
        for len in 0..bytes.len() {
            assert_eq!(NodeCard::parse(&bytes[..len]), None);
        }
        for at in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(NodeCard::parse(&other), None, "byte {at}");
        }
        assert_eq!(NodeCard::parse(&NodeCard::default().to_bytes()), Some(NodeCard::default()));
    }

    #[test]
    fn implausible_figures_are_unknown() {
        let mut bytes = NodeCard { node: None, ..NodeCard::default() }.to_bytes();
        bytes[24..].fill(0xFF);
        assert_eq!(NodeCard::parse(&bytes), Some(NodeCard::default()));
    }
}
