//! Copies: gathered, then issued together into the stream of their direction, their end marked by an event; or launched
//! as jobs of a kernel, where that is faster and can be.
//!
//! An operation is one box that serves in turn as the batch and as its completion, and goes back to its context's pool
//! with its event: after the first few, neither costs an allocation, and there are as many as are needed.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cudarc::driver::sys::{CUevent_st, CUstream, CUstreamCaptureMode_enum};

use super::context::{Context, Handle};
use super::copier::{self, Posted, Progress};
use super::driver::Driver;
use super::jobs::Jobs;
use super::kernels::{Pieces, Strides, Work};
use super::landing::{self, Landing};
use super::pieces::{Blocks, Piece, issue_batch};
use super::status::Failure;
use super::stream;
use super::stretch::Stretch;
use crate::copy::{Direction, Packing, Within};
use crate::error::DeviceError;
use crate::strided::Strided;
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
    blocks: Vec<Blocks>,
    stretches: Vec<Stretch>,
    bytes: usize,
    /// The host's side of all pieces is page-locked.
    page_locked: bool,
    /// Kernels reach the memory of all pieces.
    reachable: Option<Within>,
    /// Copy engines have a part of it, whose end the event marks.
    by_engine: bool,
    /// The event's number in the stream of the direction; none if it is in another stream.
    number: Option<u64>,
    /// Its bytes are looked for: the event is not recorded yet.
    landing: Option<Landing>,
    jobs: Jobs,
    /// What the resident copier has.
    posted: Posted,
}

