//! Pieces of the address space in which device memory was found.

use std::sync::atomic::{AtomicU64, Ordering};

/// An address shifted by this is the index of its piece: drivers map at least that much at a time.
const SHIFT: u32 = 21;
/// The number of remembered pieces is two to the power of this.
const BITS: u32 = 10;

/// Remembers pieces of the address space. A piece replaces another one in its slot.
pub(super) struct Pieces([AtomicU64; 1 << BITS]);

impl Default for Pieces {
    fn default() -> Self {
        Pieces([const { AtomicU64::new(0) }; 1 << BITS])
    }
}

impl Pieces {
    /// Checks whether the piece around an address is remembered.
    #[inline]
    pub(super) fn contain(&self, address: *const u8) -> bool {
        let piece = address as u64 >> SHIFT;
        self.slot(piece).load(Ordering::Relaxed) == piece
    }

    pub(super) fn add(&self, address: *const u8) {
        let piece = address as u64 >> SHIFT;
        self.slot(piece).store(piece, Ordering::Relaxed);
    }

    /// Returns the slot of a piece. Programs allocate powers of two, so the low bits of many pieces are alike: the slot
    /// depends on all bits, by the golden ratio (Knuth, The Art of Computer Programming, volume 3, 6.4).
    #[inline]
    fn slot(&self, piece: u64) -> &AtomicU64 {
        &self.0[(piece.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BITS)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: usize) -> *const u8 {
        std::ptr::without_provenance(address)
    }

    #[test]
    fn allocations_at_distances_of_powers_of_two_are_remembered_together() {
        for distance in (SHIFT..34).map(|bits| 1_usize << bits) {
            let pieces = Pieces::default();
            let addresses: Vec<_> = (0..32).map(|index| at(0x7f00_0000_0000 + index * distance)).collect();
            addresses.iter().for_each(|&address| pieces.add(address));
            let found = addresses.iter().filter(|&&address| pieces.contain(address)).count();
            assert!(found >= 30, "{found} of 32 allocations at a distance of {distance} bytes");
            assert!(pieces.contain(at(0x7f00_0000_0000 + 31 * distance + (1 << SHIFT) - 1)));
            assert!(!pieces.contain(at(0x7e00_0000_0000)));
        }
    }
}
