//! Copies: gathered, then issued together into the stream of their direction, their end marked by an event.
//!
//! An operation is one box that serves in turn as the batch and as its completion, and goes back to its context's pool
//! with its event: after the first few, neither costs an allocation, and there are as many as are needed.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUevent_st, CUmemLocation, CUmemLocationType_enum, CUmemcpyAttributes, CUmemcpySrcAccessOrder_enum,
    CUmemorytype_enum, CUstream, CUstreamCaptureMode_enum,
};

use super::context::{Context, Handle};
use super::driver::Driver;
use super::status::Failure;
use super::stream;
use crate::copy::Direction;
use crate::error::DeviceError;
use crate::vendor::{VendorBatch, VendorCompletion};

/// How an operation begins.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) direction: Direction,
    /// Whether it is the first on a user's buffer: then the calling thread must not be capturing.
    pub(super) first: bool,
    /// Whether it waits for the legacy default stream.
    pub(super) ordered: bool,
}

/// A batch of copies, first in the making, then under way.
pub(crate) struct Operation {
    /// None while it lies in its context's pool.
    context: Option<Arc<Context>>,
    /// Made with the first copies.
    event: Option<Handle<CUevent_st>>,
    start: Start,
    pieces: Vec<Piece>,
    bytes: usize,
}

/// Rows to copy; a plain copy is one row.
#[derive(Clone, Copy)]
struct Piece {
    dst: *mut u8,
    dst_pitch: usize,
    src: *const u8,
    src_pitch: usize,
    width: usize,
    rows: usize,
}

// SAFETY: a piece's addresses are handed to the driver, never dereferenced here; that they stay good is the promise of
// whoever added the piece, on whatever thread.
unsafe impl Send for Piece {}

impl Operation {
    pub(super) fn begin(context: Arc<Context>, start: Start) -> Box<Operation> {
        let mut operation =
            context.idle.lock().pop().unwrap_or_else(|| {
                Box::new(Operation { context: None, event: None, start, pieces: Vec::new(), bytes: 0 })
            });
        operation.start = start;
        operation.context = Some(context);
        operation
    }

    /// An operation that copies nothing, and is over once the work is that the context's legacy default stream holds
    /// now. None if it is already.
    pub(super) fn after_legacy(context: Arc<Context>) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError> {
        // The direction says nothing here.
        let start = Start { direction: Direction::DeviceToDevice, first: true, ordered: true };
        let mut operation = Operation::begin(context.clone(), start);
        match operation.record_legacy(&context) {
            Ok(true) => Ok(Some(operation)),
            answer => {
                let answer = answer.map_err(|failure| operation.error(&context, failure));
                operation.rest();
                answer.map(|_| None)
            }
        }
    }

    /// Whether the context's legacy default stream has nothing left to do.
    pub(super) fn ask_legacy(context: &Arc<Context>) -> Result<bool, DeviceError> {
        let start = Start { direction: Direction::DeviceToDevice, first: true, ordered: true };
        let mut operation = Operation::begin(context.clone(), start);
        let asked = operation.settled(context).map_err(|failure| operation.error(context, failure));
        operation.rest();
        asked
    }

    fn settled(&mut self, context: &Context) -> Result<bool, Failure> {
        let driver = context.driver;
        let _scope = context.enter()?;
        refuse_capture(driver, || self.event(driver))?;
        Ok(context.is_settled(driver)? == Some(true))
    }

    /// Records the event in the legacy stream; false if nothing is to be waited for.
    fn record_legacy(&mut self, context: &Context) -> Result<bool, Failure> {
        let driver = context.driver;
        let _scope = context.enter()?;
        refuse_capture(driver, || self.event(driver))?;
        // Cheaper than an event where the stream is idle, as it mostly is: an event is waited for 1.5 us at least.
        if context.is_settled(driver)? != Some(false) {
            return Ok(false);
        }
        let event = self.event(driver)?;
        context.streams.record_legacy(driver, event)
    }

    fn event(&mut self, driver: &Driver) -> Result<*mut CUevent_st, Failure> {
        Ok(match self.event {
            Some(event) => event.0,
            None => self.event.insert(Handle(stream::new_event(driver)?)).0,
        })
    }

    /// Destroys what it holds in its context, which is current.
    pub(super) fn destroy(&mut self, driver: &Driver) {
        if let Some(event) = self.event.take() {
            stream::destroy_event(driver, event.0);
        }
    }

