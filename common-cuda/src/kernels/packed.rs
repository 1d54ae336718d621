//! The arguments of the kernel that packs and unpacks, as in kernels/copy.cu, and the decision to launch it.

use std::time::Duration;

use super::job::{Name, THREADS};
use crate::copy::EngineWork;
use crate::costs::DeviceCosts;
use crate::memory::{Packing, Spread};
use crate::strided::MAX_STRIDED_DIMENSIONS;

/// The largest element.
const WIDEST: u64 = 16;
/// The packed bytes of a thread block are a multiple of this, so that each block's writes begin with a cache line.
const LINE: u64 = 1024;
/// The smallest number of packed bytes of a thread block: an element of eight bytes for each thread.
const SMALLEST_PART: u64 = 4096;

/// A range of packed bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Packed {
    pub(super) job: Name,
    packed: u64,
    user: u64,
    first: u64,
    end: u64,
    part: u64,
    entries: u64,
    size: u64,
    extent: i64,
    uniform: u64,
    stride: [i64; MAX_STRIDED_DIMENSIONS],
    count: [u32; MAX_STRIDED_DIMENSIONS],
    blocks: u32,
    unit: u32,
    width: u32,
    batch: u32,
    unpack: u32,
}
const _: () = assert!(size_of::<Packed>() == 144);

impl Packed {
    pub(super) const NOTHING: Packed = Packed {
        job: Name::NONE,
        packed: 0,
        user: 0,
        first: 0,
        end: 0,
        part: SMALLEST_PART,
        entries: 0,
        size: 1,
        extent: 0,
        uniform: 1,
        stride: [0; 3],
        count: [1; 3],
        blocks: 1,
        unit: 1,
        width: 1,
        batch: 1,
        unpack: 0,
    };

    /// Describes `packing`, whose packed bytes have the device address `packed`, and the entries of whose list the
    /// device address `entries`. Returns `None` if a count exceeds the kernel's range.
    pub(crate) fn new(packing: &Packing, packed: u64, entries: u64) -> Option<Packed> {
        // The largest count of one thread within its part.
        const FURTHEST: u64 = 1 << 31;
        let (user, first) = (packing.user as u64, packing.position);
        let end = first.checked_add(packing.len).filter(|_| packing.len < FURTHEST)?;
        let start = Packed { packed, first, end, unpack: packing.unpack.into(), ..Packed::NOTHING };
        let mut packed = match &packing.spread {
            Spread::Regular(strided) => {
                let strided = strided.simplified();
                let mut count = [1; MAX_STRIDED_DIMENSIONS];
                for (count, dimension) in count.iter_mut().zip(strided.dimensions) {
                    *count = u32::try_from(dimension.0).ok()?;
                }
                Packed {
                    user: user.wrapping_add_signed(strided.offset),
                    uniform: Some(strided.block).filter(|block| *block < FURTHEST)?,
                    stride: strided.dimensions.map(|dimension| dimension.1),
                    count,
                    ..start
                }
            }
            Spread::Listed(list, extent) => Packed {
                user: user.wrapping_add_signed(list.low()),
                entries,
                size: list.size(),
                extent: if end > list.size() { *extent } else { 0 },
                uniform: list.uniform().into(),
                blocks: list.blocks() as u32,
                unit: list.unit(),
                ..start
            },
        };
        packed.width = packed.widest();
        Some(packed)
    }

    /// Returns the largest element that blocks, distances and the addresses of both sides allow, wherever the range
    /// begins and ends.
    fn widest(&self) -> u32 {
        let mut bits = WIDEST | self.user | self.packed.wrapping_sub(self.first);
        if self.entries == 0 {
            bits |= self.uniform;
            let dimensions = self.count.iter().zip(self.stride).filter(|dimension| *dimension.0 > 1);
            bits = dimensions.fold(bits, |bits, dimension| bits | dimension.1 as u64);
        } else {
            bits |= u64::from(self.unit) | self.extent as u64;
        }
        1 << bits.trailing_zeros()
    }

