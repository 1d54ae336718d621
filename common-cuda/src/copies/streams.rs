//! The streams of copy engines in one context, and the work in them that is known to be done.
//!
//! The query of an event that is done takes 1.25 us, of one that is not done 0.1 us (H200, driver 580). A stream does its
//! work in order, so the answer for one event holds for all events recorded in its stream before.
//!
//! A stream takes device memory. If none is left, copies use the context's default stream from then on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::context::Context;
use crate::copy::{Direction, RowCopy};
use crate::driver::{Event, Failure, FailureKind, Priority, Stream};
use crate::turns::Turns;

/// One stream for each direction, so that their copies overlap.
pub(crate) struct CopyStreams {
    context: Arc<Context>,
    /// What small copies to the device have shown.
    pub(super) turns: Turns,
    streams: [CopyStream; Direction::ALL.len()],
}

/// The stream of a direction.
#[derive(Default)]
struct CopyStream {
    /// Never changes once set: the numbers of events hold for one stream.
    made: OnceLock<Made>,
    /// The number of the last recorded event. The first event has number 1.
    last: Mutex<u64>,
    /// The event of this number and all before it are done.
    done: AtomicU64,
    /// The driver refuses batches of copies.
    batches_refused: AtomicBool,
}

enum Made {
    Own(Stream),
    /// No device memory was left for a stream. The context's default stream takes its place.
    Default,
}

impl CopyStreams {
    pub(super) fn new(context: Arc<Context>, turn: Duration) -> CopyStreams {
        CopyStreams { context, turns: Turns::new(turn), streams: Default::default() }
    }

    fn at(&self, direction: Direction) -> &CopyStream {
        &self.streams[direction as usize]
    }

    /// Returns the stream of a direction, made on first use. The context is current.
    ///
    /// Fails while a capture forbids the use of the default stream, if that takes the stream's place.
    pub(super) fn of(&self, direction: Direction) -> Result<&Stream, Failure> {
        match self.made(direction)? {
            Made::Own(stream) => Ok(stream),
            Made::Default if self.context.driver.default_stream_is_usable()? => {
                Ok(self.context.driver.default_stream())
            }
            Made::Default => Err(Failure::found("copy in the default stream", FailureKind::DefaultStreamCaptured)),
        }
    }

    /// Makes the streams of all directions. The context is current.
    pub(super) fn make_all(&self) -> Result<(), Failure> {
        Direction::ALL.into_iter().try_for_each(|direction| self.made(direction).map(drop))
    }

    fn made(&self, direction: Direction) -> Result<&Made, Failure> {
        let made = &self.at(direction).made;
        if let Some(made) = made.get() {
            return Ok(made);
        }
        let new = match self.context.driver.new_stream(Priority::Normal) {
            Ok(stream) => Made::Own(stream),
            Err(failure) if failure.kind == FailureKind::OutOfMemory => {
                warn_of_fallback(self.context.id);
                Made::Default
            }
            Err(failure) => return Err(failure),
        };
        // Another thread may have been faster.
        if let Err(Made::Own(stream)) = made.set(new) {
            self.destroy(stream);
        }
        made.get().ok_or(Failure::missing("new_stream"))
    }

    /// Records an event in the stream of a direction and returns its number, or none while a capture forbids the use of
    /// the default stream. The context is current.
    pub(super) fn record(&self, direction: Direction, event: &Event) -> Result<Option<u64>, Failure> {
        let made = self.made(direction)?;
        // Locked until the event is recorded, so that the stream has events in the order of their numbers.
        let mut last = self.at(direction).last.lock();
        match made {
            Made::Own(stream) => self.context.driver.record(event, stream)?,
            Made::Default if self.context.driver.record_default_stream(event)? => {}
            Made::Default => return Ok(None),
        }
        *last += 1;
        Ok(Some(*last))
    }

    /// Checks whether all work in the stream of a direction is done; false while a capture forbids to ask. The context is
    /// current.
    pub(super) fn is_idle(&self, direction: Direction) -> Result<bool, Failure> {
        match self.made(direction)? {
            Made::Own(stream) => self.context.driver.is_idle(stream),
            Made::Default => Ok(self.context.driver.default_stream_is_idle()? == Some(true)),
        }
    }

