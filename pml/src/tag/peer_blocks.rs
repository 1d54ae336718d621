//! Where the data lies in device memory that a process exposes to a peer, if it has gaps.

use cableway_common_cuda::Strided;
use zerocopy::FromBytes;

use crate::wire::BlocksLayout;

/// Blocks at regular distances in exposed memory, in packing order. Their offsets count from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBlocks(Strided);

impl PeerBlocks {
    /// The number of bytes that describe blocks.
    pub const LEN: usize = size_of::<BlocksLayout>();

    /// Describes blocks. None begins before the memory.
    pub fn new(blocks: Strided) -> PeerBlocks {
        PeerBlocks(blocks)
    }

    /// Encodes the blocks.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(BlocksLayout::new(&self.0))
    }

    /// Decodes blocks. Returns `None` for zeros, and for blocks that no memory has.
    pub fn parse(bytes: &[u8]) -> Option<PeerBlocks> {
        BlocksLayout::read_from_bytes(bytes).ok()?.blocks().map(PeerBlocks)
    }

    /// Returns the blocks if they have `data` bytes, and lie in a memory of `memory` bytes.
    pub fn within(&self, memory: usize, data: u64) -> Option<Strided> {
        let (first, len) = self.0.range_of(data).filter(|_| self.0.size() == Some(data))?;
        (first.checked_add(len as u64)? <= memory as u64).then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(offset: i64, block: u64, dimensions: [(u64, i64); 3]) -> Strided {
        Strided { offset, block, dimensions }
    }

    #[test]
    fn blocks_are_what_their_bytes_say() {
        for strided in [
            blocks(0, 1, [(1, 0); 3]),
            blocks(96, 8, [(4, -32), (1, 0), (1, 0)]),
            blocks(0, 16, [(5, 100), (7, 1000), (2, 10_000)]),
            blocks(i64::MAX - 8, 8, [(1, 0); 3]),
        ] {
            let bytes = PeerBlocks::new(strided).to_bytes();
            assert_eq!(PeerBlocks::parse(&bytes), Some(PeerBlocks(strided)));
            assert_eq!(PeerBlocks::parse(&bytes[1..]), None);
        }
        assert_eq!(PeerBlocks::parse(&[0; PeerBlocks::LEN]), None);
    }

    #[test]
    fn blocks_that_no_memory_has_are_refused() {
        for strided in [
            blocks(0, 0, [(1, 0); 3]),
            blocks(0, 8, [(3, 8), (0, 8), (1, 0)]),
            blocks(-1, 8, [(1, 0); 3]),
            blocks(31, 8, [(2, -32), (1, 0), (1, 0)]),
            blocks(0, 8, [(u64::MAX, 8), (1, 0), (1, 0)]),
            blocks(0, 1, [(u64::MAX, 0), (2, 0), (1, 0)]),
            blocks(i64::MAX - 7, 8, [(1, 0); 3]),
            blocks(0, 1, [(1 << 32, i64::MAX), (1, 0), (1, 0)]),
        ] {
            assert_eq!(PeerBlocks::parse(&PeerBlocks::new(strided).to_bytes()), None, "{strided:?}");
        }
    }

    #[test]
    fn blocks_lie_in_the_memory_and_have_all_the_data() {
        // From byte 4 to byte 4 + 2 * 100 + 16.
        let strided = blocks(4, 16, [(3, 100), (1, 0), (1, 0)]);
        let peer = PeerBlocks::new(strided);
        assert_eq!(peer.within(220, 48), Some(strided));
        assert_eq!(peer.within(usize::MAX, 48), Some(strided));
        assert_eq!(peer.within(219, 48), None, "the last byte lies outside");
        assert_eq!((peer.within(220, 47), peer.within(220, 49), peer.within(220, 0)), (None, None, None));
    }
}
