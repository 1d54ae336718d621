//! The kernel that copies in a stream of the program and writes words. A graph may contain it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Outcome;
use crate::kernel_memory::Memory;
use crate::schedule::Work;
use crate::stream;

#[derive(Clone, Copy)]
#[repr(C)]
struct Written {
    address: u64,
    value: u64,
}

/// What the kernel gets.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Argument {
    to: u64,
    from: u64,
    len: u64,
    _slot: u64,
    /// The address of a word with the number of bytes that have arrived; 0 if all have.
    arrived: u64,
    before: Written,
    behind: [Written; 2],
}

/// A launch. Each step shows others a part of it.
struct Launch {
    argument: Argument,
    memory: Memory,
    step: usize,
}

impl Launch {
    /// Returns the number of bytes to copy.
    fn len(&mut self) -> u64 {
        let Argument { len, arrived, .. } = self.argument;
        if arrived == 0 {
            return len;
        }
        let at = self.memory.reach(arrived, 8);
        // SAFETY: an aligned word of a range that is kept.
        unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Ordering::SeqCst).min(len)
    }

    fn write(&mut self, word: Written) {
        if word.address != 0 {
            let at = self.memory.reach(word.address, 8);
            // SAFETY: an aligned word of a range that is kept.
            unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(word.value, Ordering::SeqCst);
        }
    }
}

impl Work for Launch {
    fn waits_outside(&self) -> bool {
        true
    }

    fn step(&mut self) -> bool {
        let Argument { to, from, before, behind, .. } = self.argument;
        match self.step {
            0 => self.write(before),
            1 => match self.len() {
                0 => {}
                len => self.memory.copy(to, from, len),
            },
            2 => {
                self.write(Written { address: self.argument.arrived, value: 0 });
                self.write(behind[0]);
            }
            _ => self.write(behind[1]),
        }
        self.step += 1;
        self.step == 4
    }
}

/// Adds a launch to a stream, or to its capture.
pub(crate) fn launch(argument: Argument, stream: usize) -> Outcome {
    let stream = stream::get(stream)?;
    if stream.captures_call(move |on| launch(argument, on))? {
        return Ok(());
    }
    let memory = Memory::of(stream.context.clone());
    stream.submit(Box::new(Launch { argument, memory, step: 0 }))
}
