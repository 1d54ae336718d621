//! The words by which the host and a job agree on whether the job copies.
//!
//! A job first stores that it has started, and then checks whether it is revoked. [`Job::revoke`] first stores that the
//! job is revoked, and then checks whether it has started. With a full fence between each pair at least one side sees
//! the other's word. So a job that the host finds not started copies nothing, and the host waits for a job that it
//! finds started.
//!
//! Reductions, exchanges and moves are never revoked. Their kernels report the end only.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::driver::{Driver, Failure};
use crate::memory::HostWords;

/// The number of jobs under way, including revoked ones, and the offsets of a job's words, as in kernels/job.h.
const JOBS: usize = 128;
const REVOKED: usize = 0;
const STARTED: usize = 16;
const ENDED: usize = 32;
const LATE: usize = 48;
/// The number of words between two jobs.
const WORDS: usize = 64;

/// The words of all jobs of a context.
pub(super) struct Words {
    /// Operations keep the context alive, and it keeps this memory.
    memory: HostWords,
    free: Vec<usize>,
    /// The latest job of each slot.
    numbers: Vec<u32>,
}

const BYTES: usize = JOBS * WORDS * size_of::<u32>();

impl Words {
    /// The context is current.
    pub(super) fn new(driver: &dyn Driver) -> Result<Words, Failure> {
        Ok(Words { memory: HostWords::new(driver, BYTES)?, free: (0..JOBS).collect(), numbers: vec![0; JOBS] })
    }

    /// Returns a word of a slot, counted from the first of this number.
    fn word(&self, slot: usize, word: usize) -> *mut AtomicU32 {
        // SAFETY: a word of one of the slots, which lie within the memory.
        unsafe { self.memory.address::<AtomicU32>().add(slot * WORDS + word) }
    }

    /// Takes the words of a job. Returns `None` if too many jobs are under way.
    pub(super) fn job(&mut self) -> Option<Job> {
        let slot = self.free.pop()?;
        let words = self.word(slot, 0);
        let device = self.memory.device() + (slot * WORDS * size_of::<u32>()) as u64;
        let number = next_number();
        self.numbers[slot] = number;
        // Few kernels write it, so that an old number could be that of this job.
        // SAFETY: a word of the slot, which no kernel uses now.
        unsafe { &*self.word(slot, LATE) }.store(0, Ordering::SeqCst);
        Some(Job { words, device, slot, number })
    }

    /// Checks whether a job has begun, by its slot and number.
    pub(super) fn has_started(&self, (slot, number): (usize, u32)) -> bool {
        self.is_set(slot, STARTED, number)
    }

    /// Checks whether a job has ended, or its slot has another one.
    pub(super) fn has_ended(&self, (slot, number): (usize, u32)) -> bool {
        self.numbers[slot] != number || self.is_set(slot, ENDED, number)
    }

    fn is_set(&self, slot: usize, word: usize, number: u32) -> bool {
        // SAFETY: an atomic of the memory's.
        unsafe { &*self.word(slot, word) }.load(Ordering::SeqCst) == number
    }

    /// Releases the words of a job that has ended or was never launched.
    pub(super) fn give_back(&mut self, job: Job) {
        self.free.push(job.slot);
    }

    /// Unregisters the words in their context. The context is current, and no job is in it.
    pub(super) fn destroy(&self, driver: &dyn Driver) {
        self.memory.destroy(driver);
    }
}

/// A job that was launched, or is about to be.
pub(crate) struct Job {
    words: *mut AtomicU32,
    /// The device address of the words.
    device: u64,
    slot: usize,
    number: u32,
}

// SAFETY: the words are atomics, which any thread may touch.
unsafe impl Send for Job {}

impl Job {
    /// Returns its slot and number.
    pub(super) fn name(&self) -> (usize, u32) {
        (self.slot, self.number)
    }

    fn is_set(&self, word: usize) -> bool {
        // SAFETY: one of the job's words, which stay until it is given back.
        unsafe { &*self.words.add(word) }.load(Ordering::SeqCst) == self.number
    }

    /// Checks whether the job no longer accesses memory. If it was not revoked, everything is copied.
    pub(crate) fn ended(&self) -> bool {
        self.is_set(ENDED)
    }

    /// Checks whether the job, which has ended, waited in vain for other ranks.
    pub(crate) fn was_late(&self) -> bool {
        self.is_set(LATE)
    }

    /// Checks whether the job still waits for room on its device.
    pub(super) fn waits(&self) -> bool {
        !self.is_set(STARTED)
    }

    /// Revokes the job: it copies nothing unless it has started already. See [`quiet`](Self::quiet).
    pub(super) fn revoke(&self) {
        // SAFETY: as above; the host alone writes this word.
        unsafe { &*self.words.add(REVOKED) }.store(self.number, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Checks whether a revoked job neither copies nor will copy.
    pub(super) fn quiet(&self) -> bool {
        self.waits() || self.ended()
    }
}

/// Threads in a block of every job's kernel.
pub(super) const THREADS: u32 = 512;

/// The kernel's description of its job: the address of the words, the number and the slot.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Name {
    words: u64,
    number: u32,
    slot: u32,
}

impl Name {
    pub(super) const NONE: Name = Name { words: 0, number: 0, slot: 0 };

    pub(super) fn of(job: &Job) -> Name {
        Name { words: job.device, number: job.number, slot: job.slot as u32 }
    }
}

/// The argument of a job's kernel.
pub(crate) trait Argument {
    /// Divides the work for a device with so many multiprocessors. Returns the number of thread blocks.
    fn blocks(&mut self, multiprocessors: u32) -> u32;

    /// Names the job. Returns the address for the launch.
    fn for_job(&mut self, job: &Job) -> *mut c_void;
}

/// Numbers of jobs, one sequence for all contexts.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Returns a number that no job with allocated words has; never 0.
fn next_number() -> u32 {
    loop {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed) as u32;
        if number != 0 {
            return number;
        }
    }
}
