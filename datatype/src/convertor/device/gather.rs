//! Packing of irregular blocks from a device. If blocks are close together, one copy of the range from the first to the
//! last is cheaper than one driver call for each.

use std::ops::Range;

use cableway_common_cuda::{Completion, CopyBatch, DeviceError, Direction, Order};

use super::copier::Copier;
use super::plan::Copy;
use crate::convertor::loops::move_short;

/// The bytes that a copy to pageable host memory moves in the time of one driver call: 1.5 us at 16 GB/s on an H200.
const WORTH_A_CALL: u64 = 24 << 10;

/// The limit of host memory for the range from the first to the last block.
const SCRATCH: u64 = 4 << 20;

/// Copies that are made as one, or a single copy.
#[derive(Debug, PartialEq, Eq)]
struct Cluster {
    copies: Range<usize>,
    /// The range of all of their bytes.
    low: i64,
    high: i64,
}

impl Cluster {
    fn len(&self) -> u64 {
        self.high.abs_diff(self.low)
    }

    fn is_single(&self) -> bool {
        self.copies.len() == 1
    }
}

/// Groups consecutive copies where the unneeded bytes between them cost less than the saved calls.
fn clusters(copies: &[Copy]) -> Vec<Cluster> {
    let mut clusters: Vec<Cluster> = Vec::new();
    let mut open = false;
    for (i, copy) in copies.iter().enumerate() {
        let end = copy.offset.saturating_add_unsigned(copy.width);
        let single_row = copy.rows == 1;
        if let Some(last) = clusters.last_mut().filter(|_| open && single_row) {
            let (low, high) = (last.low.min(copy.offset), last.high.max(end));
            let len = high.abs_diff(low);
            if len <= SCRATCH && len - last.len() <= WORTH_A_CALL.saturating_add(copy.width) {
                (last.low, last.high, last.copies.end) = (low, high, i + 1);
                continue;
            }
        }
        clusters.push(Cluster { copies: i..i + 1, low: copy.offset, high: end });
        open = single_row;
    }
    clusters
}

/// Packs by `copies`. The completion ends them; it is already done if the CPU had to extract the blocks.
/// # Safety
/// As [`Copier::pack`] for every copy, until the completion is done. The bytes between the first and the last block of
/// any cluster may be read.
pub(super) unsafe fn pack(
    copier: &Copier<'_>,
    copies: &[Copy],
    order: Order,
    scratch: &mut Vec<u8>,
) -> Result<Completion, DeviceError> {
    let clusters = clusters(copies);
    let together: u64 = clusters.iter().filter(|cluster| !cluster.is_single()).map(Cluster::len).sum();
    scratch.reserve(together.min(SCRATCH) as usize);
    let memory = scratch.as_mut_ptr();

    let mut round = Round { batch: copier.batch(Direction::DeviceToHost, order)?, used: 0, landed: Vec::new() };
    for cluster in &clusters {
        if cluster.is_single() {
            // SAFETY: the caller's promise.
            unsafe { copier.pack(&mut round.batch, &copies[cluster.copies.start]) };
            continue;
        }
        if round.used as u64 + cluster.len() > SCRATCH {
            let next =
                Round { batch: copier.batch(Direction::DeviceToHost, Order::None)?, used: 0, landed: Vec::new() };
            // SAFETY: the caller's promise; the scratch holds what has landed.
            unsafe { std::mem::replace(&mut round, next).sort_out(copier, copies, memory) }?;
        }
        // SAFETY: the scratch has room for `SCRATCH` bytes or for all, and is touched again when the round is over;
        // the source may be read as the caller promises.
        unsafe {
            let to = memory.add(round.used);
            round.batch.copy(to, copier.message.at(cluster.low), cluster.len() as usize);
        }
        round.landed.push((cluster, round.used));
        round.used += cluster.len() as usize;
    }
    if round.landed.is_empty() {
        return round.batch.finish();
    }
    // SAFETY: as above.
    unsafe { round.sort_out(copier, copies, memory) }?;
    Ok(Completion::DONE)
}

/// Clusters that are in the scratch memory together.
struct Round<'p> {
    batch: CopyBatch,
    used: usize,
    /// Each cluster and its offset in the scratch memory.
    landed: Vec<(&'p Cluster, usize)>,
}

impl Round<'_> {
    /// Waits for the copies and puts the blocks where they belong.
    ///
    /// # Safety
    /// The packed side is valid for every copy, and `scratch` for the copied bytes.
    unsafe fn sort_out(self, copier: &Copier<'_>, copies: &[Copy], scratch: *mut u8) -> Result<(), DeviceError> {
        self.batch.finish()?.wait()?;
        for (cluster, start) in self.landed {
            for copy in &copies[cluster.copies.clone()] {
                // SAFETY: the copy lies within its cluster, hence within the scratch; the packed side is valid by the
                // caller's promise.
                unsafe {
                    let landed = scratch.add(start + copy.offset.abs_diff(cluster.low) as usize);
                    move_short::<true>(landed, copier.packed.add(copy.packed as usize), copy.width as usize);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(offsets: &[i64]) -> Vec<Copy> {
        let copy = |(i, &offset)| Copy { offset, pitch: 8, packed: i as u64 * 8, packed_pitch: 8, width: 8, rows: 1 };
        offsets.iter().enumerate().map(copy).collect()
    }

    #[test]
    fn near_blocks_are_copied_together_and_far_ones_separately() {
        let far = 1 << 40;
        let dense = clusters(&blocks(&[100, 40, 4000, far, far + 16, -far]));
        let expected = [(0..3, 40, 4008), (3..5, far, far + 24), (5..6, -far, -far + 8)];
        assert_eq!(dense, expected.map(|(copies, low, high)| Cluster { copies, low, high }));
    }

    #[test]
    fn a_cluster_fits_in_the_scratch() {
        let step = WORTH_A_CALL as i64;
        let offsets: Vec<i64> = (0..1000).map(|i| i * step).collect();
        let clusters = clusters(&blocks(&offsets));
        assert!(clusters.iter().all(|cluster| cluster.len() <= SCRATCH));
        assert!(clusters.len() < 10);
    }

    #[test]
    fn rows_are_left_alone() {
        let mut copies = blocks(&[0, 16, 32]);
        copies[1].rows = 5;
        assert_eq!(clusters(&copies).len(), 3);
    }
}
