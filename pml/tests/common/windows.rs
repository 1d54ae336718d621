//! Ranks with a window each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, Devices, Element, ReduceOperation};
use cableway_datatype::{Datatype, Layout, Predefined};
use cableway_pml::{Access, Buffer, Change, Combine, Engine, Error, Exposed, KernelReduction, Window, WindowHost};

use super::memory::Memory;
use super::{Link, Ranks};

pub const KINDS: [Option<BufferKind>; 3] = [None, Some(BufferKind::Device), Some(BufferKind::Pool)];

/// The numbers of a sum of 32-bit integers.
pub const SUM: Combine = Combine::Reduce { operation: 5, element: 4 };

/// Lets all ranks make progress.
pub struct Together {
    engines: Vec<Arc<Engine>>,
    /// The reductions that the host made.
    pub reductions: AtomicUsize,
}

impl Together {
    pub fn new(ranks: &Ranks) -> Arc<Self> {
        Arc::new(Together { engines: ranks.engines.clone(), reductions: AtomicUsize::new(0) })
    }
}

impl WindowHost for Together {
    fn wait_until(&self, _engine: &Engine, done: &mut dyn FnMut() -> bool) {
        for _ in 0..2_000_000 {
            if done() {
                return;
            }
            for engine in &self.engines {
                engine.progress();
            }
        }
        panic!("a window hangs: {:?}", self.engines[0].counters());
    }

    fn element_size(&self, operation: u32, element: u32) -> Option<usize> {
        (operation == 5 && element == 4).then_some(4)
    }

    fn kernel(&self, operation: u32, element: u32) -> Option<KernelReduction> {
        let sum = KernelReduction { operation: ReduceOperation::Sum, element: Element::U32 };
        (operation == 5 && element == 4).then_some(sum)
    }

    unsafe fn reduce(&self, _operation: u32, _element: u32, into: *mut u8, from: *const u8, count: usize) -> bool {
        self.reductions.fetch_add(1, Ordering::Relaxed);
        for at in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                let (into, from) = (into.cast::<u32>().add(at), from.cast::<u32>().add(at));
                into.write_unaligned(into.read_unaligned().wrapping_add(from.read_unaligned()));
            }
        }
        true
    }
}

/// Ranks with a window each. Drops these before the memory.
pub struct Windows {
    pub windows: Vec<Window>,
    pub ranks: Ranks,
    pub host: Arc<Together>,
}

impl Windows {
    /// Rank `r` exposes `memory[r]`, in units of `units[r]` bytes.
    pub fn new(devices: &Devices, link: Link, memory: &mut [Memory], len: u64, units: &[u32]) -> Self {
        let exposed = memory.iter_mut().zip(units);
        let exposed = exposed.map(|(memory, &unit)| Exposed::Memory { address: memory.address(), len, unit }).collect();
        Self::exposing(devices, link, exposed)
    }

    pub fn exposing(devices: &Devices, link: Link, exposed: Vec<Exposed>) -> Self {
        let ranks = Ranks::on(devices, exposed.len() as u32, &[link], &[("device_chunk_size", "64K")], false);
        let host = Together::new(&ranks);
        let window = |(rank, exposed): (usize, Exposed)| {
            // SAFETY: the tests keep the memory longer, and read it between operations only.
            unsafe { Window::new(&ranks.engines[rank], ranks.world[rank].clone(), exposed, host.clone()) }.unwrap()
        };
        let windows = exposed.into_iter().enumerate().map(window).collect();
        Windows { windows, ranks, host }
    }

    /// Makes an access in a lock, and returns the error of the access or of the unlock.
    pub fn access(&self, by: usize, access: &Access<'_>) -> Result<(), Error> {
        let window = &self.windows[by];
        window.lock(access.target, false).unwrap();
        // SAFETY: the unlock completes the access, and the buffers live longer.
        let started = unsafe { window.start(access, None) };
        let unlocked = window.unlock(access.target);
        started.and(unlocked)
    }

    pub fn put(
        &self,
        by: usize,
        from: Buffer<'_>,
        target: u32,
        displacement: i64,
        reach: Buffer<'_>,
    ) -> Result<(), Error> {
        self.access(by, &Access { target, displacement, reach, change: Change::Put(from) })
    }

    pub fn get(
        &self,
        by: usize,
        into: Buffer<'_>,
        target: u32,
        displacement: i64,
        reach: Buffer<'_>,
    ) -> Result<(), Error> {
        self.access(by, &Access { target, displacement, reach, change: Change::Get(into) })
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ranks.settle();
            for window in &self.windows {
                window.finish().unwrap();
                window.close();
            }
        }
    }
}

/// `len` bytes from the displacement.
pub fn run(len: usize) -> Buffer<'static> {
    Buffer::bytes(std::ptr::null(), len as u64)
}

/// Pairs of bytes with gaps of one, from offset 2.
pub fn pairs(blocks: usize) -> Layout {
    let offsets: Vec<i64> = (0..blocks as i64).map(|block| 2 + 3 * block).collect();
    Datatype::hindexed_block(2, &offsets, &Predefined::Byte.datatype()).unwrap().commit()
}

pub fn links() -> [Link; 3] {
    let all = Flags::GET | Flags::PUT | Flags::DEVICE_GET | Flags::DEVICE_PUT;
    [Flags::empty(), Flags::GET, all].map(|flags| Link::new("net", flags).with(|link| link.asynchronous = true))
}
