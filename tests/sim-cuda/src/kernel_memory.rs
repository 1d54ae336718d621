//! Memory in kernels' view, and the words by which a kernel reports its progress.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::abi::Address;
use crate::context::Context;
use crate::driver::crash;
use crate::space::{Kind, Range, SPACE};

/// The threads of a block, as the kernels require.
pub(crate) const THREADS: c_uint = 512;

/// The words of a job that every copying kernel reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Job {
    pub(crate) words: u64,
    pub(crate) number: u32,
    _place: u32,
}

/// The memory that a kernel accesses, kept alive until it has ended.
pub(crate) struct Memory {
    context: Arc<Context>,
    ranges: Vec<Arc<Range>>,
}

impl Memory {
    pub(crate) fn of(context: Arc<Context>) -> Memory {
        Memory { context, ranges: Vec::new() }
    }

    /// Returns the alias of `len` bytes at an address, of one range.
    pub(crate) fn reach(&mut self, address: u64, len: u64) -> usize {
        match self.part(address) {
            (alias, left) if len <= left => alias,
            (_, left) => crash("what a kernel touches at", (address + left) as Address),
        }
    }

    /// Returns the alias of the byte at an address, and the number of bytes after it in its range.
    fn part(&mut self, address: u64) -> (usize, u64) {
        let at = address as Address;
        let holds = |range: &Range| range.base <= at && at < range.end();
        let place = |range: &Range| (range.alias + (at - range.base), (range.end() - at) as u64);
        if let Some(range) = self.ranges.iter().find(|range| holds(range)) {
            return place(range);
        }
        let found = SPACE.get().ok().and_then(|space| space.read().find(at).cloned());
        match found.filter(|range| self.is_reached(range)) {
            Some(range) => {
                let place = place(&range);
                self.ranges.push(range);
                place
            }
            None => crash("what a kernel touches at", at),
        }
    }

    fn is_reached(&self, range: &Range) -> bool {
        let in_context = range.context.as_ref().is_some_and(|context| context.id == self.context.id);
        range.is_accessible()
            && match range.kind {
                Kind::Device | Kind::Imported => in_context,
                Kind::Managed | Kind::HostAllocated | Kind::HostRegistered => true,
                Kind::Pool { .. } | Kind::Mapped => range.is_writable_by(self.context.device) == Ok(true),
            }
    }

    pub(crate) fn word(&mut self, job: Job, index: u64) -> &AtomicU32 {
        let at = self.reach(job.words + 4 * index, 4);
        // SAFETY: a word of a range that is kept.
        unsafe { AtomicU32::from_ptr(at as *mut u32) }
    }

    /// Copies between sides that may each span several adjacent ranges.
    pub(crate) fn copy(&mut self, to: u64, from: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let ((dst, room), (src, there)) = (self.part(to + done), self.part(from + done));
            let part = (len - done).min(room).min(there);
            // SAFETY: within ranges that are kept.
            unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, part as usize) };
            done += part;
        }
    }
}
