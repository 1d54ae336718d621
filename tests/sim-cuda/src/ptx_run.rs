//! Runs programs' kernels: a launch of what `ptx` has read, thread after thread.
//!
//! A kernel that waits for memory gives way to other work, so that another stream or process may end its wait. Its threads
//! cannot wait for each other.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::time::UNIX_EPOCH;

use crate::driver::crash;
use crate::kernel_memory::Memory;
use crate::ptx::{Action, Entry, Instruction, Operand, Special};
use crate::ptx_math::Type;
use crate::schedule::Work;

/// The instructions that run before other work may.
const TURN: usize = 20_000;

/// The argument of a launch.
#[derive(Clone)]
pub(crate) struct Arguments {
    entry: Arc<Entry>,
    bytes: Vec<u8>,
    blocks: [u64; 3],
    threads: [u64; 3],
}

impl Arguments {
    /// Copies the parameters of a launch.
    ///
    /// # Safety
    /// `list` has the address of a value for each of the kernel's parameters.
    pub(crate) unsafe fn of(
        entry: &Arc<Entry>,
        blocks: [c_uint; 3],
        threads: [c_uint; 3],
        list: *mut *mut c_void,
    ) -> Arguments {
        let mut bytes = vec![0; entry.parameter_bytes()];
        for (index, (at, len)) in entry.parameters.iter().enumerate() {
            // SAFETY: the caller's promise.
            let value = unsafe { std::slice::from_raw_parts(list.add(index).read().cast::<u8>(), *len) };
            bytes[*at..*at + *len].copy_from_slice(value);
        }
        Arguments { entry: entry.clone(), bytes, blocks: blocks.map(u64::from), threads: threads.map(u64::from) }
    }
}

/// A launch in progress.
pub(crate) struct Launch {
    arguments: Arguments,
    memory: Memory,
    /// The number of the thread that runs, among all threads, its next instruction and its registers.
    thread: u64,
    next: usize,
    registers: Vec<u64>,
    has_faulted: bool,
}

impl Launch {
    pub(crate) fn new(arguments: Arguments, memory: Memory) -> Launch {
        let registers = vec![0; arguments.entry.registers];
        Launch { arguments, memory, thread: 0, next: 0, registers, has_faulted: false }
    }

