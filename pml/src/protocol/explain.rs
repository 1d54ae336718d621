//! The decision printed: which protocol for which sizes, and why.

use std::ops::RangeInclusive;
use std::time::Duration;

use cableway_base::parameters::DeviceProtocols;
use cableway_base::{Parameters, Rank};
use cableway_btl::{Capabilities, Cost, Flags, Operation};
use cableway_common_cuda::{Location, MemoryClass};

use super::{Data, Incoming, Outgoing, Shape, Start, addressable, data, start};
use crate::engine::Engine;
use crate::error::Error;
use crate::wire::MATCH_LEN;

/// A buffer to explain the choice for.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Where it lives.
    pub class: MemoryClass,
    /// Whether its data is one run of bytes; otherwise it is taken to be blocks at regular distances.
    pub contiguous: bool,
}

impl Side {
    pub(super) fn shape(self, any: Flags) -> Shape {
        let on_device = matches!(self.class, MemoryClass::Device | MemoryClass::Managed);
        let regular = self.class == MemoryClass::Device && any.contains(Flags::DEVICE_STRIDED);
        Shape { on_device, contiguous: self.contiguous || regular }
    }
}

/// One row: standard sends of these sizes take this protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// Smallest and largest size in bytes.
    pub sizes: RangeInclusive<u64>,
    /// The protocol.
    pub protocol: &'static str,
    /// Why this one.
    pub reason: String,
}

impl Explained {
    /// The rows as a table for people.
    pub fn table(rows: &[Explained], transports: &[&str]) -> String {
        let width = rows.iter().map(|row| row.protocol.len()).max().unwrap_or(0).max("Protocol".len());
        let mut text = format!("# Over {}\n# {:>22}  {:width$}  Why\n", transports.join(", "), "Size", "Protocol");
        for row in rows {
            let sizes = format!("{}..{}", row.sizes.start(), row.sizes.end());
            text += &format!("{sizes:>24}  {:width$}  {}\n", row.protocol, row.reason);
        }
        text
    }
}

/// What costs are asked about.
const SOME_DEVICE: Location = Location { class: MemoryClass::Device, ..Location::HOST };

/// What links to a peer can do together.
struct Able<'l> {
    main: &'l Capabilities,
    any: Flags,
    min_rdma_size: usize,
    device_min_rdma_size: usize,
    copy_only: bool,
    push_limit: u64,
    /// For one copy between devices: the receiver fetches, the sender stores.
    costs: [Cost; 2],
}

/// The rows for a link that can do `capabilities` at both ends.
pub fn explain(
    capabilities: &Capabilities,
    parameters: &Parameters,
    from: Side,
    to: Side,
    sizes: RangeInclusive<u64>,
) -> Vec<Explained> {
    let same = Cost { fixed: Duration::ZERO, bytes_per_second: 1.0 };
    let able = Able {
        main: capabilities,
        any: capabilities.flags,
        min_rdma_size: capabilities.min_rdma_size,
        device_min_rdma_size: capabilities.device_min_rdma_size,
        copy_only: parameters.device_protocols == DeviceProtocols::Copy,
        push_limit: parameters.device_push_limit as u64,
        costs: [same; 2],
    };
    able.rows(from, to, sizes)
}

impl Engine {
    /// The rows for messages to `peer`, whose links are made for it if there are none yet; the peer's ends of them are
    /// taken to be like ours.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn explain(
        &self,
        peer: Rank,
        from: Side,
        to: Side,
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Explained>, Error> {
        let peer = self.peer(peer)?;
        let links = peer.links.lock();
        let Some(main) = links.active.first() else {
            peer.check()?;
            return Ok(Vec::new());
        };
        let able = Able {
            main: main.capabilities(),
            any: links.flags(),
            min_rdma_size: links.min_rdma_size(),
            device_min_rdma_size: links.device_min_rdma_size(),
            copy_only: self.copy_only(),
            push_limit: self.parameters.device_push_limit as u64,
            costs: [Operation::Get, Operation::Put].map(|operation| main.endpoint.cost(operation, &SOME_DEVICE)),
        };
        Ok(able.rows(from, to, sizes))
    }