    /// Divides the work among at most this many thread blocks. Returns their number.
    pub(super) fn divide(&mut self, most: u32) -> u32 {
        // Parts are counted from a position that every element size divides.
        let len = self.end - (self.first & !(WIDEST - 1));
        self.part = len.div_ceil(most.into()).next_multiple_of(LINE).max(SMALLEST_PART);
        // As many elements at a time as a part has at average length.
        let average = (self.size / u64::from(self.blocks)).max(self.uniform).max(1);
        self.batch = (self.part.div_ceil(average) + 1).min(THREADS.into()) as u32;
        len.div_ceil(self.part).max(1) as u32
    }
}

/// Checks, by the device's measurements, whether a kernel with this extra latency packs faster than copy engines.
///
/// Without measurements the figures of an H200 apply: a driver call takes 1.5 us, and a 2-D copy to host memory 337 us
/// for 262,144 rows of 8 bytes, but at least the time of its bytes on the link.
pub(crate) fn is_worth_a_launch(
    work: EngineWork,
    bytes: usize,
    more: Duration,
    measured: Option<&DeviceCosts>,
) -> bool {
    const CALL: Duration = Duration::from_nanos(1500);
    const ROWS: f64 = 262_144.0 / 337e-6;
    const BYTES: f64 = 55e9;
    let call = measured.and_then(|costs| costs.call.figure()).unwrap_or(CALL);
    let rows_per_second = measured.and_then(|costs| costs.rows_per_second.figure()).unwrap_or(ROWS);
    let link = measured.and_then(|costs| costs.to_host.figure()).map_or(BYTES, |cost| cost.bytes_per_second);
    let calls = work.calls.saturating_sub(1) as f64 * call.as_secs_f64();
    let rows = work.rows as f64 / rows_per_second - bytes as f64 / link;
    calls + rows.max(0.0) > more.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Known;

    #[test]
    fn many_calls_and_short_rows_are_worth_a_launch() {
        let more = Duration::from_micros(4);
        let worth = |calls, rows, bytes| is_worth_a_launch(EngineWork { calls, rows }, bytes, more, None);
        assert!(!worth(1, 1, 1 << 30));
        assert!(!worth(1, 1000, 8000));
        assert!(worth(1, 262_144, 2 << 20));
        assert!(!worth(1, 4096, 2 << 20), "rows of 512 bytes");
        assert!(!worth(3, 3, 24) && worth(4, 4, 32));

        // Calls that take a third, and rows ten times as many a second.
        let (call, rows_per_second) = (Known::Is(Duration::from_nanos(500)), Known::Is(7.78e9));
        let quick = DeviceCosts { call, rows_per_second, ..DeviceCosts::default() };
        let worth = |calls, rows, bytes| is_worth_a_launch(EngineWork { calls, rows }, bytes, more, Some(&quick));
        assert!(!worth(4, 4, 32) && !worth(9, 9, 72) && worth(10, 10, 80));
        assert!(!worth(1, 262_144, 2 << 20));
    }

    #[test]
    fn every_byte_is_in_one_part() {
        let strided = crate::Strided { offset: 0, block: 8, dimensions: [(1 << 20, 32), (1, 0), (1, 0)] };
        let packing = |position, len| {
            let (user, packed, spread) = (std::ptr::null_mut(), std::ptr::null_mut(), Spread::Regular(strided));
            Packing { user, spread, position, packed, len, unpack: false, by_engines: true }
        };
        for (position, len) in [(0, 1), (5, 70_000), (16, 4096), (15, 4097), (3, 1 << 20)] {
            for most in [1, 2, 132] {
                let mut packed = Packed::new(&packing(position, len), position, 0).unwrap();
                assert_eq!(packed.width, 8);
                let parts = u64::from(packed.divide(most));
                assert!(parts <= most.into(), "{parts} of {most}");
                let first = position & !15;
                assert!(first + parts * packed.part >= position + len);
                assert!(first + (parts - 1) * packed.part < position + len);
                assert!(packed.batch <= THREADS);
            }
        }
        assert!(Packed::new(&packing(0, 1 << 31), 0, 0).is_none());
        assert_eq!(Packed::new(&packing(4, 100), 0, 0).unwrap().width, 4, "the sides are not aligned alike");
    }
}