    fn special(&self, special: Special) -> u64 {
        let Arguments { blocks, threads, .. } = &self.arguments;
        let of_block: u64 = threads.iter().product();
        let along =
            |number: u64, sizes: &[u64; 3], axis: usize| number / sizes[..axis].iter().product::<u64>() % sizes[axis];
        match special {
            Special::Thread(axis) => along(self.thread % of_block, threads, axis),
            Special::Block(axis) => along(self.thread / of_block, blocks, axis),
            Special::Threads(axis) => threads[axis],
            Special::Blocks(axis) => blocks[axis],
            Special::Nanoseconds => UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64),
        }
    }

    fn value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.registers[register],
            Operand::Value(value) => value,
            Operand::Special(special) => self.special(special),
            Operand::Address(register, offset) => self.registers[register].wrapping_add_signed(offset),
        }
    }

    /// Runs one instruction. Returns false if the thread has ended.
    fn run(&mut self, instruction: &Instruction) -> bool {
        self.next += 1;
        let Instruction { guard, action, kind, operands } = instruction;
        if guard.is_some_and(|(register, wanted)| (self.registers[register] != 0) != wanted) {
            return true;
        }
        let source = |index: usize| self.value(operands[index]);
        let result = match *action {
            Action::Return => return false,
            Action::Nothing => return true,
            Action::Trap => {
                self.has_faulted = true;
                return false;
            }
            Action::Fence => {
                fence(Ordering::SeqCst);
                return true;
            }
            Action::Branch => {
                self.next = source(0) as usize;
                return true;
            }
            Action::Load | Action::Store | Action::LoadParameter => {
                self.access(*action, *kind, operands);
                return true;
            }
            Action::Move => kind.cut(source(1)),
            Action::Convert(from) => kind.convert(from, source(1)),
            Action::Operate(operation) => {
                kind.operate(operation, source(1), operands.get(2).map_or(0, |operand| self.value(*operand)))
            }
            Action::Multiply(half) => kind.multiply(half, source(1), source(2)),
            Action::MultiplyAdd(half) => {
                kind.product(half).cut(kind.multiply(half, source(1), source(2)).wrapping_add(source(3)))
            }
            Action::Fuse => kind.fuse([source(1), source(2), source(3)]),
            Action::Compare(comparison) => u64::from(kind.compare(comparison, source(1), source(2))),
            Action::Select => source(if source(3) != 0 { 1 } else { 2 }),
        };
        self.set(operands[0], result);
        true
    }

    fn set(&mut self, operand: Operand, value: u64) {
        if let Operand::Register(register) = operand {
            self.registers[register] = value;
        }
    }

    /// Loads or stores one element or several.
    fn access(&mut self, action: Action, kind: Type, operands: &[Operand]) {
        let bytes = kind.bytes();
        let elements = operands.len() - 1;
        let (address, elements) = match action {
            Action::Store => (operands[0], &operands[1..]),
            _ => (operands[elements], &operands[..elements]),
        };
        for (index, element) in elements.iter().enumerate() {
            if let (Action::LoadParameter, Operand::Address(place, offset)) = (action, address) {
                let at = place.wrapping_add_signed(offset as isize) + index * bytes;
                let mut value = [0; 8];
                value[..bytes].copy_from_slice(&self.arguments.bytes[at..at + bytes]);
                self.set(*element, kind.extend(u64::from_le_bytes(value)));
                continue;
            }
            let at = self.value(address).wrapping_add((index * bytes) as u64);
            if !at.is_multiple_of(bytes as u64) {
                crash("a kernel's access, which is not aligned, at", at as usize);
            }
            let place = self.memory.reach(at, bytes as u64);
            if action == Action::Store {
                // SAFETY: an aligned element of a range that is kept.
                unsafe { store(place, bytes, self.value(*element)) };
            } else {
                // SAFETY: as above.
                let value = unsafe { load(place, bytes) };
                self.set(*element, kind.extend(value));
            }
        }
    }
}

/// # Safety
/// The address is that of an aligned element of this size, which others access atomically or not at the same time.
unsafe fn load(at: usize, bytes: usize) -> u64 {
    // SAFETY: the caller's promise, whatever the size.
    unsafe {
        match bytes {
            1 => AtomicU8::from_ptr(at as *mut u8).load(Ordering::Acquire).into(),
            2 => AtomicU16::from_ptr(at as *mut u16).load(Ordering::Acquire).into(),
            4 => AtomicU32::from_ptr(at as *mut u32).load(Ordering::Acquire).into(),
            _ => AtomicU64::from_ptr(at as *mut u64).load(Ordering::Acquire),
        }
    }
}

/// # Safety
/// As [`load`].
unsafe fn store(at: usize, bytes: usize, value: u64) {
    // SAFETY: the caller's promise, whatever the size.
    unsafe {
        match bytes {
            1 => AtomicU8::from_ptr(at as *mut u8).store(value as u8, Ordering::Release),
            2 => AtomicU16::from_ptr(at as *mut u16).store(value as u16, Ordering::Release),
            4 => AtomicU32::from_ptr(at as *mut u32).store(value as u32, Ordering::Release),
            _ => AtomicU64::from_ptr(at as *mut u64).store(value, Ordering::Release),
        }
    }
}

impl Work for Launch {
    fn waits_outside(&self) -> bool {
        true
    }

    fn has_faulted(&self) -> bool {
        self.has_faulted
    }

    fn step(&mut self) -> bool {
        let Arguments { entry, blocks, threads, .. } = &self.arguments;
        let (entry, all) = (entry.clone(), blocks.iter().chain(threads).product::<u64>());
        for _ in 0..TURN {
            let goes = entry.code.get(self.next).is_some_and(|instruction| self.run(instruction));
            if !goes {
                self.thread += 1;
                self.next = 0;
                if self.thread == all || self.has_faulted {
                    return true;
                }
            }
        }
        false
    }
}
