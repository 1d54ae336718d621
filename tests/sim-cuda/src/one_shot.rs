//! Exchanges through slots: what `common-cuda/kernels/one_shot.h` does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::kernel_memory::Memory;

/// The bytes of a line, and those of its data.
const LINE: u64 = 16;
const LINE_DATA: u64 = 8;
/// What a read of host memory takes.
const READ: Duration = Duration::from_micros(1);

/// The part of a kernel's argument that describes an exchange.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Shot {
    slots: u64,
    from: [u64; 16],
    to: [u64; 16],
    sent: [u32; 16],
    received: [u32; 16],
    places: [u32; 16],
    slot: u32,
    ranks: u32,
    me: u32,
    number: u32,
    shared: u32,
    patience: u32,
}

/// How far a kernel is with its exchange.
#[derive(Default)]
pub(crate) struct Progress {
    published: bool,
    /// The next rank and line to fetch.
    rank: u32,
    line: u64,
    tries: u32,
    /// When the line is read again.
    again: Option<Instant>,
}

/// What a step of an exchange has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Waits,
    Done,
    Late,
}

impl Progress {
    /// Checks whether the next step may be made.
    pub(crate) fn is_due(&self) -> bool {
        self.again.is_none_or(|again| Instant::now() >= again)
    }
}

impl Shot {
    /// Makes a step.
    pub(crate) fn step(&self, progress: &mut Progress, memory: &mut Memory) -> Step {
        if self.slots == 0 {
            return Step::Done;
        }
        if !progress.published {
            self.publish(memory);
            progress.published = true;
        }
        while progress.rank < self.ranks {
            let len = u64::from(self.received[progress.rank as usize]);
            if progress.rank == self.me || progress.line > len.div_ceil(LINE_DATA) {
                (progress.rank, progress.line, progress.tries) = (progress.rank + 1, 0, 0);
                continue;
            }
            match self.fetch(progress.rank, progress.line, memory) {
                Some(true) => progress.line += 1,
                Some(false) => return Step::Late,
                None if progress.tries + 1 >= self.patience => return Step::Late,
                None => {
                    progress.tries += 1;
                    progress.again = Some(Instant::now() + READ);
                    return Step::Waits;
                }
            }
        }
        Step::Done
    }

    fn publish(&self, memory: &mut Memory) {
        for to in 0..if self.shared != 0 { 1 } else { self.ranks } {
            if self.shared == 0 && to == self.me {
                continue;
            }
            let (from, len) = (self.from[to as usize], u64::from(self.sent[to as usize]));
            let at = self.segment_of(self.me, to);
            self.put(at, len, memory);
            for begin in (0..len).step_by(LINE_DATA as usize) {
                let some = LINE_DATA.min(len - begin);
                let mut data = [0; LINE_DATA as usize];
                let source = memory.reach(from + begin, some);
                // SAFETY: within a range that is kept, and within the array.
                unsafe { std::ptr::copy_nonoverlapping(source as *const u8, data.as_mut_ptr(), some as usize) };
                self.put(at + (1 + begin / LINE_DATA) * LINE, u64::from_le_bytes(data), memory);
            }
        }
        let (me, own) = (self.me as usize, if self.shared != 0 { 0 } else { self.me as usize });
        if self.to[me] != 0 {
            memory.copy(self.to[me], self.from[own], self.received[me].into());
        }
    }

    /// Fetches a line. Returns `None` if it has not come, and false if it is not what was expected.
    fn fetch(&self, rank: u32, line: u64, memory: &mut Memory) -> Option<bool> {
        let at = self.segment_of(rank, self.me) + line * LINE;
        let [low, high] = [at, at + 8].map(|at| word(at, memory).load(Ordering::Acquire));
        if [low, high].iter().any(|word| word >> 32 != u64::from(self.number)) {
            return None;
        }
        let (data, len) = (low & 0xffff_ffff | high << 32, u64::from(self.received[rank as usize]));
        let Some(begin) = line.checked_sub(1).map(|line| line * LINE_DATA) else { return Some(data == len) };
        let some = LINE_DATA.min(len - begin);
        let target = memory.reach(self.to[rank as usize] + begin, some);
        // SAFETY: within a range that is kept, and within the word.
        unsafe {
            std::ptr::copy_nonoverlapping(data.to_le_bytes().as_ptr(), target as *mut u8, some as usize);
        }
        Some(true)
    }

    fn segment_of(&self, from: u32, to: u32) -> u64 {
        self.slots + u64::from(from) * u64::from(self.slot) + u64::from(self.places[to as usize])
    }

    fn put(&self, at: u64, data: u64, memory: &mut Memory) {
        let number = u64::from(self.number) << 32;
        word(at, memory).store(data & 0xffff_ffff | number, Ordering::Release);
        word(at + 8, memory).store(data >> 32 | number, Ordering::Release);
    }
}

fn word(at: u64, memory: &mut Memory) -> &AtomicU64 {
    let at = memory.reach(at, 8);
    // SAFETY: an aligned word of a range that is kept.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }
}