    fn issue(&mut self, context: &Context) -> Result<(), Failure> {
        let driver = context.driver;
        let _scope = context.enter()?;
        if self.start.first {
            refuse_capture(driver, || self.event(driver))?;
        }
        let event = self.event(driver)?;
        let stream = context.streams.of(driver, self.start.direction)?;
        if self.start.ordered {
            context.streams.order_after_legacy(driver, stream)?;
        }
        let issued = self.issue_pieces(context, stream);
        // SAFETY: event and stream are of the current context.
        let recorded = issued.and_then(|()| unsafe { driver.cuEventRecord(event, stream) });
        if recorded.is_err() {
            // Some may be under way; their memory must be the caller's again when it hears of the failure.
            // SAFETY: our stream, of the current context. That it fails too adds nothing.
            let _ = unsafe { driver.cuStreamSynchronize(stream) };
        }
        recorded
    }

    fn issue_pieces(&self, context: &Context, stream: CUstream) -> Result<(), Failure> {
        let between = self.start.direction == Direction::DeviceToDevice;
        let plain = between && self.pieces.len() > 1 && self.pieces.iter().all(|piece| piece.rows == 1);
        if plain && !context.batches_refused.load(Relaxed) {
            match issue_batch(context.driver, &self.pieces, stream) {
                Ok(()) => return Ok(()),
                // Some may be under way; to copy them again does no harm.
                Err(failure) => {
                    context.batches_refused.store(true, Relaxed);
                    log::debug!("copies go out one by one: {}", context.driver.reason(failure));
                }
            }
        }
        self.pieces.iter().try_for_each(|piece| piece.issue(context, self.start.direction, stream))
    }

    fn error(&self, context: &Context, failure: Failure) -> DeviceError {
        let way = match self.start.direction {
            Direction::DeviceToHost => "from device to host",
            Direction::HostToDevice => "from host to device",
            Direction::DeviceToDevice => "between devices",
        };
        let object = format!("a copy of {} bytes {way} in context {}", self.bytes, context.id);
        let mut error = context.driver.error(context.note(failure), object);
        match failure.code {
            Failure::CAPTURE_UNSUPPORTED => error.reason.push_str(
                ": the calling thread captures a stream into a graph, and messages cannot be part of one; end the \
                 capture first",
            ),
            Failure::CONTEXT_IS_DESTROYED => error.reason.push_str(": the context that the buffer was in is gone"),
            _ => {}
        }
        error
    }

    /// Back to the pool, event and all.
    fn rest(mut self: Box<Self>) {
        self.pieces.clear();
        self.bytes = 0;
        if let Some(context) = self.context.take() {
            context.idle.lock().push(self);
        }
    }
}

impl VendorBatch for Operation {
    unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_2d((dst, len), (src, len), len, 1) }
    }

    unsafe fn copy_2d(&mut self, dst: (*mut u8, usize), src: (*const u8, usize), width: usize, rows: usize) {
        if width == 0 || rows == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(width.saturating_mul(rows));
        let dense = dst.1 == width && src.1 == width;
        let (width, rows) = if dense { (width * rows, 1) } else { (width, rows) };
        self.pieces.push(Piece { dst: dst.0, dst_pitch: dst.1, src: src.0, src_pitch: src.1, width, rows });
    }

    fn finish(mut self: Box<Self>) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError> {
        let Some(context) = self.context.clone().filter(|_| !self.pieces.is_empty()) else {
            self.rest();
            return Ok(None);
        };
        match self.issue(&context) {
            Ok(()) => Ok(Some(self)),
            Err(failure) => {
                let error = self.error(&context, failure);
                self.rest();
                Err(error)
            }
        }
    }
}

impl VendorCompletion for Operation {
    fn poll(&mut self) -> Result<bool, DeviceError> {
        let (Some(context), Some(event)) = (&self.context, self.event) else { return Ok(true) };
        // SAFETY: our event. Its context still exists, else `enter` has failed.
        let answer = context.enter().and_then(|_scope| unsafe { context.driver.cuEventQuery(event.0) });
        match answer {
            Ok(()) => Ok(true),
            Err(Failure { code: Failure::NOT_READY, .. }) => Ok(false),
            Err(failure) => Err(self.error(context, failure)),
        }
    }

    fn recycle(self: Box<Self>) {
        self.rest();
    }
}

