//! The receiver: sends remote keys to the sender, and handles its FINs.

use cableway_btl::{Access, Flags, Registration};
use cableway_common_cuda::Order;

use super::header::{Put, PutFin};
use crate::core::Link;
use crate::protocol::context::Context;
use crate::protocol::transfer::{Channel, State};
use crate::protocol::{fragments, pieces, settle};
use crate::wire::{Exposed, Id, Malformed, WholePut};

/// Registers the buffer with every link that can PUT, each for the share that its bandwidth allows. Ranges that no link
/// takes come as fragments. `registered` holds the link that has registered all of it already.
pub(crate) fn expose(channel: &mut Channel, id: Id, mut registered: Option<(u32, Registration)>) {
    if expose_whole(channel, id, &mut registered) {
        return;
    }
    // Keep the order of requests.
    channel.links.send_gathered();
    let Channel { links, state: State { receives, .. } } = channel;
    let Some(transfer) = receives.get_mut(id) else { return };
    transfer.keep(None);
    let blocks = transfer.buffer.whole(transfer.wanted, Order::None).filter(|whole| whole.1.is_some());
    let flag = match transfer.buffer.is_on_device() {
        true if blocks.is_some() => Flags::DEVICE_PUT | Flags::DEVICE_STRIDED,
        true => Flags::DEVICE_PUT,
        false => Flags::PUT,
    };
    let able = |link: &Link| link.has(flag);
    let total: f64 = links.active.iter().filter(|link| able(link)).map(|link| link.capabilities().bandwidth).sum();
    let (sender, wanted) = (transfer.sender, transfer.wanted);
    let mut offset = 0;
    let mut share = 0.0;
    let mut requests = Vec::new();
    for link in links.active.iter_mut().filter(|link| able(link)) {
        share += link.capabilities().bandwidth / total;
        // Shares are whole cache lines, except the end of the message. If a share is not a number, it is the whole
        // message.
        let partial = share < 1.0 - f64::EPSILON && blocks.is_none();
        let end = if partial { (wanted as f64 * share) as u64 & !63 } else { wanted };
        let len = end.clamp(offset, wanted) - offset;
        let region = match blocks {
            Some((region, _)) if len != 0 => Some(region),
            _ => transfer.buffer.region(offset, len, Order::None).filter(|region| region.len != 0),
        };
        let Some(region) = region else { continue };
        let registration = match registered.take_if(|(serial, _)| *serial == link.serial && len == wanted) {
            Some((_, registration)) => Ok(Some(registration)),
            // SAFETY: the buffer belongs to the transfer until it is settled, which drops the registration first.
            None => unsafe { link.endpoint.register(region, Access::RemoteWrite) },
        };
        match registration {
            Ok(Some(registration)) => {
                let (handle, blocks) = (*registration.handle(), blocks.and_then(|whole| whole.1));
                let to = Exposed { btl: link.tag, ordinal: link.ordinal, handle, blocks };
                transfer.keep(registration.into_keeper());
                transfer.note_asked(len);
                requests.push(Put { sender, receiver: id, offset, len, total: wanted, to, offer: None });
                offset += len;
            }
            Ok(None) => break,
            Err(error) => {
                links.broken = Some((link.btl, error));
                break;
            }
        }
    }
    requests.into_iter().for_each(|put| links.queue_control(&put));
    if offset < wanted {
        let rest = (offset, wanted);
        fragments::ask(channel, id, &[rest]);
    }
    channel.links.flush_control();
}

/// Registers all of a device's buffer with the only link, and adds a PUT request to the gathered ones. Returns false,
/// without any effect, if the case is not that simple.
fn expose_whole(channel: &mut Channel, id: Id, registered: &mut Option<(u32, Registration)>) -> bool {
    let Channel { links, state: State { receives, .. } } = channel;
    let (Some(transfer), [link]) = (receives.get_mut(id), links.active.as_mut_slice()) else { return false };
    let able = transfer.buffer.is_on_device() && link.has(Flags::DEVICE_PUT);
    let Some(region) = transfer.buffer.region(0, transfer.wanted, Order::None).filter(|_| able) else { return false };
    let registration = match registered.take_if(|(serial, _)| *serial == link.serial) {
        Some((_, registration)) => registration,
        // SAFETY: the buffer belongs to the transfer until it is settled, which drops the registration first.
        None => match unsafe { link.endpoint.register(region, Access::RemoteWrite) } {
            Ok(Some(registration)) => registration,
            // The general path meets the error again and handles it.
            Ok(None) | Err(_) => return false,
        },
    };
    let (sender, wanted, via) = (transfer.sender, transfer.wanted, (link.tag, link.ordinal));
    links.ask_to_put(&WholePut { sender, receiver: id, len: wanted, handle: registration.handle() }, via);
    transfer.note_asked(wanted);
    transfer.keep(registration.into_keeper());
    true
}

/// Handles the sender's FIN for a range: it was stored, or could not be.
pub(crate) fn fin(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    PutFin { receiver: id, offset, len, result }: PutFin,
) -> Result<(), Malformed> {
    let transfer = fragments::awaiting(channel, id, "a FIN of a PUT", (offset, len))?;
    transfer.awaited -= len;
    if !pieces::fin(cx, channel, id, (offset, len), result.is_ok())
        && let Some(transfer) = channel.state.receives.get_mut(id)
    {
        if result.is_ok() {
            transfer.arrived += len;
        } else {
            transfer.asked -= len;
            fragments::ask(channel, id, &[(offset, offset + len)]);
        }
    }
    settle::receive(cx, channel, id);
    Ok(())
}
