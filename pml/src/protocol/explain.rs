//! Explains the choice: the protocol for each size, its cost, and the answers of the other protocols' probes.

use std::ops::RangeInclusive;
use std::time::Duration;

use cableway_base::Parameters;
use cableway_base::parameters::DeviceProtocols;
use cableway_btl::{self as btl, Capabilities, Flags, Operation};
use cableway_common_cuda::{Location, MemoryClass};

use super::choice::{Probes, probe_data, probe_start};
use super::context::{Links, Shared};
use super::host_costs::{self, Measured};
use super::offered::HALVES;
use super::probe::{Announcement, Cost, Costs, Data, Message, Passes, Probe, Quote, Shape, Start};
use super::{page_locked, put};
use crate::core::{Abilities, Core};
use crate::wire::MATCH_LEN;

/// A buffer to explain the choice for.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Class of its memory.
    pub class: MemoryClass,
    /// Layout of its data.
    pub form: Form,
}

/// Layout of data in memory.
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
        let packed = !one_run && device && any.contains(Flags::DEVICE_PACKED);
        let page_locked = one_run && self.class == MemoryClass::Pinned;
        Shape { on_device, contiguous, one_run, packed, page_locked }
    }
}

/// One row: the protocol of standard sends of these sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// Smallest and largest size in bytes.
    pub sizes: RangeInclusive<u64>,
    /// The protocol.
    pub protocol: &'static str,
    /// Why it was chosen.
    pub reason: String,
    /// Expected time of a message of the smallest and of the largest size, from the sender's call to its arrival at a
    /// waiting receiver. It is the link's cost of the operation and its latency for each header before it.
    pub expected: [Duration; 2],
    /// Answers of the other protocols' probes, one a line: why the protocol cannot carry the message, or its cost.
    pub others: Vec<String>,
}

impl Explained {
    /// Formats the rows as a table. `observed` holds measured times for each row in the form of
    /// [`expected`](Self::expected), or is empty.
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
        for row in rows {
            text += &format!("# Not chosen for {}..{}\n", row.sizes.start(), row.sizes.end());
            row.others.iter().for_each(|other| text += &format!("#   {other}\n"));
        }
        text
    }
}

/// Formats two times in the unit that suits the longer.
fn span([first, last]: [Duration; 2]) -> String {
    let (unit, name) = match first.max(last).as_secs_f64() {
        seconds if seconds < 1e-3 => (1e6, "us"),
        seconds if seconds < 1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    let (first, last) = (first.as_secs_f64() * unit, last.as_secs_f64() * unit);
    if first == last { format!("{first:.2} {name}") } else { format!("{first:.2}..{last:.2} {name}") }
}

/// The links that answer questions about costs.
const SOME_DEVICE: Location = Location { class: MemoryClass::Device, ..Location::HOST };

/// The combined abilities of the links to a peer.
struct Able<'l> {
    main: &'l Capabilities,
    links: Abilities,
    copy_only: bool,
    push_limit: u64,
    /// Whether devices may have scratch memory.
    scratch: bool,
    costs: Costs,
    /// Measured costs of host messages to the peer, where they decide.
    host: Option<host_costs::Rows>,
}

fn costs(of: impl Fn(Operation) -> btl::Cost) -> Costs {
    Costs { send: of(Operation::Send), get: of(Operation::Get), put: of(Operation::Put), ..Costs::NOT_ASKED }
}

/// Returns the rows for a link with `capabilities` at both ends.
pub fn explain(
    capabilities: &Capabilities,
    parameters: &Parameters,
    from: Side,
    to: Side,
    sizes: RangeInclusive<u64>,
) -> Vec<Explained> {
    let same = btl::Cost { fixed: capabilities.latency, bytes_per_second: capabilities.bandwidth };
    let able = Able {
        main: capabilities,
        links: Abilities::NONE.with(capabilities),
        copy_only: parameters.device_protocols == DeviceProtocols::Copy,
        push_limit: parameters.device_push_limit as u64,
        scratch: parameters.device_scratch_size != 0,
        costs: costs(|_| same),
        host: None,
    };
    able.rows(from, to, sizes)
}

