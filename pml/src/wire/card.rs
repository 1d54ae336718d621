//! What an engine publishes of itself.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Changes whenever a header does.
const VERSION: u32 = 6;

/// Published under [`Card::KEY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Bytes of unexpected messages that this engine keeps for one peer.
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

    /// Newer versions may append to it, not change what is here.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| format!("a card of {} bytes", bytes.len()))?;
        if layout.magic != MAGIC {
            return Err("its card is none of an engine".to_owned());
        }
        if layout.version.get() != VERSION {
            return Err(format!("it speaks version {} of the protocol, this process {VERSION}", layout.version));
        }
        Ok(Card { window: layout.window.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_read_and_strangers_refused() {
        let bytes = Card { window: 77 }.to_bytes();
        assert_eq!(Card::parse(&bytes), Ok(Card { window: 77 }));
        assert!(Card::parse(&bytes[..8]).is_err());
        assert!(Card::parse(&[b'x'; 16]).is_err());
        let mut newer = bytes;
        newer[4] += 1;
        assert!(Card::parse(&newer).unwrap_err().contains(&format!("version {}", VERSION + 1)));
    }
}
