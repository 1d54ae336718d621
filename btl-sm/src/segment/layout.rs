//! The layout of a segment.

use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::little_endian::U32;

use crate::ring::fast_box::{SHORT, SLOT, STAMP};

/// The first slot of a message in a fast box. Two slots make a cache line.
#[repr(C, align(32))]
pub(crate) struct Slot {
    pub(crate) stamp: AtomicU64,
    pub(crate) payload: [u8; SHORT],
}
const _: () = assert!(size_of::<Slot>() == SLOT && std::mem::offset_of!(Slot, payload) == STAMP && SLOT == 32);

/// The header of a fragment. In a device segment it is separate from the payload.
#[repr(C, align(64))]
pub(crate) struct FragmentHeader {
    /// The generation: the number of sends of this fragment. The owner writes it.
    pub(crate) generation: AtomicU32,
    /// The length of the message in bytes. The owner writes it.
    pub(crate) len: AtomicU32,
    /// The generation that the receiver has finished reading. The receiver writes it.
    pub(crate) returned: AtomicU32,
}
const _: () = assert!(size_of::<FragmentHeader>() == 64 && std::mem::offset_of!(FragmentHeader, returned) == 8);

/// The offers that a process may have open to one peer. They fill a cache line.
pub(crate) const OFFERS: usize = 8;
/// The offset of messages within a large fragment's lines. User data follows the 24 bytes of `pml`'s fragment header
/// and then begins at a line boundary at the receiver, as it mostly does at the sender. Copies between differently
/// aligned lines take a tenth longer.
pub(crate) const LARGE_LEAD: usize = 40;
/// The bytes from a box's start to its slots. Two lines, so that no prefetcher loads credits together with slots.
pub(crate) const BOX_HEADER: usize = 128;
const LINE: usize = 64;
const PAGE: usize = 4096;

/// The numbers that determine a segment's layout, as sent in the handshake.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub(crate) struct Geometry {
    /// Cells in the FIFO, a power of two.
    pub(crate) fifo_cells: U32,
    /// The records that one peer may have in the FIFO.
    pub(crate) fifo_quota: U32,
    /// Fast boxes.
    pub(crate) boxes: U32,
    /// Slots in each fast box, a power of two.
    pub(crate) box_slots: U32,
    /// Fragments for eager messages, and the bytes in each.
    pub(crate) eager_count: U32,
    pub(crate) eager_size: U32,
    /// Larger fragments, and the bytes in each.
    pub(crate) large_count: U32,
    pub(crate) large_size: U32,
}

/// The numbers that determine a device segment's layout.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub(crate) struct DeviceGeometry {
    pub(crate) small_count: U32,
    pub(crate) small_size: U32,
    pub(crate) chunk_count: U32,
    pub(crate) chunk_size: U32,
}

/// The places of fragments of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    headers: usize,
    header_stride: usize,
    payloads: usize,
    payload_stride: usize,
    /// The bytes of payload in each.
    pub(crate) size: usize,
    /// The number of fragments.
    pub(crate) count: u32,
}

impl Class {
    /// Returns the offset of a fragment's header.
    #[inline]
    pub(crate) fn header(&self, id: u32) -> usize {
        self.headers + id as usize * self.header_stride
    }

    /// Returns the offset of a fragment's payload.
    #[inline]
    pub(crate) fn payload(&self, id: u32) -> usize {
        self.payloads + id as usize * self.payload_stride
    }
}

/// A checked geometry with its offsets. Everything lies within `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) fifo_cells: usize,
    pub(crate) fifo_quota: usize,
    pub(crate) boxes: usize,
    pub(crate) box_slots: usize,
    /// The number of processes that may have a number here.
    pub(crate) peers: usize,
    first_offer: usize,
    first_box: usize,
    pub(crate) eager: Class,
    pub(crate) large: Class,
    /// The length in bytes.
    pub(crate) len: usize,
}

impl Layout {
    /// The offsets of the FIFO's tail, head and cells.
    pub(crate) const FIFO_TAIL: usize = 0;
    pub(crate) const FIFO_HEAD: usize = LINE;
    pub(crate) const FIFO_CELLS: usize = 2 * LINE;

    /// Returns the offset of a word through which this process offers work to the peer with this number.
    pub(crate) fn offer(&self, peer: usize, index: usize) -> usize {
        self.first_offer + (peer * OFFERS + index) * 8
    }

    /// Returns the offset of a box.
    pub(crate) fn fast_box(&self, index: usize) -> usize {
        self.first_box + index * (BOX_HEADER + self.box_slots * size_of::<Slot>())
    }
}

/// The limit of every count in a geometry: the range of a reference's 20 bits.
const MOST: u32 = 1 << 20;
const LARGEST_FRAGMENT: u32 = 1 << 30;

impl Geometry {
    /// Computes the offsets. The error names the number that is out of range. The numbers may come from a peer.
    pub(crate) fn layout(&self) -> Result<Layout, &'static str> {
        let counts = [self.fifo_cells, self.boxes, self.box_slots, self.eager_count, self.large_count];
        if counts.iter().any(|count| count.get() > MOST) {
            return Err("a count in the geometry exceeds the limit of 20 bits");
        }
        if !self.fifo_cells.get().is_power_of_two() || self.fifo_quota.get() == 0 {
            return Err("the FIFO's geometry is unusable");
        }
        if !self.box_slots.get().is_power_of_two() || self.box_slots.get() < 4 {
            return Err("the fast boxes' geometry is unusable");
        }
        let [eager_size, large_size] = [self.eager_size, self.large_size].map(fragment_size);
        let (fifo_cells, boxes, box_slots) =
            (self.fifo_cells.get() as usize, self.boxes.get() as usize, self.box_slots.get() as usize);
        let peers = fifo_cells / self.fifo_quota.get() as usize;
        let first_offer = (Layout::FIFO_CELLS + fifo_cells * 8).next_multiple_of(LINE);
        let first_box = (first_offer + peers * OFFERS * 8).next_multiple_of(BOX_HEADER);
        let eager_start = (first_box + boxes * (BOX_HEADER + box_slots * size_of::<Slot>())).next_multiple_of(PAGE);
        let (eager, eager_end) = inline_class(eager_start, self.eager_count.get(), eager_size?, 0);
        let (large, len) =
            inline_class(eager_end.next_multiple_of(PAGE), self.large_count.get(), large_size?, LARGE_LEAD);
        Ok(Layout {
            fifo_cells,
            fifo_quota: self.fifo_quota.get() as usize,
            boxes,
            box_slots,
            peers,
            first_offer,
            first_box,
            eager,
            large,
            len: len.next_multiple_of(PAGE),
        })
    }
}

