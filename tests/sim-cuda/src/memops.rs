//! Work in streams other than copies: `cuStreamWriteValue`, `cuStreamWaitValue`, `cuStreamBatchMemOp`,
//! `cuLaunchHostFunc`.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cudarc::driver::sys::{CUstreamBatchMemOpType_enum as Operation, CUstreamWaitValue_flags as WaitFlags};

use crate::abi::{Address, List, driver_api};
use crate::error::{Error, Outcome};
use crate::schedule::Work;
use crate::space::{Kind, Range, SPACE};
use crate::stream;

/// A word that work reads or writes, and the object that keeps it alive.
struct Word {
    at: usize,
    bytes: usize,
    _range: Arc<Range>,
}

impl Word {
    /// The driver accepts words of `cuMemAlloc` and of pinned host memory.
    fn find(address: Address, bytes: usize) -> Outcome<Word> {
        if !address.is_multiple_of(bytes) {
            return Err(Error::INVALID_VALUE);
        }
        let extents = SPACE.get()?.read().extents(address, bytes)?.ok_or(Error::INVALID_VALUE)?;
        match &extents[..] {
            [extent] if extent.range.kind != Kind::Managed && !matches!(extent.range.kind, Kind::Pool { .. }) => {
                Ok(Word { at: extent.alias, bytes, _range: extent.range.clone() })
            }
            _ => Err(Error::INVALID_VALUE),
        }
    }

    fn load(&self) -> u64 {
        if self.bytes == 4 {
            // SAFETY: an aligned word of the range, which is kept.
            u64::from(unsafe { AtomicU32::from_ptr(self.at as *mut u32) }.load(Ordering::Acquire))
        } else {
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(self.at as *mut u64) }.load(Ordering::Acquire)
        }
    }

    fn store(&self, value: u64) {
        if self.bytes == 4 {
            // SAFETY: as in `load`.
            unsafe { AtomicU32::from_ptr(self.at as *mut u32) }.store(value as u32, Ordering::Release);
        } else {
            // SAFETY: as in `load`.
            unsafe { AtomicU64::from_ptr(self.at as *mut u64) }.store(value, Ordering::Release);
        }
    }
}

struct Write {
    word: Word,
    value: u64,
}

impl Work for Write {
    fn step(&mut self) -> bool {
        self.word.store(self.value);
        true
    }
}

/// The operations of one call, in their order.
struct Operations {
    all: Vec<Box<dyn Work>>,
    done: usize,
}

impl Work for Operations {
    fn is_ready(&self) -> bool {
        self.all.get(self.done).is_none_or(|next| next.is_ready())
    }

    fn waits_outside(&self) -> bool {
        self.all.get(self.done).is_some_and(|next| next.waits_outside())
    }

    fn step(&mut self) -> bool {
        if let Some(next) = self.all.get_mut(self.done) {
            next.step();
            self.done += 1;
        }
        self.done >= self.all.len()
    }
}

struct Wait {
    word: Word,
    value: u64,
    condition: c_uint,
}

const GREATER_OR_EQUAL: c_uint = WaitFlags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
const EQUAL: c_uint = WaitFlags::CU_STREAM_WAIT_VALUE_EQ as c_uint;
const AND: c_uint = WaitFlags::CU_STREAM_WAIT_VALUE_AND as c_uint;
const NOR: c_uint = WaitFlags::CU_STREAM_WAIT_VALUE_NOR as c_uint;
const FLUSH: c_uint = WaitFlags::CU_STREAM_WAIT_VALUE_FLUSH as c_uint;

impl Work for Wait {
    fn is_ready(&self) -> bool {
        let now = self.word.load();
        let mask = if self.word.bytes == 4 { u64::from(u32::MAX) } else { u64::MAX };
        match self.condition {
            // A cyclic comparison, as documented: the difference is not negative.
            GREATER_OR_EQUAL if self.word.bytes == 4 => (now as u32).wrapping_sub(self.value as u32) as i32 >= 0,
            GREATER_OR_EQUAL => now.wrapping_sub(self.value) as i64 >= 0,
            EQUAL => now == self.value,
            AND => now & self.value != 0,
            _ => !(now | self.value) & mask != 0,
        }
    }

    fn waits_outside(&self) -> bool {
        true
    }

    fn step(&mut self) -> bool {
        true
    }
}

/// A function of the user. It must not call the driver.
struct Host {
    function: unsafe extern "C" fn(*mut c_void),
    argument: usize,
}

impl Work for Host {
    fn step(&mut self) -> bool {
        // SAFETY: the caller of `cuLaunchHostFunc` promises that it may be called with its argument, on any thread.
        unsafe { (self.function)(self.argument as *mut c_void) };
        true
    }
}