    /// The names of the transports that carry messages to `peer`, the one for headers first.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn transports(&self, peer: Rank) -> Result<Vec<&'static str>, Error> {
        let peer = self.peer(peer)?;
        peer.check()?;
        let mut names: Vec<_> = peer.links.lock().active.iter().map(|link| self.btls[link.btl].btl.name()).collect();
        names.dedup();
        Ok(names)
    }
}

impl Able<'_> {
    fn rows(&self, from: Side, to: Side, sizes: RangeInclusive<u64>) -> Vec<Explained> {
        let header = MATCH_LEN as u64;
        let after = |limit: usize| (limit as u64 + 1).saturating_sub(header);
        let changes = [1, after(self.main.inline_limit), after(self.main.eager_limit), self.min_rdma_size as u64];
        let changes = changes.into_iter().chain([self.device_min_rdma_size as u64, self.push_limit.saturating_add(1)]);
        let mut starts: Vec<u64> = changes.filter(|size| sizes.contains(size)).collect();
        starts.push(*sizes.start());
        starts.sort_unstable();
        starts.dedup();
        let mut rows: Vec<Explained> = Vec::new();
        for (index, &first) in starts.iter().enumerate() {
            let last = starts.get(index + 1).map_or(*sizes.end(), |next| next - 1);
            let (protocol, reason) = self.decide(first, from, to);
            match rows.last_mut() {
                Some(row) if row.protocol == protocol && row.reason == reason => {
                    row.sizes = *row.sizes.start()..=last;
                }
                _ => rows.push(Explained { sizes: first..=last, protocol, reason }),
            }
        }
        rows
    }

    fn decide(&self, len: u64, from: Side, to: Side) -> (&'static str, String) {
        let mixed = from.shape(self.any).on_device != to.shape(self.any).on_device;
        let out = Outgoing {
            len,
            from: from.shape(self.any),
            synchronous: false,
            credit: true,
            copy_only: self.copy_only,
            main: self.main,
            any: self.any,
            min_rdma_size: self.min_rdma_size,
            device_min_rdma_size: self.device_min_rdma_size,
            reachable: from.shape(self.any).on_device,
            stores: len <= self.push_limit && self.costs[1].of(len) <= self.costs[0].of(len),
            fetches: !mixed || !self.any.contains(Flags::DEVICE_TO_DEVICE),
        };
        let (start, why) = start(&out);
        let inline = len + MATCH_LEN as u64 <= self.main.inline_limit as u64;
        match start {
            Start::Eager if inline && from.contiguous => return ("eager, inline", why.to_owned()),
            Start::Eager | Start::AnnounceWithData => return ("eager", why.to_owned()),
            Start::EagerInPlace => return ("eager, in place", why.to_owned()),
            Start::EagerDevice => return ("eager, copied by the device", why.to_owned()),
            Start::Expose | Start::Announce => {}
        }
        let incoming = Incoming {
            exposed: start == Start::Expose,
            addressable: (start == Start::Announce || out.from.on_device) && addressable(&out),
            to: to.shape(self.any),
            copy_only: self.copy_only,
            attentive: true,
            any: self.any,
            mixed,
            get: self.costs[0].of(len),
            put: self.costs[1].of(len),
        };
        let (data, because) = data(&incoming);
        let protocol = match data {
            Data::Get => "rendezvous, get",
            Data::Offered => "rendezvous, fragments or get",
            Data::Put => "rendezvous, put",
            Data::Fragments if out.from.on_device || incoming.to.on_device => "rendezvous, copied in chunks",
            Data::Fragments => "rendezvous, fragments",
        };
        (protocol, format!("{why}; {because}"))
    }
}
