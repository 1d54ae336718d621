//! What a rank does with the memory of all ranks.

use cableway_common_cuda::{Completion, Direction, KernelRun, Order, Reduction as KernelReduction};
use smallvec::SmallVec;

use super::fetch::{self, Fetch};
use super::peer::Peer;
use super::scene::Scene;
use crate::error::Error;
use crate::placing::Working;
use crate::plan::exchange::Reduction;
use crate::plan::{Block, Combine};
use crate::reduce;

/// Work of a device.
pub(super) enum Running {
    Nothing,
    Kernel(KernelRun),
    Copies(Completion),
}

impl Running {
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Running::Nothing)
    }

    pub(super) fn poll(&mut self) -> Result<bool, Error> {
        Ok(match self {
            Running::Nothing => true,
            Running::Kernel(run) => run.poll()?,
            Running::Copies(completion) => completion.poll()?,
        })
    }
}

/// Begins to reduce this rank's share. Returns `None` if it must be tried again.
pub(super) fn reduce(scene: &Scene<'_>, reduction: &Reduction, peers: &mut [Peer]) -> Result<Option<Running>, Error> {
    let Scene { shared, site, plan, .. } = scene;
    let me = scene.me();
    let share = reduction.part(me, peers.iter().any(|peer| peer.whole));
    let (count, Some(Combine { operation, element })) = (share.end - share.start, plan.combine) else {
        return Ok(Some(Running::Nothing));
    };
    if count == 0 {
        return Ok(Some(Running::Nothing));
    }
    let from = reduction.operands.bytes(share.start) as usize;
    let mut sources: SmallVec<[*const u8; 4]> = smallvec::smallvec![std::ptr::null(); peers.len() + 1];
    sources[me as usize] = site.address(reduction.operands.input(share.start)).cast_const();
    let output = site.address(reduction.operands.output(reduction.own_output(me, &share)));
    let mut destinations: SmallVec<[*mut u8; 4]> = smallvec::smallvec![output];
    for peer in peers.iter() {
        sources[peer.rank as usize] = peer.source(from);
        destinations.extend(peer.destination(from));
    }
    let combine = Combine { operation, element };
    let Working::Device(at) = &site.working else {
        // SAFETY: all sources and the destination hold the elements, in host memory that no message accesses now.
        unsafe { reduce::on_host(combine, output, &sources, count as usize) };
        return Ok(Some(Running::Nothing));
    };
    let devices = &shared.pools.devices;
    // The kernel follows the default stream's work on this rank's operands. Peers have waited for that on theirs.
    let part = |place| Block::bytes(place, reduction.operands.bytes(count));
    let own = [
        part(reduction.operands.input(share.start)),
        part(reduction.operands.output(reduction.own_output(me, &share))),
    ];
    let order = own.iter().fold(Order::None, |order, block| match scene.on_device(block) {
        Some(memory) => order.max(devices.order(&memory.range.location)),
        None => Order::AfterDefaultStream,
    });
    let work =
        KernelReduction { operation, element, count, destinations: &destinations, sources: &sources, kept: None };
    // SAFETY: this rank's operands stay until the exchange is over, and peers keep theirs until they get the last answer.
    // Nobody else accesses these elements of the outputs.
    match unsafe { devices.reduce(at, order, &work) }? {
        Some(run) => Ok(Some(Running::Kernel(run))),
        // Too many kernels are under way.
        None if devices.can_reduce(at, operation, element) => Ok(None),
        None => {
            // SAFETY: as above.
            unsafe { reduce::through_host(devices, combine, output, &sources, count as usize) }?;
            for peer in peers {
                peer.send_result_instead(scene)?;
            }
            Ok(Some(Running::Nothing))
        }
    }
}

/// Begins to copy this rank's blocks from the memory that is mapped.
pub(super) fn copy(scene: &Scene<'_>, peers: &[Peer]) -> Result<Running, Error> {
    let devices = &scene.shared.pools.devices;
    let fetches: SmallVec<[&Fetch; 8]> = peers.iter().filter_map(Peer::fetch).collect();
    let (Working::Device(at), false) = (&scene.site.working, fetches.is_empty()) else {
        return Ok(Running::Nothing);
    };
    let order = fetch::order_of(fetches.iter().copied(), devices);
    let mut batch = devices.batch(at, Direction::DeviceToDevice, order)?;
    for fetch in fetches {
        // SAFETY: this rank's blocks stay until the exchange is over, and peers keep theirs until they get the last answer.
        // Blocks of an operation do not overlap.
        unsafe { fetch.add_to(&mut batch) };
    }
    Ok(Running::Copies(batch.finish()?))
}
