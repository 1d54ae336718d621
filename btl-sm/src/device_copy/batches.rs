//! The device copies under way, and the copies for the next batch.
//!
//! Submitting a copy to the driver takes longer than a small copy itself, and copies submitted together overlap. Copies
//! found in one pass over the peers' messages therefore form one batch. While some batches are under way, small copies
//! gather for the next one.

use std::collections::VecDeque;

use cableway_base::Rank;
use cableway_btl::Token;
use cableway_common_cuda::{
    Completion, CopyShape, DeviceError, DeviceIndex, Devices, Direction, Location, Mapped, MemoryClass, Order, Turns,
    Watch, Within,
};

/// The number of batches that keep the device of a context busy.
const DEPTH: usize = 2;
/// A batch with this many bytes is submitted at once.
const ENOUGH: usize = 4 << 20;
/// The limit of a batch. It completes as a whole, so the first copies of a large batch would wait long.
const MOST_BYTES: usize = 16 << 20;
/// The limit for packed pieces of a message: the peer unpacks one while the next is packed.
const MOST_PACKED_BYTES: usize = 1 << 20;
const MOST_COPIES: usize = 64;
/// A batch with more copies or bytes may take long where contexts take no turns, too.
const MOST_SHOWN: usize = 4;
const MOST_SHOWN_BYTES: usize = 1 << 20;

/// A copy between memory of this process, which may be page-locked host memory, and mapped memory of a peer.
pub(super) struct Copy {
    pub(super) to: *mut u8,
    pub(super) from: *const u8,
    pub(super) len: usize,
    pub(super) how: CopyShape,
    /// The device and context that copy.
    pub(super) at: Location,
    pub(super) direction: Direction,
    pub(super) order: Order,
    pub(super) of: PendingCopy,
}

// SAFETY: addresses for the driver, never dereferenced here; that they stay good is the promise of whoever started the
// copy, on whatever thread.
unsafe impl Send for Copy {}

impl Copy {
    fn is_packed(&self) -> bool {
        matches!(self.how, CopyShape::Packed(_))
    }
}

/// The operation that a copy belongs to.
pub(super) struct PendingCopy {
    pub(super) peer: Rank,
    pub(super) token: Token,
    /// True if the peer's memory is on the same device.
    pub(super) one_device: bool,
    /// Held until the copy completes.
    pub(super) _mapped: Mapped,
}

/// The context that copies, and in which direction. Pool memory uses whichever context is in use on its device.
type Context = (u64, Option<DeviceIndex>, Direction);

fn context(copy: &Copy) -> Context {
    (copy.at.context, copy.at.device, copy.direction)
}

/// A batch under way. The completion is the first field: its drop waits, and the memory must be mapped until then.
struct Running {
    completion: Completion,
    copies: Vec<PendingCopy>,
    /// The batches of each context end in the order in which they began.
    context: Context,
    /// Set if its time shows whether contexts take turns.
    watch: Option<Watch>,
}

#[derive(Default)]
pub(super) struct Batches {
    waiting: Vec<Copy>,
    /// The bytes of the waiting copies, and whether they belong to several contexts or include packed ones.
    bytes: usize,
    mixed: bool,
    running: Vec<Running>,
    /// Copies that could not start.
    failed: Vec<(Vec<PendingCopy>, DeviceError)>,
}

impl Batches {
    #[inline]
    pub(super) fn add(&mut self, copy: Copy) {
        self.bytes = self.bytes.saturating_add(copy.len);
        let apart = |first: &Copy| first.is_packed() || copy.is_packed() || context(first) != context(&copy);
        self.mixed |= self.waiting.first().is_some_and(apart);
        self.waiting.push(copy);
    }

    /// Returns whether any copy from or to this peer's memory is under way or waiting.
    pub(super) fn has(&self, peer: Rank) -> bool {
        self.waiting.iter().any(|copy| copy.of.peer == peer)
            || self.running.iter().flat_map(|batch| &batch.copies).any(|of| of.peer == peer)
            || self.failed.iter().flat_map(|batch| &batch.0).any(|of| of.peer == peer)
    }

    /// Submits waiting copies, except small ones in a busy context.
    pub(super) fn set_out(&mut self, devices: &Devices) {
        let Some(first) = self.waiting.first() else { return };
        if self.mixed || self.waiting.len() > MOST_COPIES || self.bytes > MOST_BYTES {
            return self.set_out_parts(devices);
        }
        if self.holds_back(context(first), self.bytes, self.waiting.len()) {
            return;
        }
        let mut batch = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        self.hand_over(devices, &mut batch);
        // An empty list with an allocation for the next batch.
        self.waiting = batch;
    }

