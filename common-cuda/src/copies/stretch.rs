//! Ranges of packed bytes, for a kernel or for copy engines.

use super::workspace::Workspace;
use crate::copy::{Direction, RowCopy};
use crate::kernels::Packed;
use crate::memory::{Packing, Spread};

impl Packing {
    /// Checks whether only a kernel can do the work.
    pub(super) fn wants_kernel(&self, direction: Direction) -> bool {
        direction.is_on_devices() && !self.by_engines
    }

    /// Returns the arguments for a kernel of the current context. Returns `None` if the kernel cannot access all of the
    /// memory.
    pub(super) fn for_kernel(&self, workspace: &Workspace, direction: Direction) -> Option<Packed> {
        let on_device = |address: *mut u8| workspace.context.driver.device_address(address).ok();
        let packed = if direction.is_on_devices() { self.packed as u64 } else { on_device(self.packed)? };
        let entries = match &self.spread {
            Spread::Regular(_) => 0,
            Spread::Listed(list, _) => match list.on_device(&workspace.lists) {
                Some(address) => address,
                None => on_device(list.entries())?,
            },
        };
        Packed::new(self, packed, entries)
    }

    /// Returns the copies for copy engines, block by block.
    pub(super) fn rows(&self) -> Vec<RowCopy> {
        let mut copies = Vec::new();
        self.spread.rows(self.position, self.len, |rows| {
            let packed = (self.packed.wrapping_offset(rows.to.0 as isize), rows.to.1);
            let user = (self.user.wrapping_offset(rows.from.0 as isize), rows.from.1);
            let (dst, src) = if self.unpack { (user, packed) } else { (packed, user) };
            let (width, rows) = (rows.width, rows.rows);
            copies.push(RowCopy { dst: dst.0, dst_pitch: dst.1, src: src.0, src_pitch: src.1, width, rows });
        });
        copies
    }
}
