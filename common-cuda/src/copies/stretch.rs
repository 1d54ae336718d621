//! A range of packed bytes that a kernel packs or unpacks, or that copy engines copy block by block.

use super::workspace::Workspace;
use crate::copy::Direction;
use crate::driver::Piece;
use crate::kernels::Packed;
use crate::memory::{Packing, Spread};

/// The content of a [`Packing`], kept until its work is done.
pub(super) struct PackedRange {
    user: *mut u8,
    /// Keeps the list, which the kernel reads.
    spread: Spread,
    position: u64,
    packed: *mut u8,
    len: u64,
    unpack: bool,
    by_engines: bool,
}

// SAFETY: the addresses are handed to the driver and never dereferenced here. The caller that added the stretch
// promises that they stay valid, whatever thread uses them.
unsafe impl Send for PackedRange {}

impl PackedRange {
    pub(super) fn new(packing: &Packing<'_>) -> PackedRange {
        let Packing { user, spread, position, packed, len, unpack, by_engines } = *packing;
        PackedRange { user, spread: spread.clone(), position, packed, len, unpack, by_engines }
    }

    /// Checks whether only a kernel can do the work.
    pub(super) fn wants_kernel(&self, direction: Direction) -> bool {
        direction == Direction::DeviceToDevice && !self.by_engines
    }

    /// Returns the arguments for a kernel of the current context. Returns `None` if the kernel cannot access all of the
    /// memory.
    pub(super) fn for_kernel(&self, workspace: &Workspace, direction: Direction) -> Option<Packed> {
        let on_device = |address: *mut u8| workspace.context.driver.device_address(address).ok();
        let packed = match direction {
            Direction::DeviceToDevice => self.packed as u64,
            _ => on_device(self.packed)?,
        };
        let entries = match &self.spread {
            Spread::Regular(_) => 0,
            Spread::Listed(list, _) => match list.on_device(&workspace.lists) {
                Some(address) => address,
                None => on_device(list.entries())?,
            },
        };
        let (blocks, bytes) = ((self.user as u64, &self.spread, entries), (self.position, self.len, packed));
        Packed::new(blocks, bytes, self.unpack)
    }

    /// Returns the work for copy engines.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.spread.rows(self.position, self.len, |rows| {
            let packed = (self.packed.wrapping_offset(rows.to.0 as isize), rows.to.1);
            let user = (self.user.wrapping_offset(rows.from.0 as isize), rows.from.1);
            let (dst, src) = if self.unpack { (user, packed) } else { (packed, user) };
            let (width, rows) = (rows.width, rows.rows);
            pieces.push(Piece { dst: dst.0, dst_pitch: dst.1, src: src.0, src_pitch: src.1, width, rows });
        });
        pieces
    }
}