    /// Checks whether all work in the stream of a direction is done. Asks only whether the default stream may be used if that
    /// takes its place, because a query can invalidate a capture. The context is current.
    pub(super) fn ask_own(&self, direction: Direction) -> Result<bool, Failure> {
        match self.made(direction)? {
            Made::Own(stream) => self.context.driver.is_idle(stream),
            Made::Default => self.context.driver.default_stream_is_usable(),
        }
    }

    /// Waits until the stream of a direction has nothing left to do, after a failure. Returns at once if its context was
    /// destroyed, which has ended its work.
    pub(super) fn synchronise(&self, direction: Direction) {
        let (Ok(_scope), Some(made)) = (self.context.enter(), self.at(direction).made.get()) else { return };
        let driver = self.context.driver;
        let stream = match made {
            Made::Own(stream) => stream,
            Made::Default => driver.default_stream(),
        };
        if let Err(failure) = driver.synchronise(stream) {
            log::debug!("context {}: {}", self.context.id, driver.reason(failure));
        }
    }

    /// Checks whether the event of this number is known to be done.
    pub(super) fn is_done(&self, direction: Direction, number: u64) -> bool {
        self.at(direction).done.load(Ordering::Acquire) >= number
    }

    /// Notes that the driver has reported the event of this number done.
    pub(super) fn found_done(&self, direction: Direction, number: u64) {
        self.at(direction).done.fetch_max(number, Ordering::AcqRel);
    }

    /// Issues copies to the stream of a direction, `together` by one call if the driver supports that, and perhaps in rows.
    /// Returns false if some may have been issued twice. The context is current.
    ///
    /// # Safety
    /// As [`Copies`](crate::driver::Copies), for every piece.
    pub(super) unsafe fn issue(
        &self,
        direction: Direction,
        pieces: &[RowCopy],
        together: bool,
    ) -> Result<bool, Failure> {
        let (stream, driver) = (self.of(direction)?, self.context.driver);
        let least = self.least_in_rows(direction, together);
        let one_by_one = || {
            pieces.iter().try_for_each(|piece| {
                for part in in_rows(piece, least).iter().flatten() {
                    // SAFETY: the caller's promise. The parts are those of the piece.
                    unsafe { issue(&self.context, part, direction, stream)? };
                }
                Ok(())
            })
        };
        let refused = &self.at(direction).batches_refused;
        let in_rows = least == ANY && pieces.iter().any(|piece| piece.width <= MOST_IN_ROWS);
        let plain = together && !in_rows && pieces.len() > 1 && pieces.iter().all(|piece| piece.rows == 1);
        if !plain || refused.load(Ordering::Relaxed) {
            return one_by_one().map(|()| true);
        }
        // SAFETY: the caller's promise.
        let Err(failure) = (unsafe { driver.copy_together(pieces, stream) }) else { return Ok(true) };
        // Some copies may be under way. Repeating them does no harm. If a copy is at fault, not the batch, it fails again.
        one_by_one()?;
        refused.store(true, Ordering::Relaxed);
        log::debug!("copies are issued one by one, as the driver refused a batch: {}", driver.reason(failure));
        Ok(false)
    }

    /// Checks whether a copy of so many bytes shows by its time if contexts take turns.
    pub(super) fn shows_turns(&self, direction: Direction, bytes: usize) -> bool {
        direction == Direction::HostToDevice
            && bytes < WORTH_ROWS
            && self.context.driver.inlines_copies()
            && !self.turns.are_taken()
    }

    /// Returns the least bytes of a run that is copied in rows. The driver may wait for work of the program before it reads
    /// rows of host memory that is not page-locked.
    fn least_in_rows(&self, direction: Direction, page_locked: bool) -> usize {
        if direction != Direction::HostToDevice || !page_locked || !self.context.driver.inlines_copies() {
            return usize::MAX;
        }
        if self.turns.are_taken() {
            self.turns.avoid();
            return ANY;
        }
        WORTH_ROWS
    }

    fn destroy(&self, stream: Stream) {
        if let Err(failure) = self.context.driver.destroy_stream(stream) {
            log::debug!("destroying a stream: {}", self.context.driver.reason(failure));
        }
    }
}

impl Drop for CopyStreams {
    /// No work is in the streams.
    fn drop(&mut self) {
        let Ok(_scope) = self.context.enter() else { return };
        for made in self.streams.each_mut().map(|stream| stream.made.take()) {
            if let Some(Made::Own(stream)) = made {
                self.destroy(stream);
            }
        }
    }
}

