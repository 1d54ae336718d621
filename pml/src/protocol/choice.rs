//! Which protocol carries a message: the one place where that is decided.
//!
//! The sender decides by [`start`], the receiver by [`data`] once a receive has matched. Both look at the buffer (device
//! or host, one run of bytes or several), its size, and what the link can do. `explain` prints the same functions.
//!
//! | the message | protocol |
//! |---|---|
//! | fits the inline limit, host, one run | inline: header and data in one store |
//! | from a device, one run, not large, the link reaches device memory | announced; the receiver exposes its buffer, the sender stores |
//! | the same, larger | announced with a handle, as below |
//! | fits the eager limit | eager: data comes along; a device's is copied into a fragment first |
//! | the same, synchronous, host | announced with its data; the receiver confirms |
//! | larger, one run, the link can GET | announced with a handle; the receiver fetches |
//! | the same, host, the link can OFFER | the same, but the sender may copy into fragments what it attends to first |
//! | larger, one run, the link can only PUT | announced; the receiver exposes its buffer, the sender stores |
//! | larger, a device's, a kernel packs it | announced; a receiver with one run exposes its buffer, the sender's kernel stores |
//! | anything else, or the receiver's buffer is in pieces | announced; fragments are sent through internal buffers |
//!
//! A device stores faster than it fetches, and the sender finds out about the order after its default stream while the
//! announcement travels. A large message is fetched instead: its receiver gets it while the sender computes.
//!
//! Between devices the link says from which size on one copy is cheaper than two through the host, and what it costs
//! where the receiver fetches and where the sender stores: the receiver takes the cheaper. A peer that has its buffers in
//! host memory is sent small messages eagerly.
//!
//! Where this table says one run, a device's buffer may also be blocks at regular distances, if the link has kernels copy
//! such: they go from place to place, packed nowhere. Blocks that are not regular only the kernel of the process finds
//! that has them. So a sender of such stores in a receiver's buffer that is one run, and a receiver fetches what is one run,
//! whatever the size, as either costs less than to pass through the host. Where neither side is one run, or the receiver
//! cannot fetch it, the sender stores pieces in scratch memory of the receiver's, which unpacks them.
//!
//! Where it is the network that reaches a device's memory ([`Flags::DEVICE_DIRECT`]), the link says up to which size that
//! is the best way: what is larger is copied through internal buffers, whose copies and transfers overlap.
//!
//! A device buffer on either side takes GET and PUT only where the link says that it can do so with device memory, and
//! never with `device_protocols=copy`: then its data always goes through internal buffers.

use std::time::Duration;

use cableway_btl::{Capabilities, Flags};
use cableway_common_cuda::{Devices, MemoryClass};
use cableway_datatype::Convertor;

use crate::core::{Abilities, DEVICE_RDMA};
use crate::wire::{MATCH_LEN, RENDEZVOUS_LEN};

/// What matters of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) on_device: bool,
    /// One operation of a link can move it: it is one run of bytes, or on a device, in blocks at regular distances, and
    /// the link has kernels copy such.
    pub(crate) contiguous: bool,
    /// It is one run of bytes.
    pub(crate) one_run: bool,
    /// It is on a device, but not in one run, and the link has a kernel of this process move it between its places and one
    /// run.
    pub(crate) packed: bool,
}

impl Shape {
    /// The shape of a message's buffer for links that can do this together. Whether kernels pack it is looked at only if
    /// nothing else moves it, or with `even_regular`: the first look lists its blocks.
    pub(crate) fn of(convertor: &Convertor, any: Flags, even_regular: bool, devices: &Devices) -> Shape {
        let shape = Shape::of_run(convertor, any);
        let asked = if even_regular { !shape.one_run } else { !shape.contiguous };
        let packed = asked && any.contains(Flags::DEVICE_PACKED) && convertor.spread(devices).is_some();
        Shape { packed, ..shape }
    }

    /// The same, where nobody asks whether kernels pack it.
    pub(crate) fn of_run(convertor: &Convertor, any: Flags) -> Shape {
        let on_device = convertor.location().on_device();
        let one_run = convertor.packed_size() == 0 || convertor.contiguous().is_some();
        // Managed memory may be anywhere.
        let able = convertor.location().class == MemoryClass::Device && any.contains(Flags::DEVICE_STRIDED);
        let regular = || able && convertor.strided().is_some();
        Shape { on_device, contiguous: one_run || regular(), one_run, packed: false }
    }
}

/// How a message sets out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With its data, which the CPU copies.
    Eager,
    /// With its data, which the link takes from where it is.
    EagerInPlace,
    /// With its data, once the device has copied it.
    EagerDevice,
    /// Announced, with its data.
    AnnounceWithData,
    /// Announced, with a handle.
    Expose,
    /// Announced.
    Announce,
}

