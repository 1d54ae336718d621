//! Copies: gathered, then issued together into the stream of their direction, their end marked by an event; or launched
//! as jobs of a kernel, where that is faster and can be.
//!
//! An operation is one box that serves in turn as the batch and as its completion, and goes back to its context's pool
//! with its event: after the first few, neither costs an allocation, and there are as many as are needed.

mod issue;
mod order;

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};

use cudarc::driver::sys::CUevent_st;

use super::context::{Context, Handle};
use super::copier::{Posted, Progress};
use super::driver::Driver;
use super::jobs::Jobs;
use super::landing::Landing;
use super::pieces::{Blocks, Piece};
use super::status::Failure;
use super::stream;
use super::stretch::Stretch;
use crate::copy::{Direction, Packing, Within};
use crate::error::DeviceError;
use crate::location::Location;
use crate::strided::Strided;
use crate::vendor::{VendorBatch, VendorCompletion};

/// How an operation begins.
#[derive(Clone, Copy)]
pub(super) struct Start {
    /// The device's side, at least of the first copy.
    pub(super) at: Location,
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
    /// Of what jobs were to do, some is left undone.
    lost: bool,
    /// What the resident copier has.
    posted: Posted,
    /// The context counts it.
    under_way: bool,
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
                lost: false,
                posted: Posted::default(),
                under_way: false,
            })
        });
        operation.start = start;
        operation.context = Some(context);
        operation
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
        (self.by_engine, self.number, self.landing, self.lost) = (false, None, None, false);
        if let Some(context) = self.context.take() {
            if std::mem::take(&mut self.under_way) {
                context.under_way.fetch_sub(1, Release);
            }
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
        let begun = match self.copy_mapped(&context) {
            Ok(true) => {
                self.rest();
                return Ok(None);
            }
            Ok(false) => self.issue(&context),
            Err(failure) => Err(failure),
        };
        match begun {
            Ok(()) => {
                self.under_way = true;
                context.under_way.fetch_add(1, AcqRel);
                Ok(Some(self))
            }
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
        let answer = match self.look(&context) {
            // Only now: until then its memory is in use.
            Ok(true) if self.lost => Err(Failure::NO_KERNEL),
            answer => answer,
        };
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
        if let Some(over) = self.look_at_landing(context)? {
            return Ok(over);
        }
        let Some(event) = self.event.filter(|_| self.by_engine) else { return Ok(true) };
        let recorded = context.streams.recorded(self.start.direction);
        if !self.number.is_some_and(|number| recorded.is_done(number)) {
            if !context.is_over(event.0)? {
                return Ok(false);
            }
            if let Some(number) = self.number {
                recorded.found_done(number);
            }
        }
        self.jobs.look(context)
    }
}
