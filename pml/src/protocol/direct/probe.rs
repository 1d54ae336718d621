//! Probes whether a one-sided access goes directly or by the owner of the memory, and the cost of both.

use cableway_btl::{Flags, Mover, RemoteHandle};
use cableway_common_cuda::Location;

use crate::core::{Abilities, Link};
use crate::protocol::probe::{COPY_ONLY, Cost, Costs, Passes, Probe, Quote};

/// The path of a one-sided access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// This process moves the bytes.
    Direct,
    /// The owner of the memory moves them, after a message.
    Owner,
}

/// The description of an access for the probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Whether it writes the peer's memory.
    pub(crate) store: bool,
    pub(crate) len: u64,
    /// Whether this process's memory is on a device.
    pub(crate) local_on_device: bool,
    /// Whether this process's memory is page-locked host memory.
    pub(crate) local_page_locked: bool,
    /// Whether the peer's memory is on a device.
    pub(crate) remote_on_device: bool,
    /// Whether either memory is in blocks at regular distances.
    pub(crate) in_blocks: bool,
    /// Whether `device_protocols=copy` is set.
    pub(crate) copy_only: bool,
    /// The most bytes of host memory that travel with the request.
    pub(crate) inline_limit: u64,
    /// The combined abilities of the links.
    pub(crate) links: Abilities,
    /// The costs of both ways, where they decide.
    pub(crate) costs: WayCosts,
}

impl Access {
    /// Returns whether a device of this process copies between its page-locked memory and the peer's device memory.
    pub(crate) fn is_by_own_device(&self) -> bool {
        self.local_page_locked && self.remote_on_device && self.links.any.contains(Flags::DEVICE_PAGE_LOCKED)
    }
}

/// The costs of the links' operations for both ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WayCosts {
    pub(crate) direct: cableway_btl::Cost,
    pub(crate) owner: cableway_btl::Cost,
}

impl WayCosts {
    /// Used where the memory is not known yet, or no choice depends on the costs.
    pub(crate) const NOT_ASKED: WayCosts = WayCosts { direct: Costs::NOT_ASKED.get, owner: Costs::NOT_ASKED.get };
}

/// Messages that precede data which the owner moves: the request, and the announcement of the data.
pub(super) const OWNER_HEADERS: u32 = 2;

/// Returns the cost of an access by each process to device memory. Of host memory, both processes' operations cost the
/// same.
pub(crate) fn costs(link: &Link, store: bool, local: &Location, remote: &RemoteHandle) -> WayCosts {
    let (mine, theirs) = match store {
        true => (Mover::Stores, Mover::PeerFetches),
        false => (Mover::Fetches, Mover::PeerStores),
    };
    let cost = |mover| link.endpoint.transfer_cost(mover, local, remote);
    let mut owner = cost(theirs);
    owner.fixed = owner.fixed.saturating_add(link.capabilities().latency * OWNER_HEADERS);
    WayCosts { direct: cost(mine), owner }
}

/// Chooses the way of an access: the cheaper one. Of equal costs the direct way wins.
pub(crate) fn choose(access: &Access) -> Way {
    let owner = probe_owner(access);
    match probe_direct(access) {
        Ok(direct) if !owner.cost.beats(&direct.cost, access.len) => direct.how,
        _ => owner.how,
    }
}

/// Offers to move the bytes from here.
pub(crate) fn probe_direct(access: &Access) -> Probe<Way> {
    let &Access { store, len, local_on_device, remote_on_device, in_blocks, copy_only, links, .. } = access;
    let on_device = local_on_device || remote_on_device;
    if len == 0 {
        return Err("there is no data");
    }
    if on_device && copy_only {
        return Err(COPY_ONLY);
    }
    let (host, device) = if store { (Flags::PUT, Flags::DEVICE_PUT) } else { (Flags::GET, Flags::DEVICE_GET) };
    let flag = |on_device| if on_device { device } else { host };
    let own_device = access.is_by_own_device();
    if !links.any.contains(flag(local_on_device || own_device) | flag(remote_on_device)) {
        return Err("no link supports this");
    }
    if in_blocks && !(local_on_device && remote_on_device && links.any.contains(Flags::DEVICE_STRIDED)) {
        return Err("no link moves blocks between these memories");
    }
    if local_on_device != remote_on_device && links.any.contains(Flags::DEVICE_TO_DEVICE) && !own_device {
        return Err("only one of the two buffers is on a device, and this process's is not page-locked");
    }
    let least = if on_device { links.device_min_rdma_size } else { links.min_rdma_size };
    if len < least as u64 {
        return Err("one copy does not pay for so few bytes");
    }
    if on_device && len > links.device_max_rdma_size as u64 {
        return Err("exceeds the links' limit for one-copy transfers of device memory");
    }
    let cost = Cost { passes: Passes::One, time: access.costs.direct, headers: 0 };
    Ok(Quote { how: Way::Direct, cost, reason: "the caller moves it without the owner's CPU" })
}

