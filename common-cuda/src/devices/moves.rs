//! Copies of several runs of bytes, or of blocks, by one kernel, which is never revoked.

use super::Devices;
use crate::copies::KernelRun;
use crate::copy::{BlockCopy, Order};
use crate::error::DeviceError;
use crate::kernels::{BlockMoves, Class, Moves};
use crate::location::Location;

/// A run of bytes that a kernel copies.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// The first byte of the target.
    pub to: *mut u8,
    /// The first byte of the source.
    pub from: *const u8,
    /// The number of bytes.
    pub len: usize,
}

impl Devices {
    /// Checks whether a kernel in the context of the device memory at `at` copies runs of bytes ([`begin_moves`]). It is loaded
    /// only while the default stream is idle and loading is not held off. Until then this returns false.
    ///
    /// [`begin_moves`]: Self::begin_moves
    pub fn can_move_now(&self, at: &Location) -> bool {
        self.has_movers(at, Class::Moves)
    }

    /// Checks the same for blocks with gaps ([`begin_block_moves`](Self::begin_block_moves)).
    pub fn can_move_blocks_now(&self, at: &Location) -> bool {
        self.has_movers(at, Class::BlockMoves)
    }

    fn has_movers(&self, at: &Location, class: Class) -> bool {
        self.platform_at(at).is_some_and(|platform| {
            platform.settings.kernels && platform.queue(at).is_ok_and(|queue| queue.has_class_now(class))
        })
    }

    /// Begins copies by one kernel in the context of the device memory at `at`, after the work that `order` names. Returns `None`
    /// if no kernel can make them now, also because they are too many: then the caller has other mechanisms make them
    /// ([`batch`](Self::batch)). The kernel waits for room on the device for as long as that takes. Where another mechanism may
    /// have to take its place, use a batch.
    ///
    /// # Safety
    /// Kernels in the context of `at` can access all memory of the moves. It stays allocated until the run is over or dropped. No
    /// target overlaps other memory of the moves. Meanwhile no one else writes the sources or accesses the targets. A forgotten run
    /// is never over.
    ///
    /// # Errors
    /// `at` is host memory, its context is destroyed, or the calling thread captures a graph.
    pub unsafe fn begin_moves(
        &self,
        at: &Location,
        order: Order,
        moves: &[Move],
    ) -> Result<Option<KernelRun>, DeviceError> {
        let platform = self.need_at(at, "begin_moves", || format!("{} moves", moves.len()))?;
        let queue = platform.queue_to_enter(at)?;
        let mut list = Moves::NOTHING;
        let fit = moves.iter().filter(|run| run.len != 0).all(|run| list.push(run.to, run.from, run.len as u64));
        if !fit || !platform.settings.kernels {
            return Ok(None);
        }
        if moves.iter().all(|run| run.len == 0) {
            return Ok(Some(KernelRun::DONE));
        }
        platform.registrations.settle(&queue.workspace.context);
        // SAFETY: the caller's promise. The class declares this argument.
        unsafe { queue.begin(Class::Moves, order, list) }
    }

    /// Does the same for copies of blocks at regular distances.
    ///
    /// # Safety
    /// As [`begin_moves`](Self::begin_moves). The blocks of both sides have as many bytes as the copy says.
    ///
    /// # Errors
    /// As [`begin_moves`](Self::begin_moves).
    pub unsafe fn begin_block_moves(
        &self,
        at: &Location,
        order: Order,
        copies: &[BlockCopy],
    ) -> Result<Option<KernelRun>, DeviceError> {
        let platform = self.need_at(at, "begin_block_moves", || format!("{} moves", copies.len()))?;
        let queue = platform.queue_to_enter(at)?;
        let Some(moves) = BlockMoves::new(copies).filter(|_| platform.settings.kernels) else { return Ok(None) };
        platform.registrations.settle(&queue.workspace.context);
        // SAFETY: the caller's promise. The class declares this argument.
        unsafe { queue.begin(Class::BlockMoves, order, moves) }
    }
}
