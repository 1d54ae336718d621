//! Little data of an allgather or an alltoall: one kernel copies the blocks of all ranks.
//!
//! Two copies of 32 KiB, by a copy engine and within the device, take 16.1 us, and one kernel 11.4
//! (`docs/decisions/014-own-blocks.md`).

use cableway_common_cuda::{BlockCopy, KernelRun, Move};
use smallvec::SmallVec;

use super::blocks::{self, DeviceBlocks};
use super::fetch::{self, Fetch};
use super::own::OnDevice;
use super::peer::Peer;
use super::scene::Scene;
use crate::error::Error;
use crate::placing::Working;
use crate::plan::exchange::Exchange;

/// The most bytes that a rank gets by the kernel (H200, NVLink).
const MOST: u64 = 16 << 20;

/// The copies of a rank by one kernel, once all of them can begin.
pub(super) struct Together {
    /// This rank's own block, which kernels reach on both sides.
    own: OnDevice,
}

impl Together {
    /// Returns what there is to do if one kernel may copy everything.
    pub(super) fn of(scene: &Scene<'_>) -> Option<Together> {
        let (Exchange::Move(moves), Working::Device(at)) = (scene.exchange, &scene.site.working) else { return None };
        let devices = &scene.shared.pools.devices;
        let bytes: u64 = moves.receives.iter().map(|block| scene.plan.packed_len(block)).sum();
        if bytes > MOST {
            return None;
        }
        // Without an own block a copy engine makes one copy for each rank, and needs no room on the device.
        let (from, to) = moves.own_copy(scene.plan)?;
        let own = OnDevice::of(scene, &from, &to)?;
        let reached = |side: &DeviceBlocks| devices.kernel_reaches(&side.range.location, side.range.address);
        let loaded = if own.is_run() { devices.can_move_now(at) } else { devices.can_move_blocks_now(at) };
        (loaded && reached(&own.from) && reached(&own.to)).then_some(Together { own })
    }

    /// Checks whether one kernel may still copy everything, as far as is known of the other ranks' blocks.
    pub(super) fn may_still(&self, scene: &Scene<'_>, peers: &[Peer]) -> bool {
        let Working::Device(at) = &scene.site.working else { return false };
        let mut fetches = peers.iter().filter_map(Peer::fetch);
        peers.iter().all(Peer::may_be_fetched)
            && (fetches.all(Fetch::is_run) || scene.shared.pools.devices.can_move_blocks_now(at))
    }

    /// Begins the copies, which [may still](Self::may_still) be made by one kernel. Returns `None` if other mechanisms must make
    /// them.
    pub(super) fn begin(&self, scene: &Scene<'_>, peers: &[Peer]) -> Result<Option<KernelRun>, Error> {
        let Working::Device(at) = &scene.site.working else { return Ok(None) };
        let (devices, Together { own }) = (&scene.shared.pools.devices, self);
        let fetches = || peers.iter().filter_map(Peer::fetch);
        let others: Option<SmallVec<[BlockCopy; 4]>> = fetches().map(|fetch| fetch.by_kernel(devices)).collect();
        let Some(mut copies) = others else { return Ok(None) };
        let (to, from) = (&own.to.range, &own.from.range);
        copies.push(blocks::as_blocks(&own.shape(), to, from.address));
        let order = own.order(devices).max(fetch::order_of(fetches(), devices));
        let run = if own.is_run() && fetches().all(Fetch::is_run) {
            let as_move = |copy: &BlockCopy| Move { to: copy.dst, from: copy.src, len: copy.len as usize };
            let moves: SmallVec<[Move; 4]> = copies.iter().map(as_move).collect();
            // SAFETY: this rank's blocks stay until the exchange is over, and peers keep theirs until they get the last answer.
            // Blocks of an operation do not overlap.
            unsafe { devices.begin_moves(at, order, &moves) }?
        } else {
            // SAFETY: as above.
            unsafe { devices.begin_block_moves(at, order, &copies) }?
        };
        Ok(run)
    }
}
