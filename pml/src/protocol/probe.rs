//! Probes: the questions to the protocols about a message, and their answers.
//!
//! Each protocol has a `probe_send` for the first header of a message, a `probe_receive` for an announced message that
//! has matched a receive, or both. A probe returns the protocol's cost, or why it cannot carry the message.
//! [`choice`](super::choice) takes the cheapest. [`explain`](mod@super::explain) prints them all.

use std::time::Duration;

use cableway_btl::{self as btl, Flags};
use cableway_common_cuda::{Devices, MemoryClass};
use cableway_datatype::Convertor;

use super::rendezvous::RENDEZVOUS_LEN;
use crate::core::{Abilities, DEVICE_RDMA};
use crate::wire::MATCH_LEN;

pub(crate) const COPY_ONLY: &str = "device_protocols=copy allows no direct access to device memory";

/// A protocol's answer: an offer to carry the message, or the reason why it cannot.
pub(crate) type Probe<How> = Result<Quote<How>, &'static str>;

/// A protocol's offer to carry a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quote<How> {
    pub(crate) how: How,
    pub(crate) cost: Cost,
    /// The reason for it, for people.
    pub(crate) reason: &'static str,
}

/// The cost of a protocol, compared field by field in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Given by the protocol.
    pub(crate) passes: Passes,
    /// The link's time for the operation (`Endpoint::cost` and `transfer_cost`, which follow the measured costs of
    /// device copies). Zero where the protocols do not differ in it; then no link is asked.
    pub(crate) time: btl::Cost,
    /// Headers that precede the data and overlap with nothing. Given by the protocol; each takes the latency of a link.
    pub(crate) headers: u32,
}

/// How often the data is copied. Simultaneous passes of two processes count half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Passes {
    /// The data travels with a header that is sent in any case.
    Along,
    /// Both processes copy at the same time.
    Shared,
    One,
    /// Kernels pack and unpack it, and overlap.
    Packed,
    /// It goes into an internal buffer and out of another.
    Staged,
}

impl Cost {
    /// Returns whether it is less than another cost for `len` bytes.
    #[inline(always)]
    pub(crate) fn beats(&self, other: &Cost, len: u64) -> bool {
        if self.passes != other.passes {
            return self.passes < other.passes;
        }
        other.time.exceeds(&self.time, len) || (!self.time.exceeds(&other.time, len) && self.headers < other.headers)
    }
}

/// The costs of a link's operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) send: btl::Cost,
    /// A GET by the receiver.
    pub(crate) get: btl::Cost,
    /// A PUT by the sender.
    pub(crate) put: btl::Cost,
    /// A GET of one half and a PUT of the other.
    pub(crate) halves: btl::Cost,
}

impl Costs {
    const FREE: btl::Cost = btl::Cost { fixed: Duration::ZERO, bytes_per_second: f64::INFINITY };
    /// Used where no choice depends on the costs.
    pub(crate) const NOT_ASKED: Costs =
        Costs { send: Self::FREE, get: Self::FREE, put: Self::FREE, halves: Self::FREE };
}

/// Memory and layout of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) on_device: bool,
    /// One operation of a link can move it: it is one run of bytes, or device memory in blocks at regular distances
    /// that the link has kernels for.
    pub(crate) contiguous: bool,
    /// It is one run of bytes.
    pub(crate) one_run: bool,
    /// It is device memory in several runs, and a kernel of this process can move it between its blocks and one run.
    pub(crate) packed: bool,
    /// It is one run of page-locked host memory.
    pub(crate) page_locked: bool,
}

impl Shape {
    /// Returns the shape of a message's buffer for links with these abilities. The first question about kernels lists
    /// the blocks, so it is asked only if nothing else moves the data, or with `even_regular`.
    pub(crate) fn of(convertor: &Convertor, any: Flags, even_regular: bool, devices: &Devices) -> Shape {
        let shape = Shape::of_run(convertor, any);
        let asked = if even_regular { !shape.one_run } else { !shape.contiguous };
        let packed = asked && any.contains(Flags::DEVICE_PACKED) && convertor.spread(devices).is_some();
        Shape { packed, ..shape }
    }

    /// Returns the shape without the question about kernels.
    pub(crate) fn of_run(convertor: &Convertor, any: Flags) -> Shape {
        let class = convertor.location().class;
        let on_device = convertor.location().on_device();
        let one_run = convertor.packed_size() == 0 || convertor.contiguous().is_some();
        // Managed memory may be anywhere.
        let able = class == MemoryClass::Device && any.contains(Flags::DEVICE_STRIDED);
        let regular = || able && convertor.strided().is_some();
        let page_locked = one_run && class == MemoryClass::Pinned;
        Shape { on_device, contiguous: one_run || regular(), one_run, packed: false, page_locked }
    }

    /// Returns whether one operation can move the data, and a link has this operation for its memory.
    pub(crate) fn reached_by(
        &self,
        host: Flags,
        device: Flags,
        copy_only: bool,
        any: Flags,
    ) -> Result<(), &'static str> {
        if self.on_device && copy_only {
            return Err(COPY_ONLY);
        }
        if !self.contiguous {
            return Err("the data is in blocks");
        }
        match (any.contains(if self.on_device { device } else { host }), self.on_device) {
            (true, _) => Ok(()),
            (false, true) => Err("no link supports this for device memory"),
            (false, false) => Err("no link supports this"),
        }
    }

    /// Returns whether kernels move data between its blocks on this side and one run on the other.
    pub(crate) fn packed_by(&self, device: Flags, copy_only: bool, any: Flags) -> bool {
        self.packed && any.contains(device | Flags::DEVICE_PACKED) && !copy_only
    }
}

