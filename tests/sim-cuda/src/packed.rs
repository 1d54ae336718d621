//! The kernel that packs and unpacks, step by step as in `common-cuda/kernels/copy.cu`: each thread block has its part
//! of the range, and handles batches of the message's blocks one after the other, element by element.

use crate::driver::crash;
use crate::kernel_memory::{Job, Memory, THREADS};

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Packed {
    pub(crate) job: Job,
    packed: u64,
    user: u64,
    first: u64,
    end: u64,
    part: u64,
    entries: u64,
    size: u64,
    extent: i64,
    uniform: u64,
    stride: [i64; 3],
    count: [u32; 3],
    blocks: u32,
    unit: u32,
    width: u32,
    batch: u32,
    unpack: u32,
}

/// The table of a batch: where each block begins within the part, and its address extrapolated to position 0.
struct Batch {
    origin: u64,
    lead: u64,
    begins: Vec<u64>,
    shifts: Vec<u64>,
}

impl Packed {
    /// Does the work of one block of threads.
    pub(crate) fn run(&self, block: u64, memory: &mut Memory) {
        let start = (self.first & !15) + block * self.part;
        let (mut from, end) = (start.max(self.first), (start + self.part).min(self.end));
        if from >= end {
            return;
        }
        if self.batch == 0 || u64::from(self.batch) > u64::from(THREADS) || !self.width.is_power_of_two() {
            crash("a kernel's batch or width makes no sense, packing at", self.packed as usize);
        }
        let origin = from;
        let mut index = self.block_at(from, memory);
        while from < end {
            let mut batch =
                Batch { origin, lead: index.wrapping_mul(self.uniform), begins: Vec::new(), shifts: Vec::new() };
            for i in 0..=u64::from(self.batch) {
                let (begin, address) = self.block(index + i, memory);
                batch.begins.push(begin.clamp(origin, end) - origin);
                batch.shifts.push(address.wrapping_sub(begin));
            }
            let until = origin + batch.begins[self.batch as usize];
            self.move_batch(&batch, from, until, memory);
            from = until;
            index += u64::from(self.batch);
        }
    }

    fn entry(&self, index: u64, memory: &mut Memory) -> (u64, u64) {
        let at = memory.reach(self.entries + 8 * index, 8);
        // SAFETY: an entry within a range that is kept.
        let [offset, start] = unsafe { (at as *const [u32; 2]).read_unaligned() };
        (u64::from(offset), u64::from(start))
    }

    /// Returns the packed position of a block, and its address.
    fn block(&self, index: u64, memory: &mut Memory) -> (u64, u64) {
        if self.entries == 0 {
            let [inner, middle, _] = self.count.map(u64::from);
            let steps = [index % inner, index / inner % middle, index / inner / middle];
            let offset = steps
                .iter()
                .zip(self.stride)
                .fold(0_i64, |offset, (step, stride)| offset.wrapping_add(stride.wrapping_mul(*step as i64)));
            return (index.wrapping_mul(self.uniform), self.user.wrapping_add_signed(offset));
        }
        let element = index / u64::from(self.blocks);
        let (offset, start) = self.entry(index % u64::from(self.blocks), memory);
        let base = self.user.wrapping_add_signed(self.extent.wrapping_mul(element as i64));
        (element * self.size + start * u64::from(self.unit), base + offset * u64::from(self.unit))
    }

    fn block_at(&self, position: u64, memory: &mut Memory) -> u64 {
        if let Some(block) = position.checked_div(self.uniform) {
            return block;
        }
        let (element, within) = (position / self.size, position % self.size / u64::from(self.unit));
        let (mut low, mut high) = (0, u64::from(self.blocks));
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            if self.entry(middle, memory).1 <= within { low = middle } else { high = middle }
        }
        element * u64::from(self.blocks) + low
    }

    fn move_batch(&self, batch: &Batch, from: u64, until: u64, memory: &mut Memory) {
        let width = u64::from(self.width);
        let low = from.next_multiple_of(width).min(until);
        let high = (until / width * width).max(low);
        for (start, end, width) in [(from, low, 1), (low, high, width), (high, until, 1)] {
            for position in (start..end).step_by(width as usize) {
                let block = match self.uniform {
                    0 => batch.begins.partition_point(|begin| *begin <= position - batch.origin) - 1,
                    uniform => ((position - batch.lead) / uniform) as usize,
                };
                let user = batch.shifts[block.min(self.batch as usize - 1)].wrapping_add(position);
                let packed = self.packed + (position - self.first);
                if !(user | packed).is_multiple_of(width) {
                    crash("a kernel's element, which is not aligned, at", (user | packed) as usize);
                }
                let (to, from) = if self.unpack != 0 { (user, packed) } else { (packed, user) };
                memory.copy(to, from, width);
            }
        }
    }
}
