//! The decision printed: which protocol for which sizes, and why.

use std::ops::RangeInclusive;
use std::time::Duration;

use cableway_base::Parameters;
use cableway_base::parameters::DeviceProtocols;
use cableway_btl::{Capabilities, Cost, Flags, Operation};
use cableway_common_cuda::{Location, MemoryClass};

use super::choice::{Announcement, Data, Message, Shape, Start, addressable, data, packs, start};
use super::context::{Links, Shared};
use crate::core::{Abilities, Core};
use crate::wire::MATCH_LEN;

/// A buffer to explain the choice for.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Where it lives.
    pub class: MemoryClass,
    /// How its data lies there.
    pub form: Form,
}

/// How data lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In one run of bytes.
    Run,
    /// In blocks at regular distances.
    Regular,
    /// In other blocks.
    Irregular,
}

impl Side {
    pub(crate) fn shape(self, any: Flags) -> Shape {
        let on_device = matches!(self.class, MemoryClass::Device | MemoryClass::Managed);
        let device = self.class == MemoryClass::Device;
        let one_run = self.form == Form::Run;
        let regular = self.form == Form::Regular && device && any.contains(Flags::DEVICE_STRIDED);
        let contiguous = one_run || regular;
        Shape { on_device, contiguous, one_run, packed: !one_run && device && any.contains(Flags::DEVICE_PACKED) }
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
    /// Time that a message of the smallest and of the largest of these sizes is expected to take from the sender's call
    /// to its arrival, if the receiver waits for it: what the link says that the operation costs, and a small message's
    /// time for each that goes before it.
    pub expected: [Duration; 2],
}

impl Explained {
    /// The rows as a table for people. `observed` are measured times as [`expected`](Self::expected) has them, by row; or
    /// it is empty.
    pub fn table(rows: &[Explained], transports: &[&str], observed: &[[Duration; 2]]) -> String {
        let mut lines = vec![["Size".to_owned(), "Protocol".to_owned(), "Expected".to_owned(), "Observed".to_owned()]];
        lines.extend(rows.iter().enumerate().map(|(index, row)| {
            let sizes = format!("{}..{}", row.sizes.start(), row.sizes.end());
            let seen = observed.get(index).map(|&times| span(times)).unwrap_or_default();
            [sizes, row.protocol.to_owned(), span(row.expected), seen]
        }));
        let widths: [usize; 4] =
            std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
        let reasons = std::iter::once("Why").chain(rows.iter().map(|row| row.reason.as_str()));
        let marks = std::iter::once('#').chain(std::iter::repeat(' '));
        let mut text = format!("# Over {}\n", transports.join(", "));
        for (([sizes, protocol, expected, seen], reason), mark) in lines.iter().zip(reasons).zip(marks) {
            text += &format!("{mark} {sizes:>0$}  {protocol:1$}  {expected:>2$}  ", widths[0], widths[1], widths[2]);
            if !observed.is_empty() {
                text += &format!("{seen:>0$}  ", widths[3]);
            }
            text += &format!("{reason}\n");
        }
        text
    }
}

/// Two times, in the unit that suits the longer.
fn span([first, last]: [Duration; 2]) -> String {
    let (unit, name) = match first.max(last).as_secs_f64() {
        seconds if seconds < 1e-3 => (1e6, "us"),
        seconds if seconds < 1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    let (first, last) = (first.as_secs_f64() * unit, last.as_secs_f64() * unit);
    if first == last { format!("{first:.2} {name}") } else { format!("{first:.2}..{last:.2} {name}") }
}

/// What costs are asked about.
const SOME_DEVICE: Location = Location { class: MemoryClass::Device, ..Location::HOST };

/// What links to a peer can do together.
struct Able<'l> {
    main: &'l Capabilities,
    links: Abilities,
    copy_only: bool,
    push_limit: u64,
    /// There is to be scratch memory on devices.
    scratch: bool,
    costs: Costs,
}

/// What moves data, once it may move.
struct Costs {
    send: Cost,
    /// The receiver fetches.
    get: Cost,
    /// The sender stores.
    put: Cost,
}

impl Costs {
    fn of(links: impl Fn(Operation) -> Cost) -> Self {
        Costs { send: links(Operation::Send), get: links(Operation::Get), put: links(Operation::Put) }
    }
}

/// The rows for a link that can do `capabilities` at both ends.
pub fn explain(
    capabilities: &Capabilities,
    parameters: &Parameters,
    from: Side,
    to: Side,
    sizes: RangeInclusive<u64>,
) -> Vec<Explained> {
    let same = Cost { fixed: capabilities.latency, bytes_per_second: capabilities.bandwidth };
    let able = Able {
        main: capabilities,
        links: Abilities::NONE.with(capabilities),
        copy_only: parameters.device_protocols == DeviceProtocols::Copy,
        push_limit: parameters.device_push_limit as u64,
        scratch: parameters.device_scratch_size != 0,
        costs: Costs::of(|_| same),
    };
    able.rows(from, to, sizes)
}

/// The rows for messages over these links; the peer's ends of them are taken to be like ours.
pub(crate) fn explain_links(
    core: &Core,
    shared: &Shared,
    links: &Links,
    (from, to): (Side, Side),
    sizes: RangeInclusive<u64>,
) -> Vec<Explained> {
    let Some(main) = links.active.first() else { return Vec::new() };
    let together = links.abilities();
    let on_device = [from, to].iter().any(|side| side.shape(together.any).on_device);
    let location = if on_device { SOME_DEVICE } else { Location::HOST };
    let able = Able {
        main: main.capabilities(),
        links: together,
        copy_only: core.copy_only(),
        push_limit: core.parameters.device_push_limit as u64,
        scratch: shared.scratch.slot() != 0,
        costs: Costs::of(|operation| main.endpoint.cost(operation, &location)),
    };
    able.rows(from, to, sizes)
}

impl Able<'_> {
    fn rows(&self, from: Side, to: Side, sizes: RangeInclusive<u64>) -> Vec<Explained> {
        let header = MATCH_LEN as u64;
        let after = |limit: usize| (limit as u64 + 1).saturating_sub(header);
        let changes = [1, after(self.main.inline_limit), after(self.main.eager_limit), self.links.min_rdma_size as u64];
        let device =
            [self.links.device_min_rdma_size as u64, (self.links.device_max_rdma_size as u64).saturating_add(1)];
        let changes = changes.into_iter().chain(device).chain([self.push_limit.saturating_add(1)]);
        let mut starts: Vec<u64> = changes.filter(|size| sizes.contains(size)).collect();
        starts.push(*sizes.start());
        starts.sort_unstable();
        starts.dedup();
        let mut rows: Vec<Explained> = Vec::new();
        for (index, &first) in starts.iter().enumerate() {
            let last = starts.get(index + 1).map_or(*sizes.end(), |next| next - 1);
            let Decision { protocol, reason, before, cost } = self.decide(first, from, to);
            let expected = [first, last].map(|size| before * self.main.latency + cost.of(size));
            match rows.last_mut() {
                Some(row) if row.protocol == protocol && row.reason == reason => {
                    row.sizes = *row.sizes.start()..=last;
                    row.expected[1] = expected[1];
                }
                _ => rows.push(Explained { sizes: first..=last, protocol, reason, expected }),
            }
        }
        rows
    }