/// How an announced message's data comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Get,
    /// Offered to the sender as fragments, window by window, and fetched where it does not claim them: two processes
    /// that copy at the same time are faster than one, if both are there.
    Offered,
    Put,
    /// Put into scratch memory of the receiver's in pieces, and unpacked from there by it.
    Pieces,
    Fragments,
}

/// The sender's part of the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'l> {
    pub(crate) len: u64,
    pub(crate) from: Shape,
    pub(crate) synchronous: bool,
    /// The receiver has room for its data, should nobody wait for it.
    pub(crate) credit: bool,
    /// `device_protocols=copy`.
    pub(crate) copy_only: bool,
    /// The link that carries headers.
    pub(crate) main: &'l Capabilities,
    /// What the links can do together.
    pub(crate) links: Abilities,
    /// Device memory that a link has made reachable for the peer.
    pub(crate) reachable: bool,
    /// One copy that the sender makes is wanted.
    pub(crate) stores: bool,
    /// The peer does not seem to keep its buffers in host memory.
    pub(crate) fetches: bool,
}

impl Message<'_> {
    fn is_small(&self) -> bool {
        let header = if self.synchronous { RENDEZVOUS_LEN } else { MATCH_LEN } as u64;
        self.len.saturating_add(header) <= self.main.eager_limit as u64
    }

    /// Whether the message is large enough for one copy, and not too large.
    fn repays(&self) -> bool {
        match self.from.on_device {
            true => self.len >= self.links.device_min_rdma_size as u64 && !self.is_too_large(),
            false => self.len >= self.links.min_rdma_size as u64,
        }
    }

    fn is_too_large(&self) -> bool {
        self.len > self.links.device_max_rdma_size as u64
    }
}

/// Whether the sender may be asked to pack its data into a receiver's buffer that is one run on a device.
pub(crate) fn packs(out: &Message<'_>) -> bool {
    !out.from.contiguous && unpacks(Flags::DEVICE_PUT, out.from, out.copy_only, out.links.any) && out.repays()
}

/// Whether kernels move data between its places on this side and one run on the other.
fn unpacks(device: Flags, shape: Shape, copy_only: bool, any: Flags) -> bool {
    shape.packed && any.contains(device | Flags::DEVICE_PACKED) && !copy_only
}

/// Whether a device message may be exposed, should a link be able to make it reachable.
pub(crate) fn exposes_device(out: &Message<'_>) -> bool {
    out.from.on_device
        && out.len != 0
        && rdma(Flags::GET, Flags::DEVICE_GET, out.from, out.copy_only, out.links.any)
        && out.repays()
        && (out.fetches || !out.is_small())
}

/// Whether a device message may be announced for the sender to store it in the receiver's buffer.
pub(crate) fn stores_device(out: &Message<'_>) -> bool {
    out.stores
        && out.from.on_device
        && out.from.contiguous
        && out.len != 0
        && addressable(out)
        && (out.fetches || !out.is_small())
}

/// How the message sets out, and why.
pub(crate) fn start(out: &Message<'_>) -> (Start, &'static str) {
    let header = if out.synchronous { RENDEZVOUS_LEN } else { MATCH_LEN } as u64;
    let small = out.is_small();
    if stores_device(out) {
        return (Start::Announce, "small: to be stored takes less time than to be fetched");
    }
    if out.reachable && exposes_device(out) {
        let reason = if small { "one copy between devices is cheaper than two" } else { "the receiver can fetch it" };
        return (Start::Expose, reason);
    }
    if small && out.credit {
        match (out.from.on_device, out.synchronous) {
            (false, true) => return (Start::AnnounceWithData, "synchronous, and its data fits the eager limit"),
            (true, false) if out.len != 0 => return (Start::EagerDevice, "device memory that fits the eager limit"),
            (_, false) => {
                let inline = out.len + header <= out.main.inline_limit as u64;
                if inline && out.from.contiguous {
                    return (Start::Eager, "fits the inline limit");
                }
                if out.main.flags.contains(Flags::SEND_IN_PLACE) && out.from.contiguous {
                    return (Start::EagerInPlace, "fits the eager limit, and the link sends from where the data is");
                }
                return (Start::Eager, "fits the eager limit");
            }
            (true, true) => {}
        }
    }
    let host = !out.from.on_device;
    if host && rdma(Flags::GET, Flags::DEVICE_GET, out.from, out.copy_only, out.links.any) && out.repays() {
        return (Start::Expose, "the receiver can fetch it");
    }
    let reason = if small && !out.credit {
        "the receiver has too much that nobody asked for"
    } else if out.from.on_device && out.copy_only {
        "device memory, and device_protocols=copy"
    } else if packs(out) {
        "its data is in pieces, which a kernel can pack where they belong"
    } else if !out.from.contiguous {
        "its data is in pieces"
    } else if out.from.on_device && out.links.any.intersects(DEVICE_RDMA) && out.is_too_large() {
        "device memory, more than the link reaches without loss"
    } else if out.from.on_device {
        "device memory, which the link cannot fetch"
    } else {
        "exceeds the eager limit"
    };
    (Start::Announce, reason)
}