/// Returns the rows for messages over these links. It assumes that the peer's ends are like those of this process.
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
        costs: costs(|operation| main.endpoint.cost(operation, &location)),
        host: links.distance().filter(|_| !on_device).and_then(|distance| host_costs::kept_at(distance, &shared.kept)),
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
        let changes = changes.chain(host_costs::sizes().filter(|_| self.host.is_some()));
        let mut starts: Vec<u64> = changes.filter(|size| sizes.contains(size)).collect();
        starts.push(*sizes.start());
        starts.sort_unstable();
        starts.dedup();
        let mut rows: Vec<Explained> = Vec::new();
        for (index, &first) in starts.iter().enumerate() {
            let last = starts.get(index + 1).map_or(*sizes.end(), |next| next - 1);
            let Decision { protocol, reason, before, cost, others } = self.decide(first, from, to);
            let expected = [first, last].map(|size| before * self.main.latency + cost.of(size));
            match rows.last_mut() {
                Some(row) if row.protocol == protocol && row.reason == reason && row.others == others => {
                    row.sizes = *row.sizes.start()..=last;
                    row.expected[1] = expected[1];
                }
                _ => rows.push(Explained { sizes: first..=last, protocol, reason, expected, others }),
            }
        }
        rows
    }

    fn decide(&self, len: u64, from: Side, to: Side) -> Decision {
        let any = self.links.any;
        let (from_shape, to_shape) = (from.shape(any), to.shape(any));
        let mixed = from_shape.on_device != to_shape.on_device;
        let page_locked = mixed
            && page_locked::able(any, self.copy_only)
            && (from_shape.page_locked || to_shape.page_locked)
            && from_shape.one_run
            && to_shape.one_run
            && [from, to].iter().any(|side| side.class == MemoryClass::Device);
        let fetches = page_locked && from_shape.on_device;
        let out = Message {
            len,
            from: from_shape,
            synchronous: false,
            credit: true,
            copy_only: self.copy_only,
            eager_limit: self.main.eager_limit as u64,
            inline_limit: self.main.inline_limit as u64,
            in_place: self.main.flags.contains(Flags::SEND_IN_PLACE),
            links: self.links,
            registrable: true,
            push_limit: if fetches { 0 } else { self.push_limit },
            to_device: !mixed || !any.contains(Flags::DEVICE_TO_DEVICE),
            costs: self.costs,
        };
        let probes = probe_start(&out);
        let quote = probes.cheapest(len);
        let start = quote.how;
        let mut others = others("sender", &probes, start);
        let inline = len + out.header_len() <= out.inline_limit;
        let eager = match start {
            Start::Eager if inline && out.from.one_run => Some("eager, inline"),
            Start::Eager | Start::AnnounceWithData => Some("eager"),
            Start::EagerInPlace => Some("eager, in place"),
            Start::EagerDevice => Some("eager, copied by the device"),
            Start::EagerFragments | Start::Expose | Start::Store | Start::Announce => None,
        };
        if let Some(protocol) = eager {
            return Decision { protocol, reason: quote.reason.to_owned(), before: 0, cost: self.costs.send, others };
        }
        let timed = self.host.filter(|_| to_shape.one_run && any.contains(Flags::OFFER));
        let measured = timed.and_then(|rows| host_costs::measured(&rows, len));
        let incoming = Announcement {
            len,
            exposed: start == Start::Expose,
            in_blocks: !out.from.one_run,
            addressable: match (start, out.from.on_device) {
                (Start::Expose, false) => any.contains(HALVES),
                _ => put::is_addressable(&out),
            },
            packs: start == Start::Announce && put::can_pack(&out),
            scratch: self.scratch,
            to: to_shape,
            copy_only: self.copy_only,
            attentive: true,
            any,
            waits_for_turn: false,
            too_large: len > self.links.device_max_rdma_size as u64,
            timed: measured.is_some(),
            mixed,
            page_locked,
            costs: measured.as_ref().map_or(self.costs, |&Measured { costs: [send, get, halves], .. }| Costs {
                send,
                get,
                halves,
                ..self.costs
            }),
        };
        let answers = probe_data(&incoming);
        let answer = answers.cheapest(len);
        others.extend(self::others("receiver", &answers, answer.how));
        let protocol = match answer.how {
            Data::Get => "rendezvous, get",
            Data::Halves => "rendezvous, get and put",
            Data::Offered if incoming.timed => "rendezvous, fragments",
            Data::Offered => "rendezvous, fragments or get",
            Data::Put => "rendezvous, put",
            Data::Pieces => "rendezvous, put in pieces",
            Data::Fragments if out.from.on_device || incoming.to.on_device => "rendezvous, copied in chunks",
            Data::Fragments => "rendezvous, fragments",
        };
        // Without a better protocol, give the reason against the better one.
        let one_copy = out.from.on_device || !out.from.contiguous;
        let why = match start {
            Start::Announce if !incoming.packs => probes.refusal(if one_copy { "get" } else { "eager" }),
            _ => None,
        };
        let because = match answer.how {
            Data::Fragments if incoming.exposed => answers.refusal("get"),
            Data::Fragments if incoming.addressable => answers.refusal("put"),
            _ => None,
        };
        let mut reason = format!("{}; {}", why.unwrap_or(quote.reason), because.unwrap_or(answer.reason));
        if let Some(measured) = measured {
            reason += &format!("; measured: {}", measured.shown);
        }
        Decision { protocol, reason, before: 1 + answer.cost.headers, cost: answer.cost.time, others }
    }
}

/// The choice for messages of one size.
struct Decision {
    protocol: &'static str,
    reason: String,
    /// Headers that precede its data.
    before: u32,
    /// The cost of moving its data.
    cost: btl::Cost,
    others: Vec<String>,
}

/// Returns the answers of all probes but the chosen one.
fn others<How: Copy + PartialEq, const N: usize>(side: &str, all: &Probes<How, N>, chosen: How) -> Vec<String> {
    let answers = all.probes.iter().copied().chain([(all.last.0, Ok(all.last.1))]);
    let others = answers.filter(|(_, probe)| !matches!(probe, Ok(quote) if quote.how == chosen));
    let answer = |probe: Probe<How>| match probe {
        Ok(Quote { cost: Cost { passes, headers, .. }, .. }) => {
            let copies = match passes {
                Passes::Along => "with the header",
                Passes::Shared => "one copy shared by both processes",
                Passes::One => "one copy",
                Passes::Packed => "packed and unpacked by kernels",
                Passes::Staged => "one copy on each side",
            };
            format!("costs more: {copies}, headers before it: {headers}")
        }
        Err(reason) => reason.to_owned(),
    };
    others.map(|(name, probe)| format!("{side}: {name}: {}", answer(probe))).collect()
}

#[cfg(test)]
mod tests;
