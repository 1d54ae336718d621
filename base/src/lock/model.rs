//! Models the machine and the system for loom's scenarios.
//!
//! Loom has no barrier that one thread executes in all others. Therefore `membarrier` is modelled as the kernel
//! implements it: by an interrupt. [`fence_everywhere`] requests a fence from every other thread, and waits until each
//! has executed one. A thread checks for requests before each access to an atomic of the locks, and at each
//! [`interruption`] in a scenario. A check without a request orders nothing. So the fence occurs wherever an interrupt
//! may occur, and nothing else replaces it: [`light_fence`] does nothing.
//!
//! The model shows that the protocol admits no thread beside the owner if the kernel keeps its promise. It does not
//! show that the kernel keeps it, or that `compiler_fence` works, because loom moves no access. It covers only the
//! scenarios here, within loom's bounds.

use std::cell::Cell;

use loom::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{self, fence};

/// The largest number of threads in one scenario.
const THREADS: usize = 3;
/// The number of fruitless polls by each thread after which loom stops exploring a branch.
const EXPLORED_YIELDS: usize = 1;

/// One thread, as the kernel sees it.
struct Processor {
    /// The number of interrupts sent to it.
    sent: atomic::AtomicUsize,
    /// The number of interrupts that it has handled.
    taken: atomic::AtomicUsize,
    /// It has ended or has not begun, so that there is nothing to order.
    idle: atomic::AtomicBool,
}

loom::lazy_static! {
    static ref PROCESSORS: [Processor; THREADS] = std::array::from_fn(|_| Processor {
        sent: atomic::AtomicUsize::new(0),
        taken: atomic::AtomicUsize::new(0),
        idle: atomic::AtomicBool::new(true),
    });
}

/// The thread's own state.
#[derive(Default)]
struct Here {
    index: Cell<usize>,
    taken: Cell<usize>,
    yields: Cell<usize>,
}

loom::thread_local! {
    static HERE: Here = Here::default();
}

thread_local! {
    /// Whether the kernel keeps its promise. One system thread runs all threads of a scenario.
    static INTERRUPTS: Cell<bool> = const { Cell::new(true) };
}

/// Runs `scenario` with a kernel whose barrier returns at once and executes no fence.
pub(super) fn without_interrupts(scenario: impl FnOnce()) {
    INTERRUPTS.set(false);
    scenario();
    INTERRUPTS.set(true);
}

/// Marks the threads' processors as running, before any thread starts.
pub(super) fn begin(threads: usize) {
    for processor in &PROCESSORS[..threads] {
        processor.idle.store(false, Relaxed);
    }
}

/// Runs one of the threads.
pub(super) fn live<R>(index: usize, act: impl FnOnce() -> R) -> R {
    HERE.with(|here| here.index.set(index));
    let result = act();
    // The end of a thread orders its accesses like an interrupt.
    fence(SeqCst);
    PROCESSORS[index].idle.store(true, Release);
    result
}

/// A point where the calling thread may be interrupted.
pub(super) fn interruption() {
    HERE.with(|here| {
        let processor = &PROCESSORS[here.index.get()];
        let sent = processor.sent.load(Relaxed);
        if sent != here.taken.replace(sent) {
            fence(SeqCst);
            processor.taken.store(sent, Release);
        }
    });
}

pub(super) fn this_thread() -> usize {
    HERE.with(|here| here.index.get() + 1)
}

pub(super) fn light_fence() {}

pub(super) fn fences_work() -> bool {
    true
}

pub(super) fn fence_everywhere() {
    if !INTERRUPTS.get() {
        return;
    }
    fence(SeqCst);
    let here = HERE.with(|here| here.index.get());
    let others = || PROCESSORS.iter().enumerate().filter(|&(index, _)| index != here);
    let sent: Vec<usize> = others().map(|(_, other)| other.sent.fetch_add(1, Release) + 1).collect();
    for ((_, other), sent) in others().zip(sent) {
        while other.taken.load(Acquire) < sent && !other.idle.load(Acquire) {
            yield_now();
        }
    }
    fence(SeqCst);
}

/// Yields. Threads that wait for each other could alternate for ever, so only the first turns are explored.
pub(super) fn yield_now() {
    interruption();
    let yields = HERE.with(|here| here.yields.replace(here.yields.get() + 1));
    if yields == EXPLORED_YIELDS {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// An atomic at which the thread may be interrupted before each access.
pub(super) struct Interruptible<A>(A);

pub(super) type AtomicBool = Interruptible<atomic::AtomicBool>;
pub(super) type AtomicU64 = Interruptible<atomic::AtomicU64>;
pub(super) type AtomicUsize = Interruptible<atomic::AtomicUsize>;

macro_rules! accesses {
    ($( $atomic:ident of $value:ty, )+) => { $(
        #[allow(dead_code, reason = "not each atomic is accessed in each way")]
        impl Interruptible<atomic::$atomic> {
            pub(super) fn new(value: $value) -> Self {
                Interruptible(atomic::$atomic::new(value))
            }

            pub(super) fn load(&self, order: Ordering) -> $value {
                interruption();
                self.0.load(order)
            }

            pub(super) fn store(&self, value: $value, order: Ordering) {
                interruption();
                self.0.store(value, order);
            }

            pub(super) fn swap(&self, value: $value, order: Ordering) -> $value {
                interruption();
                self.0.swap(value, order)
            }

            pub(super) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                interruption();
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    )+ };
}

accesses! {
    AtomicBool of bool,
    AtomicU64 of u64,
    AtomicUsize of usize,
}

impl AtomicU64 {
    pub(super) fn fetch_add(&self, n: u64, order: Ordering) -> u64 {
        interruption();
        self.0.fetch_add(n, order)
    }
}

/// The ordinary lock behind a bias.
pub(super) struct RawMutex(AtomicBool);

impl RawMutex {
    pub(super) fn new() -> Self {
        RawMutex(AtomicBool::new(false))
    }

    pub(super) fn lock(&self) {
        while !self.try_lock() {
            yield_now();
        }
    }

    pub(super) fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    /// # Safety
    /// The calling thread holds it.
    pub(super) unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}

/// The ordinary readers-writer lock behind a bias: the number of readers, or `WRITER`.
pub(super) struct RawRwLock(atomic::AtomicUsize);

const WRITER: usize = usize::MAX;

impl RawRwLock {
    pub(super) fn new() -> Self {
        RawRwLock(atomic::AtomicUsize::new(0))
    }

    pub(super) fn lock_shared(&self) {
        let one_more = |readers| if readers == WRITER { None } else { Some(readers + 1) };
        while self.0.fetch_update(Acquire, Relaxed, one_more).is_err() {
            yield_now();
        }
    }

    pub(super) fn lock_exclusive(&self) {
        while self.0.compare_exchange(0, WRITER, Acquire, Relaxed).is_err() {
            yield_now();
        }
    }

    /// # Safety
    /// The calling thread holds it as a reader.
    pub(super) unsafe fn unlock_shared(&self) {
        self.0.fetch_sub(1, Release);
    }

    /// # Safety
    /// The calling thread holds it as the writer.
    pub(super) unsafe fn unlock_exclusive(&self) {
        self.0.store(0, Release);
    }
}
