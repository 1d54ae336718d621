//! Little data of an allgather or an alltoall: one kernel copies the blocks of all ranks.
//!
//! Two copies of 32 KiB, by a copy engine and within the device, take 16.7 us, and one kernel 11.5
//! (`docs/decisions/014-own-blocks.md`).

use cableway_common_cuda::{KernelRun, Move, Order};
use cableway_pml::DeviceRange;
use smallvec::SmallVec;

use super::blocks::DeviceBlocks;
use super::fetch;
use super::peer::Peer;
use super::scene::Scene;
use crate::error::Error;
use crate::placing::Working;
use crate::plan::exchange::Exchange;

/// The most bytes that a rank gets by the kernel (H200, NVLink).
const MOST: u64 = 16 << 20;

/// The copies of a rank by one kernel, once all of them can begin.
pub(super) struct Together {
    /// This rank's own block: two runs of one length, which kernels reach.
    from: DeviceRange,
    to: DeviceRange,
}

impl Together {
    /// Returns what there is to do if one kernel may copy everything.
    pub(super) fn of(scene: &Scene<'_>) -> Option<Together> {
        let (Exchange::Move(moves), Working::Device(at)) = (scene.exchange, &scene.site.working) else { return None };
        let devices = &scene.shared.pools.devices;
        let bytes: u64 = moves.receives.iter().map(|block| scene.plan.packed_len(block)).sum();
        if bytes > MOST || !devices.can_move_now(at) {
            return None;
        }
        // Without an own block a copy engine makes one copy for each rank, and needs no room on the device.
        let (from, to) = moves.own_copy(scene.plan)?;
        let (from, to) = (scene.here(&from)?, scene.here(&to)?);
        let reached = |side: &DeviceBlocks| {
            side.blocks.is_none() && devices.kernel_reaches(&side.range.location, side.range.address)
        };
        let possible = from.range.len == to.range.len && reached(&from) && reached(&to);
        possible.then_some(Together { from: from.range, to: to.range })
    }

    /// Begins the copies. Returns `None` if other mechanisms must make them.
    pub(super) fn begin(&self, scene: &Scene<'_>, peers: &[Peer]) -> Result<Option<KernelRun>, Error> {
        let Working::Device(at) = &scene.site.working else { return Ok(None) };
        let devices = &scene.shared.pools.devices;
        let fetches = || peers.iter().filter_map(Peer::fetch);
        let others: Option<SmallVec<[Move; 8]>> = fetches().map(|fetch| fetch.as_move(devices)).collect();
        let Some(mut moves) = others else { return Ok(None) };
        let Together { from, to } = self;
        moves.push(Move { to: to.address, from: from.address.cast_const(), len: to.len });
        let own = [from, to].map(|side| devices.order(&side.location));
        let order = own.into_iter().fold(fetch::order_of(fetches(), devices), Order::max);
        // SAFETY: this rank's blocks stay until the exchange is over, and peers keep theirs until they get the last answer.
        // Blocks of an operation do not overlap.
        Ok(unsafe { devices.begin_moves(at, order, &moves) }?)
    }
}