impl Piece {
    fn issue(&self, context: &Context, direction: Direction, stream: CUstream) -> Result<(), Failure> {
        if self.rows == 1 {
            // SAFETY: the ranges are good by the promise of whoever added the piece, the stream is of the current
            // context.
            return unsafe { context.driver.cuMemcpyAsync(self.dst as u64, self.src as u64, self.width, stream) };
        }
        // The driver takes neither rows that overlap nor pitches beyond the device's limit.
        let most = context.max_pitch();
        let fits = |pitch: usize| (self.width..=most).contains(&pitch);
        if fits(self.dst_pitch) && fits(self.src_pitch) {
            let copy = self.descriptor(direction);
            // SAFETY: as above, for every row.
            return unsafe { context.driver.cuMemcpy2DAsync(&raw const copy, stream) };
        }
        (0..self.rows).try_for_each(|row| {
            let dst = self.dst as u64 + (row * self.dst_pitch) as u64;
            let src = self.src as u64 + (row * self.src_pitch) as u64;
            // SAFETY: as above.
            unsafe { context.driver.cuMemcpyAsync(dst, src, self.width, stream) }
        })
    }

    fn descriptor(&self, direction: Direction) -> CUDA_MEMCPY2D {
        // What is no host memory is given as a unified address: the driver finds out whose it is.
        let side = |host: bool| match host {
            true => CUmemorytype_enum::CU_MEMORYTYPE_HOST,
            false => CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED,
        };
        CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: side(direction == Direction::HostToDevice),
            srcHost: self.src.cast::<c_void>(),
            srcDevice: self.src as u64,
            srcArray: std::ptr::null_mut(),
            srcPitch: self.src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: side(direction == Direction::DeviceToHost),
            dstHost: self.dst.cast::<c_void>(),
            dstDevice: self.dst as u64,
            dstArray: std::ptr::null_mut(),
            dstPitch: self.dst_pitch,
            WidthInBytes: self.width,
            Height: self.rows,
        }
    }
}

/// Hands plain copies to the driver by one call, in which it lets them overlap: 64 copies of 64 KiB between two H200s
/// take 55 us, issued one by one 560 us.
fn issue_batch(driver: &Driver, pieces: &[Piece], stream: CUstream) -> Result<(), Failure> {
    let mut destinations: Vec<u64> = pieces.iter().map(|piece| piece.dst as u64).collect();
    let mut sources: Vec<u64> = pieces.iter().map(|piece| piece.src as u64).collect();
    let mut lens: Vec<usize> = pieces.iter().map(|piece| piece.width).collect();
    let nowhere = CUmemLocation { type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
    let mut attributes = CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        srcLocHint: nowhere,
        dstLocHint: nowhere,
        flags: 0,
    };
    let mut first = 0;
    // SAFETY: as many addresses and lengths as pieces, whose ranges are good by the promise of whoever added them; one
    // set of attributes, which holds from the first copy on; the stream is of the current context.
    unsafe {
        driver.cuMemcpyBatchAsync(
            destinations.as_mut_ptr(),
            sources.as_mut_ptr(),
            lens.as_mut_ptr(),
            pieces.len(),
            &raw mut attributes,
            &raw mut first,
            1,
            stream,
        )
    }
}

/// Fails if the calling thread is capturing.
///
/// The driver has no such question. But a call that is unsafe in a capture is refused in the thread-local mode exactly
/// if this thread has begun a capture (other than a relaxed one), and captures of other threads are left alone. The
/// refusal invalidates this thread's capture, as its own unsafe calls would.
///
/// To free nothing is such a call on the drivers where that was tried, and costs 0.02 us; the query of an event costs
/// 1.3 us.
fn refuse_capture(driver: &Driver, event: impl FnOnce() -> Result<*mut CUevent_st, Failure>) -> Result<(), Failure> {
    const FREES_NOTHING_IN_CAPTURES: c_int = 13_000;
    let event = if driver.version < FREES_NOTHING_IN_CAPTURES { Some(event()?) } else { None };
    let mut mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_int;
    // SAFETY: exchanges this thread's mode with `mode`.
    if unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.is_err() {
        // Drivers before 10.1; the scope has found that out too.
        return Ok(());
    }
    let answer = match event {
        // SAFETY: our own event, of the current context.
        Some(event) => unsafe { driver.cuEventQuery(event) },
        // SAFETY: an address of 0 is nothing to free.
        None => unsafe { driver.cuMemFree(0) },
    };
    // SAFETY: gives the scope's mode back.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }?;
    match answer {
        Err(Failure { code: Failure::CAPTURE_UNSUPPORTED, .. }) => answer,
        // Whatever else is wrong will show when something is asked for.
        _ => Ok(()),
    }
}