    /// Whether a batch of this size should gather more copies.
    fn holds_back(&self, context: Context, bytes: usize, copies: usize) -> bool {
        let busy = || self.running.iter().filter(|running| running.context == context).count() >= DEPTH;
        bytes < ENOUGH && copies < MOST_COPIES && busy()
    }

    /// Returns whether a batch of this size is full.
    #[cold]
    fn set_out_parts(&mut self, devices: &Devices) {
        let mut waiting = VecDeque::from(std::mem::take(&mut self.waiting));
        let mut held = Vec::new();
        while let Some(first) = waiting.pop_front() {
            let context = context(&first);
            let mut batch = vec![first];
            let mut bytes = batch[0].len;
            // A copy that no kernel can pack fails with its batch, so it gets its own.
            let packed = batch[0].is_packed();
            let most = if packed { MOST_PACKED_BYTES } else { MOST_BYTES };
            let mut others = VecDeque::new();
            while let Some(copy) = waiting.pop_front() {
                // Copies are taken in order: copies after one that does not fit wait, too.
                if self::context(&copy) != context || copy.is_packed() != packed {
                    others.push_back(copy);
                } else if batch.len() < MOST_COPIES && bytes < most {
                    bytes += copy.len;
                    batch.push(copy);
                } else {
                    others.push_back(copy);
                    others.append(&mut waiting);
                }
            }
            waiting = others;
            if self.holds_back(context, bytes, batch.len()) {
                held.append(&mut batch);
            } else {
                self.hand_over(devices, &mut batch);
            }
        }
        (self.bytes, self.mixed) = (0, false);
        held.into_iter().for_each(|copy| self.add(copy));
    }

    fn is_busy(&self, context: Context) -> bool {
        self.running.iter().any(|running| running.context == context)
    }

    /// Empties the batch.
    fn hand_over(&mut self, devices: &Devices, batch: &mut Vec<Copy>) {
        let Some(first) = batch.first() else { return };
        let (at, direction, context) = (first.at, first.direction, context(first));
        let order = batch.iter().map(|copy| copy.order).max().unwrap_or(Order::None);
        let bytes = batch.iter().map(|copy| copy.len).fold(0, usize::saturating_add);
        let is_plain = |copy: &Copy| copy.of.one_device && matches!(copy.how, CopyShape::Run);
        let shows_turns = order != Order::AfterDefaultStream
            && bytes <= MOST_SHOWN_BYTES
            && batch.len() <= MOST_SHOWN
            && batch.iter().all(is_plain);
        let begun = (|| {
            let mut copies = devices.batch(&at, direction, order)?;
            // The context's own memory, and memory that is mapped into it. Managed memory may be anywhere.
            if direction != Direction::DeviceToDevice {
                copies.page_locked();
            } else if batch.iter().all(|copy| copy.at.class == MemoryClass::Device) {
                let one_device = batch.iter().all(|copy| copy.of.one_device);
                copies.reachable(if one_device { Within::OneDevice } else { Within::OneNode });
            }
            for copy in &*batch {
                let (to, from, len) = (copy.to, copy.from, copy.len);
                // SAFETY: both ranges are good until the copy is reported, by the promise of whoever started it and by
                // the mapping that is kept; a kernel reaches them.
                unsafe { copies.copy_shape(to, from, len, &copy.how) };
            }
            copies.finish()
        })();
        let copies: Vec<PendingCopy> = batch.drain(..).map(|copy| copy.of).collect();
        match begun {
            Ok(completion) => {
                let watch = (shows_turns && !self.is_busy(context)).then(Watch::begin);
                self.running.push(Running { completion, copies, context, watch });
            }
            Err(error) => self.failed.push((copies, error)),
        }
    }

    /// Takes out the completed batches.
    pub(super) fn ended(&mut self, turns: &Turns) -> Vec<(Vec<PendingCopy>, Result<(), DeviceError>)> {
        let mut ended: Vec<_> = self.failed.drain(..).map(|(copies, error)| (copies, Err(error))).collect();
        let (mut index, mut waits) = (0, None);
        while let Some(batch) = self.running.get_mut(index) {
            let result = if waits == Some(batch.context) { Ok(false) } else { batch.completion.poll() };
            if let Ok(false) = result {
                if let Some(watch) = &mut batch.watch {
                    watch.see();
                }
                waits = Some(batch.context);
                index += 1;
                continue;
            }
            let batch = self.running.remove(index);
            if let (Ok(_), Some(watch)) = (&result, &batch.watch) {
                turns.note(watch);
            }
            ended.push((batch.copies, result.map(|_| ())));
        }
        ended
    }
}
