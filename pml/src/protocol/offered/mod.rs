//! Offered: the sender may copy ranges of an announced message into fragments, and the receiver fetches the other
//! ranges.
//!
//! A sender in progress copies a range into fragments while this process copies the one before out of them, which is
//! faster than a fetch alone. A sender that computes and makes no progress would keep the message waiting. So each
//! range is only offered. If the sender is not heard from for a while, the receiver withdraws the range and fetches it.
//! A range is either claimed or withdrawn, never both.

mod state;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Flags, Offer};

use super::context::{Context, Links};
use super::fragments::Ack;
use super::probe::{Announcement, Cost, Data, Passes, Probe, Quote};
use super::transfer::{Channel, Incoming, State};
use crate::wire::Id;

pub(crate) use state::{Offers, OpenOffer};

/// Offers to let the sender copy the ranges that it claims, and to fetch the rest. Only where a GET is possible.
pub(crate) fn probe_receive(incoming: &Announcement) -> Probe<Data> {
    if !incoming.is_between_hosts() {
        return Err("only copies of host memory can be shared by two processes");
    }
    if !incoming.any.contains(Flags::OFFER) {
        return Err("no link supports offers");
    }
    if !incoming.attentive {
        return Err("the sender may be too busy to answer");
    }
    let passes = if incoming.timed { Passes::One } else { Passes::Shared };
    let cost = Cost { passes, time: incoming.costs.send, headers: 1 };
    let reason = "by single copy or through internal buffers, whichever was faster for earlier messages of the size";
    Ok(Quote { how: Data::Offered, cost, reason })
}

/// What a link needs so that both processes copy (see [`halves`](super::halves)).
pub(crate) const HALVES: Flags = Flags::GET.union(Flags::PUT).union(Flags::OFFER);

/// Factor of the longer wait for a sender that has claimed a range and not sent it yet.
const AT_WORK: usize = 16;

/// Claims a range at the sender, if it was offered. Returns false if the range is not to be sent. The receiver fetches
/// ranges that a device would have to copy first, and ranges that it has withdrawn.
pub(crate) fn claim(channel: &mut Channel, id: Id, offer: Option<Offer>) -> bool {
    let Some(offer) = offer else { return true };
    let Channel { links, state: State { sends, .. } } = channel;
    let on_host = sends.get_mut(id).is_some_and(|sent| !sent.buffer.is_on_device());
    on_host && links.active.iter_mut().any(|link| link.endpoint.claim(offer))
}

/// Offers the next range of at most `window` bytes. Returns false if too much is on offer.
pub(crate) fn offer_range(channel: &mut Channel, id: Id, window: u64) -> bool {
    let Channel { links, state: State { receives, offers, .. } } = channel;
    let Some(transfer) = receives.get_mut(id) else { return true };
    let &mut Incoming { sender, wanted: total, stream, cache_eager, unasked, .. } = transfer;
    let Some(fetch) = transfer.fetch() else { return true };
    let Some(link) = links.by_serial(fetch.from.link) else { return true };
    let Some(offer) = link.endpoint.offer() else { return false };
    let Some((from, to)) = fetch.take(window) else { return true };
    fetch.offered_any = true;
    offers.open(OpenOffer { id, from, to, link: fetch.from.link, offer, stores: false });
    links.send_control(&Ack {
        sender,
        receiver: id,
        from,
        to,
        total,
        to_device: false,
        fetches: false,
        stream,
        cache_eager,
        unasked,
        offer: Some(offer),
    });
    true
}

/// Notes that `len` bytes for `offset` have come or were stored, so that the range was claimed. Returns false if it was not.
pub(crate) fn was_claimed(channel: &mut Channel, id: Id, offset: u64, len: u64) -> bool {
    let offers = &mut channel.state.offers;
    let within = |open: &OpenOffer| open.id == id && (open.from..open.to).contains(&offset);
    if let Some(at) = offers.open.iter().position(within)
        && let Some(open) = offers.open.remove(at)
        && end(channel, open)
    {
        return false;
    }
    channel.state.offers.forget(len);
    true
}

/// Withdraws the unclaimed offers of one message or of all, so that they are fetched. Returns how many.
pub(crate) fn take_back(channel: &mut Channel, only: Option<Id>) -> usize {
    let offers = &mut channel.state.offers;
    let (those, others) =
        std::mem::take(&mut offers.open).into_iter().partition(|open| only.is_none_or(|id| open.id == id));
    offers.open = others;
    VecDeque::into_iter(those).filter_map(|open| end(channel, open).then_some(())).count()
}

/// Takes back the range nearest to the front of the youngest message whose sender stores, unless this process is still
/// at work on that message. Returns whether a range is to be fetched now. For a receiver that has nothing else to fetch.
pub(crate) fn take_back_stored(channel: &mut Channel) -> bool {
    let State { receives, offers, .. } = &mut channel.state;
    let idle = |id: Id| receives.get_mut(id).is_none_or(|transfer| transfer.busy == 0);
    match offers.last_stored(idle) {
        Some(open) => end(channel, open) || take_back_stored(channel),
        None => false,
    }
}

/// Ends an offer. Returns true if it was withdrawn and is to be fetched. A sender must claim a range before it sends
/// it, so a fragment of an unclaimed range is malformed.
pub(crate) fn end(channel: &mut Channel, open: OpenOffer) -> bool {
    let Channel { links, state: State { receives, offers, queues, .. } } = channel;
    let claimed = !withdraw(links, &open);
    let transfer = receives.get_mut(open.id);
    if claimed {
        let len = open.to - open.from;
        offers.claimed += len;
        if let Some(transfer) = transfer {
            transfer.note_asked(len);
        }
        return false;
    }
    if let Some(fetch) = transfer.and_then(|transfer| transfer.fetch()) {
        fetch.ranges.push((open.from, open.to));
        if !std::mem::replace(&mut fetch.queued, true) {
            queues.gets.push_back(open.id);
        }
    }
    true
}

fn withdraw(links: &mut Links, open: &OpenOffer) -> bool {
    let Some(link) = links.by_serial(open.link) else { return false };
    let (btl, withdrawn) = (link.btl, link.endpoint.withdraw(open.offer));
    withdrawn.unwrap_or_else(|error| {
        links.broken = Some((btl, error));
        false
    })
}

/// Checks whether the peer claims its offers. Returns how many ranges were withdrawn.
pub(crate) fn watch(cx: &Context<'_>, channel: &mut Channel) -> usize {
    let offers = &mut channel.state.offers;
    if offers.is_empty() {
        return 0;
    }
    let heard = cx.peer.heard.load(Relaxed);
    offers.turns = if offers.heard == heard { offers.turns + 1 } else { 0 };
    offers.heard = heard;
    // Do not disturb a peer with work before that work should be done.
    let longer = if offers.claimed == 0 { 1 } else { AT_WORK };
    if offers.turns <= cx.core.parameters.pml_offer_patience.saturating_mul(longer) {
        return 0;
    }
    offers.turns = 0;
    let Some(oldest) = offers.open.pop_front() else { return 0 };
    if !end(channel, oldest) {
        // The peer has just begun.
        return 0;
    }
    channel.state.offers.away = Some(heard);
    1 + take_back(channel, None)
}
