//! Halves: the receiver fetches the front of an announced message while the sender stores the back.
//!
//! ```text
//! sender                                 receiver
//!     Get            ------------->
//!                    <-------------         Put for each range of the back, with an offer
//!     claims and stores the back            fetches the front
//!     PutFin         ------------->         withdraws and fetches the ranges that nobody claimed
//!                    <-------------         Fin
//! ```
//!
//! One processor reaches only a part of the memory's bandwidth, so two single copies at once take about half the time of
//! one. A sender that computes claims nothing. Then the receiver fetches everything, and has lost one header.
//!
//! The sender takes ranges from the end of the message on, and the receiver withdraws them from the front, so that both
//! end at the same time although one may begin late.

use cableway_btl::Access;
use cableway_common_cuda::Order;

use super::context::{Context, Links};
use super::fragments::awaiting;
use super::get::{self, Fetch, Remote};
use super::offered::{self, HALVES, OpenOffer};
use super::probe::{Announcement, Cost, Data, Passes, Probe, Quote};
use super::put::{Put, PutFin};
use super::transfer::{Channel, Incoming, Protocol, State};
use crate::core::Link;
use crate::wire::{Exposed, Id, Malformed};

/// The ranges of the back that are offered at most. A link has few offers, which all messages of a peer share.
const MOST_RANGES: u64 = 4;
/// The least bytes of such a range, unless the whole back is shorter. Each range takes a header and a claim, which is
/// about the time of a copy of some KiB.
const LEAST_RANGE: u64 = 128 << 10;
/// The message is parted at multiples of this, so that both processes do not write the same page.
const PAGE: u64 = 4096;

/// Offers to fetch the front while the sender stores the back.
pub(crate) fn probe_receive(incoming: &Announcement) -> Probe<Data> {
    if !incoming.is_between_hosts() {
        return Err("only copies of host memory can be shared by two processes");
    }
    if !incoming.any.contains(HALVES) || !incoming.addressable {
        return Err("no link lets both processes copy");
    }
    if !incoming.timed {
        return Err("it is chosen only by the times of earlier messages");
    }
    if incoming.len < 2 * PAGE {
        return Err("the message is too short to be parted");
    }
    let cost = Cost { passes: Passes::One, time: incoming.costs.halves, headers: 1 };
    Ok(Quote { how: Data::Halves, cost, reason: "the receiver fetches one half, and the sender stores the other" })
}

/// Offers the back of a message to its sender, and starts to fetch the front.
pub(crate) fn begin(cx: &mut Context<'_>, channel: &mut Channel, id: Id, from: Remote) {
    cx.core.counters.protocol_get.increment();
    let Channel { links, state: State { receives, offers, queues, .. } } = &mut *channel;
    let Some(transfer) = receives.get_mut(id) else { return };
    let wanted = transfer.wanted;
    let mut fetch = Fetch::new(from, wanted, false);
    let middle = (wanted / 2).next_multiple_of(PAGE);
    let ranges = ((wanted - middle) / LEAST_RANGE).clamp(1, MOST_RANGES);
    let each = (wanted - middle).div_ceil(ranges).next_multiple_of(PAGE);
    let mut to = wanted;
    while to > middle {
        let range = (to.saturating_sub(each).max(middle), to);
        let Some((put, open)) = offer_range(links, transfer, (id, from), range, &mut fetch) else { break };
        offers.open(open);
        links.send_control(&put);
        fetch.offered_any = true;
        to = range.0;
    }
    fetch.halves = true;
    fetch.leave(to);
    transfer.protocol = Protocol::Get(Box::new(fetch));
    transfer.owes_fin = true;
    queues.gets.push_back(id);
    get::advance(cx, channel);
}

/// Registers a range for the sender's store, and makes an offer of it. Returns `None` if the link has none left.
fn offer_range(
    links: &mut Links,
    transfer: &mut Incoming,
    (id, from): (Id, Remote),
    range: (u64, u64),
    fetch: &mut Fetch,
) -> Option<(Put, OpenOffer)> {
    let (offset, len) = (range.0, range.1 - range.0);
    let region = transfer.buffer.region(offset, len, Order::None)?;
    let link: &mut Link = links.by_serial(from.link)?;
    let offer = link.endpoint.offer()?;
    // SAFETY: the buffer belongs to the transfer until it is settled, which drops the registration first.
    let registered = unsafe { link.endpoint.register(region, Access::RemoteWrite) };
    let Ok(Some(registration)) = registered else {
        // The link's error shows again at the next operation.
        let _ = link.endpoint.withdraw(offer);
        return None;
    };
    let to = Exposed { btl: link.tag, ordinal: link.ordinal, handle: *registration.handle(), blocks: None };
    fetch.keepers.extend(registration.into_keeper());
    let put =
        Put { sender: transfer.sender, receiver: id, offset, len, total: transfer.wanted, to, offer: Some(offer) };
    Some((put, OpenOffer { id, from: range.0, to: range.1, link: from.link, offer, stores: true }))
}

/// Returns whether a message's sender may store ranges of it.
pub(crate) fn are_stored(channel: &mut Channel, id: Id) -> bool {
    let transfer = channel.state.receives.get_mut(id);
    transfer.and_then(Incoming::fetch).is_some_and(|fetch| fetch.halves)
}

/// Handles the sender's FIN for a range: it was stored, or could not be. Then it comes as fragments.
pub(crate) fn fin(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    PutFin { receiver: id, offset, len, result }: PutFin,
) -> Result<(), Malformed> {
    let what = "a FIN of a PUT";
    if !offered::was_claimed(channel, id, offset, len) {
        return Err(Malformed::OutOfTurn { what, id: id.0 });
    }
    let transfer = awaiting(channel, id, what, (offset, len))?;
    transfer.awaited -= len;
    if result.is_ok() || transfer.failure.is_some() {
        transfer.arrived += len;
    } else {
        transfer.asked -= len;
        if let Some(fetch) = transfer.fetch() {
            fetch.refused.push((offset, offset + len));
        }
    }
    get::settle_fetch(cx, channel, id);
    Ok(())
}
