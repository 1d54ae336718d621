//! Probes whether a PUT is possible, and its cost.

use cableway_btl::Flags;

use crate::protocol::probe::{Announcement, Cost, Data, Message, Passes, Probe, Quote, Start};

/// Returns whether the receiver may request a PUT.
pub(crate) fn is_addressable(message: &Message) -> bool {
    let reached = message.from.reached_by(Flags::PUT, Flags::DEVICE_PUT, message.copy_only, message.links.any);
    (reached.is_ok() && message.repays().is_ok()) || can_pack(message)
}

/// Returns whether the receiver may request that this process packs its data into one run of device memory.
pub(crate) fn can_pack(message: &Message) -> bool {
    let packs = message.from.packed_by(Flags::DEVICE_PUT, message.copy_only, message.links.any);
    !message.from.contiguous && packs && message.repays().is_ok()
}

/// Offers to announce a small device message and store it once the receiver exposes its buffer.
///
/// A device stores faster than it fetches. The RTR travels while this process asks about its default stream. A GET
/// would wait for that before its announcement, so the RTR does not count as a header. The receiver fetches large
/// messages, while this process computes.
#[inline(always)]
pub(crate) fn probe_send(message: &Message) -> Probe<Start> {
    if !message.from.on_device {
        return Err("the receiver must request a PUT of host memory first");
    }
    message.from.reached_by(Flags::PUT, Flags::DEVICE_PUT, message.copy_only, message.links.any)?;
    message.repays()?;
    if message.len == 0 {
        return Err("there is no data");
    }
    if message.len > message.push_limit {
        return Err("exceeds device_push_limit, or the peer copies");
    }
    if message.is_small() && !message.to_device {
        return Err("the receiver's buffers were in host memory so far");
    }
    let cost = Cost { passes: Passes::One, time: message.costs.put, headers: 1 };
    Ok(Quote { how: Start::Store, cost, reason: "small: the sender stores it faster than the receiver fetches it" })
}

/// Offers to expose the receiver's buffer to a sender that can store.
pub(crate) fn probe_receive(incoming: &Announcement) -> Probe<Data> {
    let &Announcement { to, copy_only, any, packs, .. } = incoming;
    let page_locked = incoming.page_locked && to.on_device;
    if !incoming.addressable && !page_locked {
        return Err("the sender cannot store");
    }
    if !to.on_device && incoming.exposed {
        return Err("the receiver can fetch it");
    }
    incoming.reaches()?;
    if packs && !(to.on_device && to.one_run) {
        return Err("the sender can pack only into one run of device memory");
    }
    to.reached_by(Flags::PUT, Flags::DEVICE_PUT, copy_only, any)?;
    let reason = match (packs, to.on_device) {
        _ if page_locked => "the sender's device stores it from page-locked memory",
        (true, _) => "the sender's kernel packs it into the receiver's buffer",
        (false, true) if any.contains(Flags::DEVICE_DIRECT) => "the sender's NIC stores it",
        (false, true) if incoming.exposed => "the sender stores it in one copy (on one device the lower rank copies)",
        _ => "the sender stores it in one copy",
    };
    let cost = Cost { passes: Passes::One, time: incoming.costs.put, headers: 1 };
    Ok(Quote { how: Data::Put, cost, reason })
}