/// From this size on a run is copied faster in two rows (H200, driver 580: 16 KiB 7.8 us, not 10.1). Smaller ones take 0.9 us
/// more.
const WORTH_ROWS: usize = 12 << 10;
/// From 32 KiB on a copy engine makes copies anyway, and rows are as fast as a run. Another driver may have another limit.
const MOST_IN_ROWS: usize = 64 << 10;
/// The least run that can be divided.
const ANY: usize = 2;

/// Divides a run of `least` to [`MOST_IN_ROWS`] bytes in two rows. The driver writes small runs to the queue of the compute
/// engine, and leaves rows to a copy engine. If the number of bytes is odd, the last two are two rows of their own.
fn in_rows(piece: &RowCopy, least: usize) -> [Option<RowCopy>; 2] {
    let &RowCopy { dst, src, width, rows, .. } = piece;
    if rows != 1 || !(least..=MOST_IN_ROWS).contains(&width) {
        return [Some(*piece), None];
    }
    let two_rows = |from: usize, width: usize| RowCopy {
        dst: dst.wrapping_add(from),
        dst_pitch: width,
        src: src.wrapping_add(from),
        src_pitch: width,
        width,
        rows: 2,
    };
    [Some(two_rows(0, width / 2)), (!width.is_multiple_of(2)).then(|| two_rows(width - 2, 1))]
}

#[cold]
fn warn_of_fallback(context: u64) {
    cableway_base::warn_once("cuda/streams-out-of-memory", || {
        format!(
            "no device memory is left for a stream in context {context}: copies wait in its default stream from now on; \
             leave device memory free before the first message"
        )
    });
}

/// Issues one piece, by one call if the driver can copy all its rows together. The context is current.
///
/// # Safety
/// As [`Copies`](crate::driver::Copies).
pub(crate) unsafe fn issue(
    context: &Context,
    piece: &RowCopy,
    direction: Direction,
    stream: &Stream,
) -> Result<(), Failure> {
    let &RowCopy { dst, dst_pitch, src, src_pitch, width, rows } = piece;
    if rows == 1 {
        // SAFETY: the caller's promise.
        return unsafe { context.driver.copy(dst, src, width, stream) };
    }
    // The driver refuses rows that overlap, and pitches above the device's limit.
    let most = context.limits().max_pitch;
    let fits = |pitch: usize| (width..=most).contains(&pitch);
    if fits(dst_pitch) && fits(src_pitch) {
        // SAFETY: the caller's promise.
        return unsafe { context.driver.copy_rows(piece, direction, stream) };
    }
    (0..rows).try_for_each(|row| {
        let (dst, src) = (dst.wrapping_add(row * dst_pitch), src.wrapping_add(row * src_pitch));
        // SAFETY: the caller's promise.
        unsafe { context.driver.copy(dst, src, width, stream) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ranges of bytes that the parts copy.
    fn ranges(len: usize, least: usize) -> Vec<(usize, usize)> {
        let (dst, src) = (std::ptr::without_provenance_mut(4096), std::ptr::without_provenance(1 << 20));
        let parts = in_rows(&RowCopy::run(dst, src, len), least);
        let row = |part: &RowCopy, row: usize| {
            let (to, from) = (part.dst.addr() - 4096, part.src.addr() - (1 << 20));
            assert_eq!((to, part.dst_pitch), (from, part.src_pitch));
            (to + row * part.dst_pitch, part.width)
        };
        parts.iter().flatten().flat_map(|part| (0..part.rows).map(move |at| row(part, at))).collect()
    }

    #[test]
    fn rows_cover_a_run() {
        assert_eq!(ranges(1, ANY), [(0, 1)]);
        assert_eq!(ranges(2, ANY), [(0, 1), (1, 1)]);
        assert_eq!(ranges(3, ANY), [(0, 1), (1, 1), (1, 1), (2, 1)]);
        assert_eq!(ranges(4097, ANY), [(0, 2048), (2048, 2048), (4095, 1), (4096, 1)]);
        assert_eq!(ranges(MOST_IN_ROWS, WORTH_ROWS), [(0, 32768), (32768, 32768)]);
        for (len, least) in [(MOST_IN_ROWS + 1, ANY), (WORTH_ROWS - 1, WORTH_ROWS), (5, usize::MAX)] {
            assert_eq!(ranges(len, least), [(0, len)]);
        }
    }
}
