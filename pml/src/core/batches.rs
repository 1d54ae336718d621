//! Batches copies between devices and the engine's host memory.
//!
//! The driver takes 1.5 us to accept one copy, 0.6 us each for several at once, and 1.25 us to report completion of any
//! number (H200, driver 580). A copy of 64 KiB itself takes 1.2 us. So all copies that one poll of the peers' messages
//! leads to start together and share one completion. While a device is busy, small copies gather.

use cableway_common_cuda::{Completion, DeviceError, DeviceIndex, Devices, Direction, Location, Order};
use smallvec::SmallVec;

/// Batches in one direction that keep a device busy while further copies gather.
const DEPTH: usize = 2;
/// Number of copies that fill a batch. More would lower the cost of each by a tenth at most.
const ENOUGH: usize = 16;

/// A copy of one run of bytes that has not started.
pub(crate) struct Plain<T> {
    pub(crate) to: *mut u8,
    pub(crate) from: *const u8,
    pub(crate) len: usize,
    /// To or from the host.
    pub(crate) direction: Direction,
    /// Location of the device's side.
    pub(crate) at: Location,
    pub(crate) order: Order,
    /// Whether the host's side is page-locked, as far as the device's driver allowed it.
    pub(crate) page_locked: bool,
    /// The step after the copy. It keeps the host's side alive.
    pub(crate) then: T,
}

// SAFETY: the addresses are for the driver and are never dereferenced here. The caller that adds the copy promises that
// they stay valid, on any thread.
unsafe impl<T: Send> Send for Plain<T> {}

/// Copies that the driver can take together and that end in order: a context and a direction. Memory of pools belongs
/// to the context in use on its device, so the device is part of the key.
type Lane = (u64, Option<DeviceIndex>, Direction);

impl<T> Plain<T> {
    fn lane(&self) -> Lane {
        (self.at.context, self.at.device, self.direction)
    }
}

/// Copies under way, with one completion. The completion is the first field, so that a drop waits for it before the
/// copied memory is freed.
struct Running<T> {
    completion: Completion,
    followed_by: SmallVec<[T; 1]>,
    /// `None` for a copy that was started alone.
    lane: Option<Lane>,
    result: Option<Result<(), DeviceError>>,
}

/// All batches of one engine.
pub(crate) struct Batches<T> {
    waiting: Vec<Plain<T>>,
    running: Vec<Running<T>>,
    /// Bytes that fill a batch. A batch completes as a whole, so a limit lets the next step of one batch overlap the
    /// copies of the following batch.
    most_bytes: usize,
}

impl<T> Batches<T> {
    pub(crate) fn new(most_bytes: usize) -> Self {
        Batches { waiting: Vec::new(), running: Vec::new(), most_bytes }
    }

    /// Adds a copy that will start with others.
    ///
    /// # Safety
    /// Both ranges stay allocated, the source unwritten and the destination untouched, until the copy's next step is
    /// done or dropped.
    pub(crate) unsafe fn add(&mut self, copy: Plain<T>) {
        self.waiting.push(copy);
    }

    /// Adds a copy that is under way already.
    pub(crate) fn add_running(&mut self, completion: Completion, then: T) {
        self.running.push(Running { completion, followed_by: SmallVec::from([then]), lane: None, result: None });
    }

    /// Starts the waiting copies. A few small copies keep waiting while the device is busy.
    pub(crate) fn set_out(&mut self, devices: &Devices) {
        let mut held = Vec::new();
        while let Some(lane) = self.waiting.first().map(Plain::lane) {
            let mut bytes = 0;
            let most = self.most_bytes;
            // Keep their order, up to the copy that fills the batch.
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
            // Retry one by one: a bad buffer must not fail the other copies.
            Err(_) if batch.len() > 1 => {
                return batch.into_iter().for_each(|copy| self.hand_over(devices, lane, vec![copy]));
            }
            Err(error) => (Completion::DONE, Some(Err(error))),
        };
        let followed_by = batch.into_iter().map(|copy| copy.then).collect();
        self.running.push(Running { completion, followed_by, lane: Some(lane), result });
    }

    /// Removes the batches that ended, in the order in which they started.
    pub(crate) fn ended(&mut self) -> Vec<(T, Result<(), DeviceError>)> {
        // Poll the newest first: once a batch has ended, the driver need not be asked about earlier ones in its stream.
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

/// Hands a batch to the driver.
fn begin<T>(devices: &Devices, batch: &[Plain<T>]) -> Result<Completion, DeviceError> {
    let Some(first) = batch.first() else { return Ok(Completion::DONE) };
    let order = batch.iter().map(|copy| copy.order).max().unwrap_or(Order::None);
    let mut copies = devices.batch(&first.at, first.direction, order)?;
    if batch.iter().all(|copy| copy.page_locked) {
        copies.page_locked();
    }
    for copy in batch {
        // SAFETY: the caller that added the copy promised that both ranges stay valid until its next step is dropped or
        // done. The completion is waited for before that.
        unsafe { copies.copy(copy.to, copy.from, copy.len) };
    }
    copies.finish()
}