impl DeviceGeometry {
    /// Computes the two fragment classes and the segment's length.
    pub(crate) fn layout(&self) -> Result<([Class; 2], usize), &'static str> {
        let (small_count, chunk_count) = (self.small_count.get(), self.chunk_count.get());
        if small_count > MOST || chunk_count > MOST {
            return Err("a count in the device segment's geometry exceeds the limit of 20 bits");
        }
        let (small_size, chunk_size) = (fragment_size(self.small_size)?, fragment_size(self.chunk_size)?);
        let small_start = ((small_count + chunk_count) as usize * LINE).next_multiple_of(PAGE);
        let chunk_start = (small_start + small_count as usize * small_size).next_multiple_of(PAGE);
        let class = |headers, payloads, size, count| Class {
            headers,
            header_stride: LINE,
            payloads,
            payload_stride: size,
            size,
            count,
        };
        let small = class(0, small_start, small_size, small_count);
        let chunk = class(small_count as usize * LINE, chunk_start, chunk_size, chunk_count);
        Ok(([small, chunk], (chunk_start + chunk_count as usize * chunk_size).next_multiple_of(PAGE)))
    }
}

fn fragment_size(size: U32) -> Result<usize, &'static str> {
    let size = size.get();
    if size == 0 || size > LARGEST_FRAGMENT || !size.is_multiple_of(LINE as u32) {
        return Err("a fragment size in the geometry is unusable");
    }
    Ok(size as usize)
}

/// Fragments whose headers precede their payloads. A payload begins `lead` bytes into a line.
fn inline_class(start: usize, count: u32, size: usize, lead: usize) -> (Class, usize) {
    let stride = (LINE + lead + size).next_multiple_of(LINE);
    let payloads = start + LINE + lead;
    let class = Class { headers: start, header_stride: stride, payloads, payload_stride: stride, size, count };
    (class, start + count as usize * stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            fifo_cells: 64.into(),
            fifo_quota: 32.into(),
            boxes: 2.into(),
            box_slots: 16.into(),
            eager_count: 3.into(),
            eager_size: 4096.into(),
            large_count: 2.into(),
            large_size: 32768.into(),
        }
    }

    #[test]
    fn lies_as_drawn() {
        let layout = geometry().layout().unwrap();
        assert_eq!((layout.peers, layout.offer(0, 0)), (2, 128 + 64 * 8));
        assert_eq!(layout.offer(1, 2), 128 + 64 * 8 + 64 + 16);
        assert_eq!(layout.fast_box(0), 128 + 64 * 8 + 2 * 64);
        assert_eq!(layout.fast_box(1), layout.fast_box(0) + 128 + 16 * 32);
        assert_eq!(layout.eager.header(0), 4096);
        assert_eq!(layout.eager.payload(2), 4096 + 2 * (64 + 4096) + 64);
        assert_eq!(layout.large.header(0), (4096_usize + 3 * (64 + 4096)).next_multiple_of(4096));
        assert_eq!(layout.len % 4096, 0);
        assert_eq!(layout.large.payload(0), layout.large.header(0) + 64 + LARGE_LEAD);
        assert_eq!(layout.large.header(1), layout.large.header(0) + 64 + 32768 + 64);
        assert!(layout.large.payload(1) + layout.large.size <= layout.len);
        assert_eq!(memoffset::span_of!(Slot, payload), 8..32);
        assert_eq!(memoffset::span_of!(FragmentHeader, generation..=returned), 0..12);
    }

    #[test]
    fn refuses_what_a_hostile_peer_may_say() {
        for spoil in [
            (|g: &mut Geometry| g.fifo_cells = 63.into()) as fn(&mut Geometry),
            |g| g.fifo_cells = 0.into(),
            |g| g.fifo_quota = 0.into(),
            |g| g.box_slots = 2.into(),
            |g| g.boxes = u32::MAX.into(),
            |g| g.eager_size = 0.into(),
            |g| g.eager_size = 65.into(),
            |g| g.large_size = u32::MAX.into(),
            |g| g.large_count = u32::MAX.into(),
        ] {
            let mut geometry = geometry();
            spoil(&mut geometry);
            assert!(geometry.layout().is_err(), "{geometry:?}");
        }
    }

    #[test]
    fn a_device_segment_keeps_payloads_on_pages() {
        let geometry = DeviceGeometry {
            small_count: 8.into(),
            small_size: 4096.into(),
            chunk_count: 4.into(),
            chunk_size: (1 << 20).into(),
        };
        let ([small, chunk], len) = geometry.layout().unwrap();
        assert_eq!(small.payload(0), 4096);
        assert_eq!(chunk.header(0), 8 * 64);
        assert_eq!(chunk.payload(1) % 4096, 0);
        assert_eq!(len, 4096 + 8 * 4096 + 4 * (1 << 20));
    }
}