/// Offers to have the owner move the bytes. It can move any.
pub(crate) fn probe_owner(access: &Access) -> Quote<Way> {
    let inline = !access.local_on_device && !access.remote_on_device && access.len <= access.inline_limit;
    if inline {
        let cost = Cost { passes: Passes::Along, time: Costs::NOT_ASKED.send, headers: 0 };
        return Quote { how: Way::Owner, cost, reason: "it travels with a message" };
    }
    let cost = Cost { passes: Passes::One, time: access.costs.owner, headers: OWNER_HEADERS };
    Quote { how: Way::Owner, cost, reason: "the owner moves it as a message" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn access(len: u64) -> Access {
        let links = Abilities {
            any: Flags::PUT | Flags::GET | Flags::DEVICE_PUT | Flags::DEVICE_GET,
            min_rdma_size: 10_000,
            device_min_rdma_size: 64,
            device_max_rdma_size: 1 << 20,
        };
        Access {
            store: true,
            len,
            local_on_device: false,
            local_page_locked: false,
            remote_on_device: false,
            in_blocks: false,
            copy_only: false,
            inline_limit: 8192,
            links,
            costs: WayCosts::NOT_ASKED,
        }
    }

    #[test]
    fn host_memory_goes_directly_where_one_copy_pays() {
        for (len, way) in [(0, Way::Owner), (8192, Way::Owner), (9999, Way::Owner), (10_000, Way::Direct)] {
            assert_eq!(choose(&access(len)), way, "{len}");
        }
        // Data that travels with its request is cheaper than any other.
        let mut small = access(8192);
        small.links.min_rdma_size = 0;
        assert_eq!(choose(&small), Way::Owner);
        let mut unable = access(10_000);
        unable.links.any = Flags::GET;
        assert_eq!(choose(&unable), Way::Owner);
        unable.store = false;
        assert_eq!(choose(&unable), Way::Direct);
    }

    #[test]
    fn blocks_go_directly_between_devices_only() {
        let blocks = |local_on_device, remote_on_device, flags| {
            let mut access = Access { local_on_device, remote_on_device, in_blocks: true, ..access(1 << 16) };
            access.links.any |= flags;
            choose(&access)
        };
        assert_eq!(blocks(true, true, Flags::DEVICE_STRIDED), Way::Direct);
        assert_eq!(blocks(true, true, Flags::empty()), Way::Owner);
        for (local, remote) in [(false, false), (true, false), (false, true)] {
            assert_eq!(blocks(local, remote, Flags::DEVICE_STRIDED), Way::Owner);
        }
    }

    #[test]
    fn device_memory_goes_directly_unless_the_owner_moves_it_for_less() {
        let on_device = |len| Access { local_on_device: true, remote_on_device: true, ..access(len) };
        assert_eq!(choose(&on_device(63)), Way::Owner);
        assert_eq!(choose(&on_device(64)), Way::Direct);
        assert_eq!(choose(&on_device((1 << 20) + 1)), Way::Owner);
        assert_eq!(choose(&Access { copy_only: true, ..on_device(64) }), Way::Owner);
        let time = |micros| cableway_btl::Cost { fixed: Duration::from_micros(micros), bytes_per_second: 1e9 };
        let priced =
            |direct, owner| Access { costs: WayCosts { direct: time(direct), owner: time(owner) }, ..on_device(4096) };
        assert_eq!(choose(&priced(10, 10)), Way::Direct);
        assert_eq!(choose(&priced(11, 10)), Way::Owner);
        let mixed = Access { local_on_device: false, ..on_device(4096) };
        assert_eq!(choose(&mixed), Way::Direct);
        let mut only_devices = mixed;
        only_devices.links.any |= Flags::DEVICE_TO_DEVICE;
        assert_eq!(choose(&only_devices), Way::Owner);
        // A device of this process copies from its page-locked memory, also where no CPU reaches the peer's memory.
        let mut page_locked = Access { local_page_locked: true, ..only_devices };
        assert_eq!(choose(&page_locked), Way::Owner);
        page_locked.links.any |= Flags::DEVICE_PAGE_LOCKED;
        page_locked.links.any -= Flags::PUT | Flags::GET;
        assert_eq!(choose(&page_locked), Way::Direct);
        assert_eq!(choose(&Access { in_blocks: true, ..page_locked }), Way::Owner);
        assert_eq!(choose(&Access { copy_only: true, ..page_locked }), Way::Owner);
        let owned = Access { local_on_device: true, local_page_locked: false, remote_on_device: false, ..page_locked };
        assert_eq!(choose(&owned), Way::Owner);
    }
}
