//! The card that an engine publishes for its peers.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Incremented whenever a header changes.
const VERSION: u32 = 9;

/// The card of an engine, published under [`Card::KEY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Bytes of unexpected messages that the engine keeps for one peer.
    pub(crate) window: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 4],
    version: U32,
    window: U64,
}

const MAGIC: [u8; 4] = *b"cwpm";

impl Card {
    pub(crate) const KEY: &'static str = "pml";

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        Layout { magic: MAGIC, version: VERSION.into(), window: self.window.into() }.as_bytes().to_vec()
    }

    /// Parses a card. Later versions may append fields.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (layout, _) =
            Layout::ref_from_prefix(bytes).map_err(|_| format!("its card of {} bytes is too short", bytes.len()))?;
        if layout.magic != MAGIC {
            return Err("its card is not an engine's".to_owned());
        }
        if layout.version.get() != VERSION {
            return Err(format!("it uses protocol version {}, this process uses version {VERSION}", layout.version));
        }
        Ok(Card { window: layout.window.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_parsed_and_other_bytes_refused() {
        let bytes = Card { window: 77 }.to_bytes();
        assert_eq!(Card::parse(&bytes), Ok(Card { window: 77 }));
        assert!(Card::parse(&bytes[..8]).is_err());
        assert!(Card::parse(&[b'x'; 16]).is_err());
        let mut newer = bytes;
        newer[4] += 1;
        assert!(Card::parse(&newer).unwrap_err().contains(&format!("version {}", VERSION + 1)));
    }
}