/// How a message starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With its data, which the CPU copies.
    Eager,
    /// With its data, which the link sends in place.
    EagerInPlace,
    /// With its data, once the device has copied it.
    EagerDevice,
    /// Announced, with its data.
    AnnounceWithData,
    /// Announced, and the data follows in fragments without a request.
    EagerFragments,
    /// Announced, with a remote key.
    Expose,
    /// Announced; this process stores the data.
    Store,
    /// Announced.
    Announce,
}

/// How an announced message's data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Get,
    Offered,
    Halves,
    Put,
    Pieces,
    Fragments,
}

/// The description of a message for the sender's probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) len: u64,
    pub(crate) from: Shape,
    pub(crate) synchronous: bool,
    /// Whether the credit covers its data.
    pub(crate) credit: bool,
    /// Whether `device_protocols=copy` is set.
    pub(crate) copy_only: bool,
    /// Limits of the link that carries headers.
    pub(crate) eager_limit: u64,
    pub(crate) inline_limit: u64,
    pub(crate) in_place: bool,
    /// The combined abilities of the links.
    pub(crate) links: Abilities,
    /// Whether no link has refused yet to register this device memory.
    pub(crate) registrable: bool,
    /// `device_push_limit`: largest device message that the sender wants to store. Zero where the peer should copy.
    pub(crate) push_limit: u64,
    /// Whether the peer may have its buffer on a device: it moved announced messages by one copy before.
    pub(crate) to_device: bool,
    pub(crate) costs: Costs,
}

impl Message {
    /// Returns whether data and header fit into one message.
    pub(crate) fn is_small(&self) -> bool {
        self.len.saturating_add(self.header_len()) <= self.eager_limit
    }

    pub(crate) fn header_len(&self) -> u64 {
        if self.synchronous { RENDEZVOUS_LEN as u64 } else { MATCH_LEN as u64 }
    }

    /// Returns whether one copy pays for this size, according to the links.
    pub(crate) fn repays(&self) -> Result<(), &'static str> {
        let (on_device, links) = (self.from.on_device, &self.links);
        let least = if on_device { links.device_min_rdma_size } else { links.min_rdma_size };
        if self.len < least as u64 {
            return Err("one copy does not pay for so few bytes");
        }
        if on_device && self.len > links.device_max_rdma_size as u64 {
            return Err("exceeds the links' limit for one-copy transfers of device memory");
        }
        Ok(())
    }

    /// Returns whether one operation between devices may carry the message, as far as the sender knows.
    pub(crate) fn may_be_one_copy(&self) -> bool {
        let able = self.from.on_device && self.from.contiguous && !self.copy_only && self.len != 0;
        able && self.links.any.intersects(DEVICE_RDMA) && self.repays().is_ok()
    }
}

/// The description of an announcement for the receiver's probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement {
    pub(crate) len: u64,
    /// Whether a remote key came along, and a link of this process reaches the memory.
    pub(crate) exposed: bool,
    /// Whether that memory is in blocks.
    pub(crate) in_blocks: bool,
    /// Whether the sender can PUT.
    pub(crate) addressable: bool,
    /// Whether it can PUT only into one run on a device, because a kernel packs.
    pub(crate) packs: bool,
    /// Whether the receiver's device has scratch memory.
    pub(crate) scratch: bool,
    pub(crate) to: Shape,
    pub(crate) copy_only: bool,
    /// Whether the sender probably has time: it has answered the last offer, has a core of its own, and no message is
    /// being sent to it.
    pub(crate) attentive: bool,
    /// Flags that any of the links has.
    pub(crate) any: Flags,
    /// Whether the message is larger than a link should move to device memory by one operation.
    pub(crate) too_large: bool,
    /// Whether contexts take turns on the device, and one copy would wait for that longer than two copies take.
    pub(crate) waits_for_turn: bool,
    /// Whether the costs come from messages of the peer. Then they alone decide.
    pub(crate) timed: bool,
    /// Whether only one of the buffers is on a device.
    pub(crate) mixed: bool,
    /// Whether the other one is page-locked, and a device of its process may copy.
    pub(crate) page_locked: bool,
    pub(crate) costs: Costs,
}

impl Announcement {
    /// Returns whether both buffers are in host memory.
    pub(crate) fn is_between_hosts(&self) -> bool {
        !self.to.on_device && !self.mixed
    }

    /// Returns whether one operation may connect the two buffers.
    pub(crate) fn reaches(&self) -> Result<(), &'static str> {
        // The links' limits do not include what the user rules out.
        if self.to.on_device && self.copy_only {
            return Err(COPY_ONLY);
        }
        if self.mixed && !self.page_locked && self.any.contains(Flags::DEVICE_TO_DEVICE) {
            return Err("only one of the two buffers is on a device, and the other one is not page-locked");
        }
        if self.too_large && self.to.on_device {
            return Err("exceeds the links' limit for one-copy transfers of device memory");
        }
        if self.waits_for_turn {
            return Err("contexts take turns on the device, and copies through host memory do not wait for them");
        }
        Ok(())
    }
}