    fn decide(&self, len: u64, from: Side, to: Side) -> Decision {
        let mixed = from.shape(self.links.any).on_device != to.shape(self.links.any).on_device;
        let out = Message {
            len,
            from: from.shape(self.links.any),
            synchronous: false,
            credit: true,
            copy_only: self.copy_only,
            main: self.main,
            links: self.links,
            reachable: from.shape(self.links.any).on_device,
            stores: len <= self.push_limit && self.costs.put.of(len) <= self.costs.get.of(len),
            fetches: !mixed || !self.links.any.contains(Flags::DEVICE_TO_DEVICE),
        };
        let (start, why) = start(&out);
        let inline = len + MATCH_LEN as u64 <= self.main.inline_limit as u64;
        let eager = match start {
            Start::Eager if inline && out.from.one_run => Some("eager, inline"),
            Start::Eager | Start::AnnounceWithData => Some("eager"),
            Start::EagerInPlace => Some("eager, in place"),
            Start::EagerDevice => Some("eager, copied by the device"),
            Start::Expose | Start::Announce => None,
        };
        if let Some(protocol) = eager {
            return Decision { protocol, reason: why.to_owned(), before: 0, cost: self.costs.send };
        }
        let incoming = Announcement {
            exposed: start == Start::Expose,
            in_blocks: !out.from.one_run,
            addressable: (start == Start::Announce || out.from.on_device) && addressable(&out),
            packs: start == Start::Announce && packs(&out),
            scratch: self.scratch,
            to: to.shape(self.links.any),
            copy_only: self.copy_only,
            attentive: true,
            any: self.links.any,
            too_large: len > self.links.device_max_rdma_size as u64,
            mixed,
            get: self.costs.get.of(len),
            put: self.costs.put.of(len),
        };
        let (data, because) = data(&incoming);
        // An announcement goes before what the receiver fetches; its answer, too, before what the sender sends.
        let (protocol, before, cost) = match data {
            Data::Get => ("rendezvous, get", 1, self.costs.get),
            Data::Offered => ("rendezvous, fragments or get", 2, self.costs.send),
            Data::Put => ("rendezvous, put", 2, self.costs.put),
            // Of the last piece is told when it is there.
            Data::Pieces => ("rendezvous, put in pieces", 3, self.costs.put),
            Data::Fragments if out.from.on_device || incoming.to.on_device => {
                ("rendezvous, copied in chunks", 2, self.costs.send)
            }
            Data::Fragments => ("rendezvous, fragments", 2, self.costs.send),
        };
        Decision { protocol, reason: format!("{why}; {because}"), before, cost }
    }
}

/// What is done with messages of one size.
struct Decision {
    protocol: &'static str,
    reason: String,
    /// Small messages that go before its data.
    before: u32,
    /// Of moving its data.
    cost: Cost,
}

#[cfg(test)]
mod tests;