fn write(stream: usize, address: Address, value: u64, flags: c_uint, bytes: usize) -> Outcome {
    // The second version of these functions rejects `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let stream = stream::get(stream)?;
    let word = Word::find(address, bytes)?;
    if stream.captures_call(move |on| write(on, address, value, flags, bytes))? {
        return Ok(());
    }
    stream.submit(Box::new(Write { word, value }))
}

fn wait(stream: usize, address: Address, value: u64, flags: c_uint, bytes: usize) -> Outcome {
    let condition = condition(flags)?;
    let stream = stream::get(stream)?;
    let word = Word::find(address, bytes)?;
    if stream.captures_call(move |on| wait(on, address, value, flags, bytes))? {
        return Ok(());
    }
    stream.submit(Box::new(Wait { word, value, condition }))
}

/// Returns the condition of a wait.
fn condition(flags: c_uint) -> Outcome<c_uint> {
    let condition = flags & !FLUSH;
    if !matches!(condition, GREATER_OR_EQUAL | EQUAL | AND | NOR) {
        return Err(Error::INVALID_VALUE);
    }
    // `CAN_FLUSH_REMOTE_WRITES` is 0.
    if flags & FLUSH != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    Ok(condition)
}

/// `CUstreamBatchMemOpParams`, as wait and write operations use it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parameters {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    alias: u64,
    padding: u64,
}

const _: () = assert!(size_of::<Parameters>() == size_of::<cudarc::driver::sys::CUstreamBatchMemOpParams>());

const WAIT_32: c_uint = Operation::CU_STREAM_MEM_OP_WAIT_VALUE_32 as c_uint;
const WAIT_64: c_uint = Operation::CU_STREAM_MEM_OP_WAIT_VALUE_64 as c_uint;
const WRITE_32: c_uint = Operation::CU_STREAM_MEM_OP_WRITE_VALUE_32 as c_uint;
const WRITE_64: c_uint = Operation::CU_STREAM_MEM_OP_WRITE_VALUE_64 as c_uint;
/// The limit in the driver's documentation.
const MOST_OPERATIONS: c_uint = 256;

/// Waits and writes are supported.
fn batch(stream: usize, operations: Vec<Parameters>, flags: c_uint) -> Outcome {
    if operations.is_empty() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let stream = stream::get(stream)?;
    let one = |Parameters { operation, address, value, flags, .. }| -> Outcome<Box<dyn Work>> {
        let bytes = match operation {
            WAIT_32 | WRITE_32 => 4,
            WAIT_64 | WRITE_64 => 8,
            _ => return Err(Error::NOT_SUPPORTED),
        };
        // A word of 32 bits is compared with the lower half of the value.
        let value = if bytes == 4 { u64::from(value as u32) } else { value };
        if matches!(operation, WAIT_32 | WAIT_64) {
            let condition = condition(flags)?;
            return Ok(Box::new(Wait { word: Word::find(address as Address, bytes)?, value, condition }));
        }
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        Ok(Box::new(Write { word: Word::find(address as Address, bytes)?, value }))
    };
    let all = operations.iter().copied().map(one).collect::<Outcome<_>>()?;
    if stream.captures_call(move |on| batch(on, operations.clone(), flags))? {
        return Ok(());
    }
    stream.submit(Box::new(Operations { all, done: 0 }))
}

driver_api! {
    11070 cuStreamBatchMemOp: fn cuStreamBatchMemOp_v2(stream: usize, count: c_uint, operations: List<Parameters>, flags: c_uint) {
        if count > MOST_OPERATIONS {
            return Err(Error::INVALID_VALUE);
        }
        batch(stream, operations.get(count as usize)?, flags)
    }

    11070 cuStreamWriteValue32: fn cuStreamWriteValue32_v2(stream: usize, address: Address, value: u32, flags: c_uint) {
        write(stream, address, value.into(), flags, 4)
    }

    11070 cuStreamWriteValue64: fn cuStreamWriteValue64_v2(stream: usize, address: Address, value: u64, flags: c_uint) {
        write(stream, address, value, flags, 8)
    }

    11070 cuStreamWaitValue32: fn cuStreamWaitValue32_v2(stream: usize, address: Address, value: u32, flags: c_uint) {
        wait(stream, address, value.into(), flags, 4)
    }

    11070 cuStreamWaitValue64: fn cuStreamWaitValue64_v2(stream: usize, address: Address, value: u64, flags: c_uint) {
        wait(stream, address, value, flags, 8)
    }

    10000 cuLaunchHostFunc: fn cuLaunchHostFunc(stream: usize, function: Option<unsafe extern "C" fn(*mut c_void)>, argument: *mut c_void) {
        let function = function.ok_or(Error::INVALID_VALUE)?;
        stream::get(stream)?.submit(Box::new(Host { function, argument: argument as usize }))
    }
}