/// Whether the sender may be asked to PUT.
pub(crate) fn addressable(out: &Message<'_>) -> bool {
    (rdma(Flags::PUT, Flags::DEVICE_PUT, out.from, out.copy_only, out.links.any) && out.repays()) || packs(out)
}

fn rdma(host: Flags, device: Flags, shape: Shape, copy_only: bool, any: Flags) -> bool {
    let flag = if shape.on_device { device } else { host };
    shape.contiguous && any.contains(flag) && !(shape.on_device && copy_only)
}

/// The receiver's part of the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement {
    /// A handle came along, and this process can use it.
    pub(crate) exposed: bool,
    /// It is in blocks.
    pub(crate) in_blocks: bool,
    /// The sender can PUT.
    pub(crate) addressable: bool,
    /// But only into one run on a device, because it packs.
    pub(crate) packs: bool,
    /// There is scratch memory on the receiver's device.
    pub(crate) scratch: bool,
    pub(crate) to: Shape,
    pub(crate) copy_only: bool,
    /// The sender's processor has time to copy, as far as can be seen: it was heard of since it last did not answer, has
    /// a processor of its own, and no message from here is under way to it.
    pub(crate) attentive: bool,
    /// What any link can do.
    pub(crate) any: Flags,
    /// A message to device memory is larger than any of them should move by itself.
    pub(crate) too_large: bool,
    /// One of the buffers is on a device and the other is not, as far as that is known.
    pub(crate) mixed: bool,
    /// Where both ways are open, what they cost: the receiver fetches, the sender stores.
    pub(crate) get: Duration,
    pub(crate) put: Duration,
}

/// How the data comes, and why.
pub(crate) fn data(incoming: &Announcement) -> (Data, &'static str) {
    let Announcement {
        exposed,
        in_blocks,
        addressable,
        packs,
        scratch,
        to,
        copy_only,
        attentive,
        any,
        too_large,
        mixed,
        ..
    } = *incoming;
    let (fetching, storing) = (incoming.get, incoming.put);
    let apart = mixed && any.contains(Flags::DEVICE_TO_DEVICE);
    let beyond = too_large && to.on_device;
    let get = exposed && !apart && !beyond && rdma(Flags::GET, Flags::DEVICE_GET, to, copy_only, any);
    let put = addressable && !apart && !beyond && rdma(Flags::PUT, Flags::DEVICE_PUT, to, copy_only, any);
    let reached = !apart && !beyond;
    if exposed && !in_blocks && reached && !to.contiguous && unpacks(Flags::DEVICE_GET, to, copy_only, any) {
        return (Data::Get, "fetched by a kernel, each block to where it belongs");
    }
    if packs && put && to.on_device && to.one_run {
        return (Data::Put, "stored by a kernel, packed where it belongs");
    }
    if packs || !to.contiguous {
        let pieces = addressable && scratch && reached && unpacks(Flags::DEVICE_PUT, to, copy_only, any);
        if pieces {
            return (Data::Pieces, "stored in scratch memory, from where a kernel unpacks it");
        }
    }
    if packs {
        return (Data::Fragments, "through internal buffers, as the receiver's is not reached in one run");
    }
    if get && put && to.on_device && any.contains(Flags::DEVICE_DIRECT) {
        return match storing < fetching {
            false => (Data::Get, "fetched by the network device"),
            true => (Data::Put, "stored by the network device"),
        };
    }
    if get && put && to.on_device {
        return match storing < fetching {
            false => (Data::Get, "fetched in one copy (on one device the lower rank copies)"),
            true => (Data::Put, "stored in one copy (on one device the lower rank copies)"),
        };
    }
    if get {
        if any.contains(Flags::OFFER) && !to.on_device && attentive {
            return (
                Data::Offered,
                "sent through internal buffers, and fetched from where it is if the sender is away",
            );
        }
        return (Data::Get, "fetched from where it is, in one copy");
    }
    if put {
        return (Data::Put, "stored where it belongs, in one copy");
    }
    let reason = if to.on_device && copy_only {
        "device memory, and device_protocols=copy"
    } else if !to.contiguous {
        "the receiver's buffer is in pieces"
    } else if apart && (exposed || addressable) {
        "only one of the two buffers is on a device"
    } else if beyond && any.intersects(DEVICE_RDMA) && (exposed || addressable) {
        "device memory, more than the link reaches without loss"
    } else if to.on_device && (exposed || addressable) {
        "device memory, which the link does not reach"
    } else {
        "through internal buffers"
    };
    (Data::Fragments, reason)
}
