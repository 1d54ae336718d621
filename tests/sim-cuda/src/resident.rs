//! The resident kernel that copies on command: it does what `common-cuda/kernels/resident.cu` does, group by group.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::kernel_memory::Memory;
use crate::schedule::Work;

const GROUPS: usize = 16;
const LINE: usize = 64;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Argument {
    lines: u64,
    reports: u64,
    idle: u64,
    lease: u64,
    number: u32,
}

/// A launch in progress.
pub(crate) struct Resident {
    argument: Argument,
    memory: Memory,
    /// The addresses of the lines and the reports in this process.
    lines: usize,
    reports: usize,
    begins: Instant,
    /// After its start: the start time, the time of its last command, and the numbers of the last commands.
    begun: Option<(Instant, Instant)>,
    last: [u32; GROUPS],
}

impl Resident {
    pub(crate) fn new(argument: Argument, mut memory: Memory, begins: Instant) -> Resident {
        let bytes = (GROUPS * LINE) as u64;
        let (lines, reports) = (memory.reach(argument.lines, bytes), memory.reach(argument.reports, bytes));
        Resident { argument, memory, lines, reports, begins, begun: None, last: [0; GROUPS] }
    }

    fn word(at: usize) -> &'static AtomicU32 {
        // SAFETY: within the range that holds the lines and the reports, which the work keeps.
        unsafe { AtomicU32::from_ptr(at as *mut u32) }
    }

    /// The two numbers in a group's line. They are equal if the command is complete.
    fn numbers(&self, group: usize) -> (u32, u32) {
        let number = |part: usize| Self::word(self.lines + LINE * group + 16 * part + 12).load(Ordering::Acquire);
        (number(0), number(1))
    }

    fn has_command(&self, group: usize) -> bool {
        let (first, second) = self.numbers(group);
        first == second && first != self.last[group]
    }

    fn is_over(&self) -> bool {
        let stopped = Self::word(self.lines + 32).load(Ordering::Acquire) == self.argument.number;
        let (lease, idle) = (Duration::from_nanos(self.argument.lease), Duration::from_nanos(self.argument.idle));
        stopped || self.begun.is_some_and(|(begun, used)| begun.elapsed() > lease || used.elapsed() > idle)
    }

    fn report(&self, group: usize, word: usize, value: u32) {
        Self::word(self.reports + LINE * group + 4 * word).store(value, Ordering::Release);
    }

    fn do_command(&mut self, group: usize) {
        let number = self.numbers(group).0;
        let line = self.lines + LINE * group;
        // SAFETY: as for `word`; the host leaves a whole command alone until it is done.
        let address = |at: usize| unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Ordering::Acquire);
        let (from, len, to) = (address(line), Self::word(line + 8).load(Ordering::Acquire), address(line + 16));
        self.memory.copy(to, from, len.into());
        self.last[group] = number;
        self.report(group, 1, number);
    }
}

impl Work for Resident {
    fn is_ready(&self) -> bool {
        match self.begun {
            None => Instant::now() >= self.begins,
            Some(_) => self.is_over() || (0..GROUPS).any(|group| self.has_command(group)),
        }
    }

    fn waits_outside(&self) -> bool {
        true
    }

    fn step(&mut self) -> bool {
        let now = Instant::now();
        if self.begun.is_none() {
            self.begun = Some((now, now));
            for group in 0..GROUPS {
                self.last[group] = self.numbers(group).0;
                self.report(group, 0, self.argument.number);
            }
            return false;
        }
        // A lease may end between commands.
        let over = self.is_over();
        for group in 0..GROUPS {
            if over && group % 2 == 0 {
                self.report(group, 2, self.argument.number);
            } else if self.has_command(group) {
                self.do_command(group);
                self.begun = self.begun.map(|(begun, _)| (begun, now));
            }
        }
        if over {
            for group in (1..GROUPS).step_by(2) {
                self.report(group, 2, self.argument.number);
            }
        }
        over
    }
}
