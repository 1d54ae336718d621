//! Headers of fragments.

use cableway_btl::Offer;
use memoffset::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::wire::{Header, HeaderBuffer, Id, Malformed, Reader, flag, kind, layouts};

/// Receiver to sender: send the range as fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) sender: Id,
    pub(crate) receiver: Id,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bytes that the receiver requests in all, by this and other headers.
    pub(crate) total: u64,
    /// Whether the receiver's buffer is on a device. Large fragments suit it. Its copies may fail late, so a FIN
    /// reports their result.
    pub(crate) to_device: bool,
    /// Whether the receiver would have fetched the data, if it had been announced with a remote key.
    pub(crate) fetches: bool,
    /// Whether to store the fragments past the caches.
    pub(crate) stream: bool,
    /// Whether to store eager messages through the caches from now on.
    pub(crate) cache_eager: bool,
    /// The next messages of this size that may leave without a request.
    pub(crate) unasked: u8,
    /// An offer that the sender must claim first. The receiver may have withdrawn it to fetch the range itself.
    pub(crate) offer: Option<Offer>,
}

/// Sender to receiver: data for `offset`, which is the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentHeader {
    /// The receiver's transfer; the sender's, if the data was not requested.
    pub(crate) transfer: Id,
    /// Whether the data follows its announcement without a request.
    pub(crate) unasked: bool,
    pub(crate) offset: u64,
}

layouts! {
    AckLayout {
        kind: u8, flags: u8, unasked: u8, zero: [u8; 5],
        sender: U64, receiver: U64, from: U64, to: U64, total: U64, offer: U64,
    }
    FragmentLayout { kind: u8, flags: u8, zero: [u8; 6], transfer: U64, offset: U64 }
}

const _: () = {
    assert!(size_of::<AckLayout>() == 56 && offset_of!(AckLayout, unasked) == 2);
    assert!(offset_of!(AckLayout, sender) == 8 && offset_of!(AckLayout, offer) == 48);
    assert!(FRAGMENT_LEN == 24 && offset_of!(FragmentLayout, transfer) == 8);
    assert!(offset_of!(FragmentLayout, offset) == 16);
};

/// Length of the header of a fragment.
pub(crate) const FRAGMENT_LEN: usize = size_of::<FragmentLayout>();

/// The receiver's buffer is on a device.
const FLAG_TO_DEVICE: u8 = 1;
/// The sender must claim an offer first.
const FLAG_OFFERED: u8 = 2;
/// The sender is to store the fragments past the caches.
const FLAG_STREAM: u8 = 4;
/// The sender is to store eager messages through the caches.
const FLAG_CACHE_EAGER: u8 = 8;
/// The receiver would have fetched from a remote key.
const FLAG_FETCHES: u8 = 16;
/// Of a fragment: its data was not requested.
const FLAG_UNASKED: u8 = 1;

impl Header for Ack {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let AckLayout { flags, unasked, zero, sender, receiver, from, to, total, offer, .. } = reader.read_all()?;
        reader.flags(flags, FLAG_TO_DEVICE | FLAG_OFFERED | FLAG_STREAM | FLAG_CACHE_EAGER | FLAG_FETCHES)?;
        reader.reserved(&zero)?;
        let (from, to, total) = (from.get(), to.get(), total.get());
        if from > to || to - from > total {
            return Err(Malformed::Range { from, to, total });
        }
        let offered = flags & FLAG_OFFERED != 0;
        if !offered {
            reader.reserved(&offer)?;
        }
        Ok(Ack {
            sender: Id(sender.get()),
            receiver: Id(receiver.get()),
            from,
            to,
            total,
            to_device: flags & FLAG_TO_DEVICE != 0,
            fetches: flags & FLAG_FETCHES != 0,
            stream: flags & FLAG_STREAM != 0,
            cache_eager: flags & FLAG_CACHE_EAGER != 0,
            unasked,
            offer: offered.then_some(Offer(offer.get())),
        })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let flags = flag(self.offer.is_some(), FLAG_OFFERED)
            | flag(self.to_device, FLAG_TO_DEVICE)
            | flag(self.stream, FLAG_STREAM)
            | flag(self.cache_eager, FLAG_CACHE_EAGER)
            | flag(self.fetches, FLAG_FETCHES);
        let layout = AckLayout {
            kind: kind::ACK,
            flags,
            unasked: self.unasked,
            zero: [0; 5],
            sender: self.sender.0.into(),
            receiver: self.receiver.0.into(),
            from: self.from.into(),
            to: self.to.into(),
            total: self.total.into(),
            offer: self.offer.map_or(0, |offer| offer.0).into(),
        };
        out.push(layout.as_bytes());
    }
}

impl Header for FragmentHeader {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let FragmentLayout { flags, zero, transfer, offset, .. } = reader.read()?;
        reader.flags(flags, FLAG_UNASKED)?;
        reader.reserved(&zero)?;
        let payload = (reader.message_len - FRAGMENT_LEN) as u64;
        if payload == 0 {
            return Err(Malformed::Payload { kind: reader.kind, payload: 0, expected: 1 });
        }
        let offset = offset.get();
        reader.range(offset, payload, u64::MAX)?;
        Ok(FragmentHeader { transfer: Id(transfer.get()), unasked: flags & FLAG_UNASKED != 0, offset })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let (flags, transfer, offset) = (flag(self.unasked, FLAG_UNASKED), self.transfer.0.into(), self.offset.into());
        out.push(FragmentLayout { kind: kind::FRAGMENT, flags, zero: [0; 6], transfer, offset }.as_bytes());
    }
}
