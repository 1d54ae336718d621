//! Explains the way of one-sided accesses by size, from the probes that choose it.

use std::ops::RangeInclusive;
use std::time::Duration;

use cableway_btl::{Cost, Operation};
use cableway_common_cuda::{Location, MemoryClass};

use super::probe::{Access, Way, WayCosts, choose, probe_direct, probe_owner};
use crate::core::{Abilities, Core};
use crate::protocol::context::Links;
use crate::protocol::explain::Explained;

/// An access to explain.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Whether it writes the peer's memory.
    pub(crate) store: bool,
    /// The class of this process's memory.
    pub(crate) local: MemoryClass,
    /// The class of the peer's memory.
    pub(crate) remote: MemoryClass,
    /// The most bytes of host memory that travel with the request.
    pub(crate) inline_limit: u64,
}

/// Returns the rows for accesses over these links. It assumes that the peer's ends are like those of this process, and that
/// the peer has exposed its memory.
pub(crate) fn explain_accesses(core: &Core, links: &Links, asked: Asked, sizes: RangeInclusive<u64>) -> Vec<Explained> {
    let Some(main) = links.active.first() else { return Vec::new() };
    let class = if on_device(asked.local) { asked.local } else { asked.remote };
    let location = Location { class, ..Location::HOST };
    let cost = |operation| main.endpoint.cost(operation, &location);
    let (direct, mut owner) = match asked.store {
        true => (cost(Operation::Put), cost(Operation::Get)),
        false => (cost(Operation::Get), cost(Operation::Put)),
    };
    let latency = main.capabilities().latency;
    owner.fixed = owner.fixed.saturating_add(latency * super::probe::OWNER_HEADERS);
    let able = Able {
        asked,
        links: links.abilities(),
        copy_only: core.copy_only(),
        costs: WayCosts { direct, owner },
        along: cost(Operation::Send),
        answer: latency,
    };
    able.rows(sizes)
}

fn on_device(class: MemoryClass) -> bool {
    matches!(class, MemoryClass::Device | MemoryClass::Managed)
}

/// What decides, besides the size.
pub(super) struct Able {
    pub(super) asked: Asked,
    pub(super) links: Abilities,
    pub(super) copy_only: bool,
    pub(super) costs: WayCosts,
    /// The cost of data that travels with its request.
    pub(super) along: Cost,
    /// The time of the owner's answer.
    pub(super) answer: Duration,
}

impl Able {
    pub(super) fn rows(&self, sizes: RangeInclusive<u64>) -> Vec<Explained> {
        let limits = [
            1,
            self.asked.inline_limit + 1,
            self.links.min_rdma_size as u64,
            self.links.device_min_rdma_size as u64,
            (self.links.device_max_rdma_size as u64).saturating_add(1),
        ];
        // Where the costs cross is found to a factor of two.
        let doubling = (0..u64::BITS).map(|bit| 1 << bit);
        let mut starts: Vec<u64> = limits.into_iter().chain(doubling).filter(|size| sizes.contains(size)).collect();
        starts.push(*sizes.start());
        starts.sort_unstable();
        starts.dedup();
        let mut rows: Vec<Explained> = Vec::new();
        for (index, &first) in starts.iter().enumerate() {
            let last = starts.get(index + 1).map_or(*sizes.end(), |next| next - 1);
            let row = self.row(first, last);
            match rows.last_mut() {
                Some(before)
                    if (before.protocol, &before.reason, &before.others)
                        == (row.protocol, &row.reason, &row.others) =>
                {
                    before.sizes = *before.sizes.start()..=last;
                    before.expected[1] = row.expected[1];
                }
                _ => rows.push(row),
            }
        }
        rows
    }