impl Operation {
    pub(super) fn begin(context: Arc<Context>, start: Start) -> Box<Operation> {
        let mut operation = context.idle.lock().pop().unwrap_or_else(|| {
            Box::new(Operation {
                context: None,
                event: None,
                start,
                pieces: Vec::new(),
                blocks: Vec::new(),
                stretches: Vec::new(),
                bytes: 0,
                page_locked: false,
                reachable: None,
                by_engine: false,
                number: None,
                landing: None,
                jobs: Jobs::default(),
                posted: Posted::default(),
            })
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
            Ok(true) => {
                operation.by_engine = true;
                Ok(Some(operation))
            }
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

    /// Whether kernels make copies in the context at present.
    pub(super) fn kernels(context: &Context) -> bool {
        if !context.settings.kernels {
            return false;
        }
        if !context.kernels.tried()
            && let Ok(_scope) = context.enter()
        {
            context.kernels.load(context);
        }
        context.kernels.ready()
    }

    /// Whether a first copy on a user's buffer may begin without waiting for the default stream.
    fn may_begin(&mut self, context: &Context) -> Result<bool, Failure> {
        if self.start.ordered {
            return self.settled(context);
        }
        let _scope = context.enter()?;
        refuse_capture(context.driver, || self.event(context.driver))?;
        Ok(true)
    }

    fn settled(&mut self, context: &Context) -> Result<bool, Failure> {
        let driver = context.driver;
        let _scope = context.enter()?;
        refuse_capture(driver, || self.event(driver))?;
        // Asked again and again while a message waits.
        let idle = context.is_settled(driver)? == Some(true);
        if idle {
            context.kernels.load_idle(context);
        }
        Ok(idle)
    }

    /// Records the event in the legacy stream; false if nothing is to be waited for.
    fn record_legacy(&mut self, context: &Context) -> Result<bool, Failure> {
        let driver = context.driver;
        let _scope = context.enter()?;
        refuse_capture(driver, || self.event(driver))?;
        // Cheaper than an event where the stream is idle, as it mostly is: an event is waited for 1.5 us at least.
        let idle = context.is_settled(driver)?;
        if idle == Some(true) {
            context.kernels.load_idle(context);
        }
        if idle != Some(false) {
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
        self.jobs.destroy(driver);
    }

    fn issue(&mut self, context: &Context) -> Result<(), Failure> {
        let driver = context.driver;
        let small = self.suits_the_copier(context);
        // It waits for no stream: what must be ordered is its own if the stream is found idle.
        if small
            && context.copier.runs()
            && (!self.start.first || self.may_begin(context)?)
            && context.copier.post(&self.pieces, &mut self.posted)
        {
            return Ok(());
        }
        let _scope = context.enter()?;
        if small {
            context.copier.want(context);
        }
        if self.start.first {
            refuse_capture(driver, || self.event(driver))?;
        }
        self.event(driver)?;
        self.by_engine = true;
        if self.start.direction == Direction::DeviceToDevice || !self.stretches.is_empty() {
            context.kernels.load(context);
            if let Err(failure) = self.launch(context) {
                // Some may be under way; their memory must be the caller's again when it hears of the failure.
                self.jobs.withdraw(context);
                return Err(failure);
            }
        }
        if !self.by_engine {
            return Ok(());
        }
        if self.page_locked && self.start.direction == Direction::DeviceToHost && !context.settings.landing.is_zero() {
            // SAFETY: valid for as long as the copies are under way, and nobody else's until then, by the promise of
            // whoever added them; as page-locked as it was said to be, it is host memory.
            self.landing =
                Landing::suits(&self.pieces).then(|| unsafe { Landing::prepare(&self.pieces, landing::word()) });
        }
        let issued = self.issue_to_engine(context, |stream| match self.start.ordered {
            true => context.streams.order_after_legacy(driver, stream),
            false => Ok(()),
        });
        if issued.is_err() {
            self.jobs.withdraw(context);
        }
        self.number = issued?;
        if self.number.is_some() {
            self.landing = None;
        }
        Ok(())
    }

    /// Hands to kernels what suits them and can be, and decides whether copy engines have the rest.
    fn launch(&mut self, context: &Context) -> Result<(), Failure> {
        let able = context.settings.kernels && context.kernels.ready();
        let plain = self.pieces.len();
        let order = self.start.ordered;
        for index in 0..self.blocks.len() {
            let blocks = self.blocks[index];
            let strides =
                able.then(|| Strides::new((blocks.dst.0, &blocks.dst.1), (blocks.src.0, &blocks.src.1), blocks.len));
            let launched = match strides.flatten() {
                Some(strides) => self.jobs.launch(context, &mut Work::Strided(strides), order)?,
                None => false,
            };
            if !launched {
                self.pieces.extend(blocks.rows());
            }
        }
        for index in 0..self.stretches.len() {
            let stretch = &self.stretches[index];
            let packed = able.then(|| stretch.for_kernel(context.driver, self.start.direction)).flatten();
            let launched = match packed {
                Some(packed) => self.jobs.launch(context, &mut Work::Packed(packed), order)?,
                None => false,
            };
            if !launched {
                self.pieces.extend(stretch.pieces(self.start.direction));
            }
        }
        self.by_engine = !self.pieces.is_empty();
        if able && self.by_engine && self.pieces.len() == plain && self.suits_a_kernel(context) {
            let mut pieces = Box::new(Pieces::new());
            if self.pieces.iter().all(|piece| pieces.push(piece.dst, piece.src, piece.width as u64)) {
                self.by_engine = !self.jobs.launch(context, &mut Work::Pieces(pieces), order)?;
            }
        }
        Ok(())
    }

    /// Whether a kernel makes the plain copies faster than copy engines.
    ///
    /// Between two H200s, windows of 64 messages take as long either way from 512 KiB on, and windows of less than eight
    /// less time by copy engines. Within one, where the driver copies by a kernel for each, one for several is always
    /// faster: 3.3 times with messages of 8 bytes, three times with 1 MiB.
    fn suits_a_kernel(&self, context: &Context) -> bool {
        /// Copies between devices that are worth a launch.
        const SEVERAL: usize = 5;
        let plain = self.pieces.len() > 1 && self.pieces.iter().all(|piece| piece.rows == 1);
        match self.reachable {
            Some(Within::OneDevice) => plain,
            Some(Within::OneNode) => {
                let bytes: usize = self.pieces.iter().map(|piece| piece.width).sum();
                plain && self.pieces.len() >= SEVERAL && bytes / self.pieces.len() <= context.settings.kernel_limit
            }
            None => false,
        }
    }

    /// Whether the resident copier may have all of it.
    fn suits_the_copier(&self, context: &Context) -> bool {
        context.settings.copier
            && self.reachable == Some(Within::OneNode)
            && self.start.direction == Direction::DeviceToDevice
            && self.blocks.is_empty()
            && self.bytes <= copier::MOST
            && self.pieces.iter().all(|piece| piece.rows == 1)
    }

    /// Has copy engines do what jobs did not begin in time. To copy again what was copied does no harm: nobody touches
    /// either side before the operation is over.
    fn take_from_jobs(&mut self, context: &Context) -> Result<(), Failure> {
        let _scope = context.enter()?;
        let rows: Vec<Piece> = self.blocks.iter().flat_map(Blocks::rows).collect();
        self.pieces.extend(rows);
        self.pieces.extend(self.stretches.iter().flat_map(|stretch| stretch.pieces(self.start.direction)));
        self.by_engine = true;
        self.event(context.driver)?;
        self.number = self.issue_to_engine(context, |stream| self.jobs.order(context.driver, stream))?;
        Ok(())
    }

    /// Has copy engines do what the resident copier did not begin. To copy the rest again does no harm.
    fn take_from_copier(&mut self, context: &Context) -> Result<(), Failure> {
        let _scope = context.enter()?;
        self.by_engine = true;
        self.event(context.driver)?;
        self.number = self.issue_to_engine(context, |_| Ok(()))?;
        Ok(())
    }

    /// Issues all pieces, with what `order` has the stream wait for before, and answers the number of the event that
    /// follows them, if it has to. The context is current.
    fn issue_to_engine(
        &self,
        context: &Context,
        order: impl FnOnce(CUstream) -> Result<(), Failure>,
    ) -> Result<Option<u64>, Failure> {
        let driver = context.driver;
        let stream = context.streams.of(driver, self.start.direction)?;
        order(stream)?;
        let recorded = self.issue_pieces(context, stream).and_then(|once| match self.landing {
            Some(_) if once => Ok(None),
            // Bytes that are seen may be written again where some were issued twice.
            _ => self.mark(context, stream).map(Some),
        });
        if recorded.is_err() {
            // Some may be under way; their memory must be the caller's again when it hears of the failure.
            // SAFETY: our stream, of the current context. That it fails too adds nothing.
            let _ = unsafe { driver.cuStreamSynchronize(stream) };
        }
        recorded
    }

    /// Has the event follow what was issued, and answers its number. The context is current.
    fn mark(&self, context: &Context, stream: CUstream) -> Result<u64, Failure> {
        let event = self.event.map_or(std::ptr::null_mut(), |event| event.0);
        context.streams.recorded(self.start.direction).record(context.driver, event, stream)
    }

    /// Whether copies whose bytes are looked for have landed; none if the event is to tell.
    fn look_for_bytes(&mut self, context: &Context) -> Result<Option<bool>, Failure> {
        let Some(landing) = &mut self.landing else { return Ok(None) };
        // SAFETY: the pieces that it was made for, whose destinations only the device touches.
        let landed = unsafe { landing.look(&self.pieces) };
        if landed || landing.since.elapsed() <= context.settings.landing {
            return Ok(Some(landed));
        }
        self.landing = None;
        let _scope = context.enter()?;
        let stream = context.streams.of(context.driver, self.start.direction)?;
        self.number = Some(self.mark(context, stream)?);
        Ok(None)
    }

    /// Whether each was issued once.
    fn issue_pieces(&self, context: &Context, stream: CUstream) -> Result<bool, Failure> {
        let one_by_one = || self.pieces.iter().try_for_each(|piece| piece.issue(context, self.start.direction, stream));
        let refused = &context.batches_refused[self.start.direction as usize];
        let together = self.page_locked || self.start.direction == Direction::DeviceToDevice;
        let plain = together && self.pieces.len() > 1 && self.pieces.iter().all(|piece| piece.rows == 1);
        if !plain || refused.load(Relaxed) {
            return one_by_one().map(|()| true);
        }
        let Err(failure) = issue_batch(context.driver, &self.pieces, stream) else { return Ok(true) };
        // Some may be under way; to copy them again does no harm. If a copy is at fault, not the batch, it fails again.
        one_by_one()?;
        refused.store(true, Relaxed);
        log::debug!("copies go out one by one: {}", context.driver.reason(failure));
        Ok(false)
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
        self.blocks.clear();
        self.stretches.clear();
        (self.bytes, self.page_locked, self.reachable) = (0, false, None);
        (self.by_engine, self.number, self.landing) = (false, None, None);
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

    fn page_locked(&mut self) {
        self.page_locked = true;
    }

    fn reachable(&mut self, within: Within) {
        self.reachable = Some(within);
    }

    unsafe fn copy_strided(&mut self, dst: (*mut u8, &Strided), src: (*const u8, &Strided), len: u64) {
        if len == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(len as usize);
        self.blocks.push(Blocks { dst: (dst.0, *dst.1), src: (src.0, *src.1), len });
    }

    unsafe fn copy_packed(&mut self, packing: &Packing<'_>) {
        if packing.len == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(packing.len as usize);
        self.stretches.push(Stretch::new(packing));
    }

    fn finish(mut self: Box<Self>) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError> {
        let nothing = self.pieces.is_empty() && self.blocks.is_empty() && self.stretches.is_empty();
        let Some(context) = self.context.clone().filter(|_| !nothing) else {
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
        let Some(context) = self.context.clone() else { return Ok(true) };
        let answer = self.look(&context);
        answer.map_err(|failure| {
            self.jobs.withdraw(&context);
            context.copier.forget(&mut self.posted);
            self.error(&context, failure)
        })
    }

    fn recycle(self: Box<Self>) {
        self.rest();
    }
}

impl Operation {
    fn look(&mut self, context: &Arc<Context>) -> Result<bool, Failure> {
        if self.posted.any() {
            match context.copier.look(context, &mut self.posted)? {
                Progress::Pending => return Ok(false),
                Progress::Done => return Ok(true),
                Progress::Lost => self.take_from_copier(context)?,
            }
        }
        if !self.jobs.look(context)? {
            if !self.jobs.are_late(context) {
                return Ok(false);
            }
            self.jobs.revoke();
            log::debug!(
                "context {}: no room for a kernel in {:?}; copy engines do its work",
                context.id,
                context.settings.patience
            );
            self.take_from_jobs(context)?;
        }
        if let Some(landed) = self.look_for_bytes(context)? {
            return Ok(landed);
        }
        let Some(event) = self.event.filter(|_| self.by_engine) else { return Ok(true) };
        let recorded = context.streams.recorded(self.start.direction);
        if !self.number.is_some_and(|number| recorded.is_done(number)) {
            // SAFETY: our event. Its context still exists, else `enter` has failed.
            match context.enter().and_then(|_scope| unsafe { context.driver.cuEventQuery(event.0) }) {
                Err(Failure { code: Failure::NOT_READY, .. }) => return Ok(false),
                answer => answer?,
            }
            if let Some(number) = self.number {
                recorded.found_done(number);
            }
        }
        self.jobs.look(context)
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
