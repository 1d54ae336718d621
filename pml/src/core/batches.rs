//! Copies between devices and host memory of ours, handed to the driver together.
//!
//! To hand over a copy takes the driver 1.5 us, several at once 0.6 us each, and to learn that it is done 1.25 us,
//! however many there were (H200, driver 580); 64 KiB take 1.2 us on the way. So what one look at the peers' messages
//! brings sets out together and is asked about once; and as long as a device has enough to do, small copies gather.

use cableway_common_cuda::{Completion, DeviceError, DeviceIndex, Devices, Direction, Location, Order};
use smallvec::SmallVec;

/// Batches in one direction that keep a device busy, whatever gathers meanwhile.
const DEPTH: usize = 2;
/// So many copies are worth a batch of their own: more would lower the cost of each by a tenth at most.
const ENOUGH: usize = 16;

/// A copy of one run of bytes, before it sets out.
pub(crate) struct Plain<T> {
    pub(crate) to: *mut u8,
    pub(crate) from: *const u8,
    pub(crate) len: usize,
    /// To or from the host.
    pub(crate) direction: Direction,
    /// Where the device's side is.
    pub(crate) at: Location,
    pub(crate) order: Order,
    /// Whether the host's side is, at least as far as the device's driver allowed.
    pub(crate) page_locked: bool,
    /// What follows it, which keeps the host's side.
    pub(crate) then: T,
}

// SAFETY: addresses for the driver, never dereferenced here; that they stay good is the promise of whoever adds the copy,
// on whatever thread.
unsafe impl<T: Send> Send for Plain<T> {}

/// Copies of which the driver takes several at once, and which end in their order: a context, as far as locations tell
/// it (memory of pools lies in whichever is in use on its device), and a direction.
type Lane = (u64, Option<DeviceIndex>, Direction);

impl<T> Plain<T> {
    fn lane(&self) -> Lane {
        (self.at.context, self.at.device, self.direction)
    }
}

/// Copies under way, with one completion. It comes first, so that one dropped waits before the memory that it copies
/// from or to is given back.
struct Running<T> {
    completion: Completion,
    followed_by: SmallVec<[T; 1]>,
    /// None for what went alone.
    lane: Option<Lane>,
    result: Option<Result<(), DeviceError>>,
}

/// All of one engine.
pub(crate) struct Batches<T> {
    waiting: Vec<Plain<T>>,
    running: Vec<Running<T>>,
    /// Bytes of copies after which a batch is full: it completes as a whole, so that what follows one overlaps the next.
    most_bytes: usize,
}

impl<T> Batches<T> {
    pub(crate) fn new(most_bytes: usize) -> Self {
        Batches { waiting: Vec::new(), running: Vec::new(), most_bytes }
    }

    /// Adds a copy that sets out with others.
    ///
    /// # Safety
    /// Both ranges stay allocated, the source unwritten and the destination untouched, until what follows the copy is
    /// done or dropped.
    pub(crate) unsafe fn add(&mut self, copy: Plain<T>) {
        self.waiting.push(copy);
    }

    /// Adds what is under way already.
    pub(crate) fn add_running(&mut self, completion: Completion, then: T) {
        self.running.push(Running { completion, followed_by: SmallVec::from([then]), lane: None, result: None });
    }

    /// Hands over what waits, but for a few small copies where the device has enough to do.
    pub(crate) fn set_out(&mut self, devices: &Devices) {
        let mut held = Vec::new();
        while let Some(lane) = self.waiting.first().map(Plain::lane) {
            let mut bytes = 0;
            let most = self.most_bytes;
            // As they came, up to the one that fills the batch.
            let batch: Vec<Plain<T>> = self
                .waiting
                .extract_if(.., |copy| {
                    let fits = bytes < most && copy.lane() == lane;
                    bytes += if fits { copy.len } else { 0 };
                    fits
                })
                .collect();
            let busy = self.running.iter().filter(|running| running.lane == Some(lane)).count() >= DEPTH;
            if busy && bytes < most && batch.len() < ENOUGH {
                held.extend(batch);
            } else {
                self.hand_over(devices, lane, batch);
            }
        }
        self.waiting = held;
    }

    fn hand_over(&mut self, devices: &Devices, lane: Lane, batch: Vec<Plain<T>>) {
        let (completion, result) = match begin(devices, &batch) {
            Ok(completion) => (completion, None),
            // Nobody is to fail for another's buffer.
            Err(_) if batch.len() > 1 => {
                return batch.into_iter().for_each(|copy| self.hand_over(devices, lane, vec![copy]));
            }
            Err(error) => (Completion::DONE, Some(Err(error))),
        };
        let followed_by = batch.into_iter().map(|copy| copy.then).collect();
        self.running.push(Running { completion, followed_by, lane: Some(lane), result });
    }

    /// Takes out what is over, in the order in which it set out.
    pub(crate) fn ended(&mut self) -> Vec<(T, Result<(), DeviceError>)> {
        // From the last on: of one that is over, the driver need not be asked about those before it in its stream.
        for running in self.running.iter_mut().rev().filter(|running| running.result.is_none()) {
            running.result = match running.completion.poll() {
                Ok(false) => None,
                result => Some(result.map(|_| ())),
            };
        }
        let mut ended = Vec::new();
        for running in self.running.extract_if(.., |running| running.result.is_some()) {
            let Running { completion, followed_by, result, .. } = running;
            drop(completion);
            let result = result.unwrap_or(Ok(()));
            ended.extend(followed_by.into_iter().map(|then| (then, result.clone())));
        }
        ended
    }
}

/// Hands a batch over.
fn begin<T>(devices: &Devices, batch: &[Plain<T>]) -> Result<Completion, DeviceError> {
    let Some(first) = batch.first() else { return Ok(Completion::DONE) };
    let ordered = batch.iter().any(|copy| copy.order == Order::AfterDefaultStream);
    let order = if ordered { Order::AfterDefaultStream } else { Order::None };
    let mut copies = devices.batch(&first.at, first.direction, order)?;
    if batch.iter().all(|copy| copy.page_locked) {
        copies.page_locked();
    }
    for copy in batch {
        // SAFETY: the promise of whoever added it, until what follows it is dropped or done, which the completion is
        // waited for before.
        unsafe { copies.copy(copy.to, copy.from, copy.len)? };
    }
    copies.finish()
}