    fn row(&self, first: u64, last: u64) -> Explained {
        let access = self.access(first);
        let (direct, owner) = (probe_direct(&access), probe_owner(&access));
        let along = first <= self.asked.inline_limit && !access.local_on_device && !access.remote_on_device;
        let by_owner = |size: u64| if along { self.along.of(size) } else { self.costs.owner.of(size) } + self.answer;
        let (protocol, reason, expected, other) = match (choose(&access), direct) {
            (Way::Direct, Ok(quote)) => {
                let times = [first, last].map(|size| self.costs.direct.of(size));
                ("directly", quote.reason.to_owned(), times, "by the owner: costs more".to_owned())
            }
            (_, direct) => {
                let other = match direct {
                    Ok(_) => "directly: costs more",
                    Err(reason) => reason,
                };
                let reason = if along { owner.reason.to_owned() } else { format!("{}; {other}", owner.reason) };
                ("by the owner", reason, [first, last].map(by_owner), format!("directly: {other}"))
            }
        };
        Explained { sizes: first..=last, protocol, reason, expected, others: vec![other] }
    }

    fn access(&self, len: u64) -> Access {
        let (local_on_device, remote_on_device) = (on_device(self.asked.local), on_device(self.asked.remote));
        // Between host memories the costs are equal, so the operation does not ask for them.
        let costs = if local_on_device || remote_on_device { self.costs } else { WayCosts::NOT_ASKED };
        Access {
            store: self.asked.store,
            len,
            local_on_device,
            local_page_locked: self.asked.local == MemoryClass::Pinned,
            remote_on_device,
            in_blocks: false,
            copy_only: self.copy_only,
            inline_limit: self.asked.inline_limit,
            links: self.links,
            costs,
        }
    }
}

#[cfg(test)]
mod tests {
    use cableway_btl::Flags;

    use super::*;

    fn able(local: MemoryClass, remote: MemoryClass) -> Able {
        let time = |micros| Cost { fixed: Duration::from_micros(micros), bytes_per_second: 1e9 };
        Able {
            asked: Asked { store: true, local, remote, inline_limit: 8192 },
            links: Abilities {
                any: Flags::PUT | Flags::DEVICE_PUT,
                min_rdma_size: 10_000,
                device_min_rdma_size: 64,
                device_max_rdma_size: 1 << 20,
            },
            copy_only: false,
            costs: WayCosts { direct: time(1), owner: time(3) },
            along: time(2),
            answer: Duration::from_micros(1),
        }
    }

    fn ways(able: &Able) -> Vec<(u64, &'static str)> {
        able.rows(0..=4 << 20).iter().map(|row| (*row.sizes.start(), row.protocol)).collect()
    }

    #[test]
    fn rows_change_where_the_choice_does() {
        use MemoryClass::{Device, Host};
        let host = able(Host, Host);
        let rows = host.rows(0..=1 << 20);
        let starts: Vec<u64> = rows.iter().map(|row| *row.sizes.start()).collect();
        assert_eq!(starts, [0, 1, 8193, 10_000], "{rows:?}");
        assert!(rows[..3].iter().all(|row| row.protocol == "by the owner") && rows[3].protocol == "directly");
        assert!(rows[2].reason.contains("does not pay"), "{rows:?}");
        assert_eq!(*rows[3].sizes.end(), 1 << 20);
        // Each row's reason for the other way, and the times of its ends.
        assert_eq!(rows[3].others, ["by the owner: costs more"]);
        assert_eq!(rows[0].expected[0], Duration::from_micros(3));
        let device = able(Device, Device);
        let found = ways(&device);
        assert_eq!(found.first().map(|row| row.1), Some("by the owner"));
        assert!(
            found.contains(&(64, "directly")) && found.last() == Some(&((1 << 20) + 1, "by the owner")),
            "{found:?}"
        );
        let copied = Able { copy_only: true, ..able(Device, Host) };
        assert!(ways(&copied).iter().all(|row| row.1 == "by the owner"));
        // Direct stores that are faster only from some size on.
        let mut slow = able(Device, Device);
        slow.costs.direct = Cost { fixed: Duration::from_micros(10), bytes_per_second: 1e10 };
        let found = ways(&slow);
        assert!(found.contains(&(8192, "directly")) && !found.contains(&(64, "directly")), "{found:?}");
    }
}
