//! The receiver: copies each fragment into the matched buffer as it comes, or collects it until a receive matches.

use std::time::Instant;

use cableway_btl::{Flags, Received};
use cableway_common_cuda::CopyOrder;
use cableway_datatype::Convertor;

use super::state::Destination;
use crate::core::Active;
use crate::error::Error;
use crate::protocol::context::Context;
use crate::protocol::eager;
use crate::protocol::fragments::{self, FRAGMENT_LEN, FragmentHeader};
use crate::protocol::host_costs::{HostCosts, Reach, Way};
use crate::protocol::offered::HALVES;
use crate::protocol::settle;
use crate::protocol::transfer::{Channel, Incoming};
use crate::status::Status;
use crate::wire::{Id, Malformed};

/// Expects the data of a message, before it is matched.
pub(crate) fn announced(cx: &Context<'_>, channel: &mut Channel, follows: (Id, u64)) -> Result<(), Malformed> {
    channel.state.followers.announced(follows, cx.core.parameters.pml_unexpected_limit as u64)
}

/// Drops the data of a message that nobody will receive.
pub(crate) fn refuse(cx: &Context<'_>, channel: &mut Channel, sender: Id) {
    let collected = channel.state.followers.redirect(sender, Destination::Nobody);
    eager::consume_within(cx, channel, collected.credit);
}

/// Receives a message that was matched.
pub(crate) fn begin(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (request, convertor, posted): (Active, Convertor, CopyOrder),
    status: Status,
    sender: Id,
) {
    let mut transfer = Incoming::new(request, convertor, posted, status, sender);
    if transfer.buffer.is_on_device() {
        cx.core.orders.note_message(false);
    }
    transfer.note_asked(transfer.wanted);
    let id = channel.state.receives.insert(transfer);
    let collected = channel.state.followers.redirect(sender, Destination::Receive(id));
    let Some(transfer) = channel.state.receives.get_mut(id) else { return };
    let len = transfer.wanted.min(collected.bytes.len() as u64);
    if len != 0 {
        transfer.buffer.convertor.set_position(0);
        // SAFETY: the collected bytes are readable and not part of a user's buffer.
        if let Err(error) = unsafe { transfer.buffer.convertor.unpack(collected.bytes.as_ptr(), len as usize) } {
            transfer.fail(Error::of_copy(error, &transfer.buffer.convertor));
        }
        transfer.awaited -= len;
        transfer.arrived += len;
    }
    if let Err(error) = cx.peer.check() {
        if transfer.awaited != 0 {
            transfer.fail(error);
        }
        transfer.gone = true;
    } else if collected.bytes.is_empty() {
        time(channel, id);
    }
    eager::consume_within(cx, channel, collected.credit);
    settle::receive(cx, channel, id);
}

/// Begins to time a message of which nothing has come yet.
fn time(channel: &mut Channel, id: Id) {
    let any = channel.links.abilities().any;
    let reach = Reach::of(any.contains(Flags::GET), any.contains(HALVES));
    let (Some(transfer), Some(costs)) = (channel.state.receives.get_mut(id), &mut channel.state.host_costs) else {
        return;
    };
    if !transfer.buffer.is_on_device() && transfer.wanted == transfer.status.len {
        let expected = HostCosts::expect_unasked(reach);
        costs.begin(transfer.wanted, Way::Unasked, expected, Instant::now());
        transfer.timed = true;
    }
}

/// Handles a fragment that was not requested.
pub(crate) fn arrived(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    FragmentHeader { transfer: sender, offset, .. }: FragmentHeader,
    message: &Received<'_>,
) -> Result<(), Malformed> {
    let payload = message.bytes().skip(FRAGMENT_LEN);
    let range = (offset, payload.len() as u64);
    let came = channel.state.followers.came(sender, range, |bytes| {
        let before = bytes.len();
        bytes.resize(before + payload.len(), 0);
        payload.copy_to(&mut bytes[before..]);
    })?;
    eager::consume_within(cx, channel, came.credit);
    // A receive that is shorter than the message completes before all has come.
    let Some((id, transfer)) = came.to.and_then(|id| Some((id, channel.state.receives.get_mut(id)?))) else {
        return Ok(());
    };
    let most = transfer.wanted.saturating_sub(offset);
    if most != 0 {
        fragments::arrived(cx, channel, (id, offset, most), message)?;
        settle::receive(cx, channel, id);
    }
    Ok(())
}
