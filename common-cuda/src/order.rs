//! The default stream of a context, and the ways to work after it. Other modules ask for the order of an operation by
//! [`CopyOrder`](crate::CopyOrder).
//!
//! A program may send a buffer while its own copy or fill still writes it, because the driver returns from synchronous calls
//! before they are complete. With `default_stream_order=auto`, the driver is asked once for each allocation to complete
//! them first. One access then follows the work that the default stream had at that moment (its [`Mark`]), and later
//! ones follow nothing. While mappings of peers' memory are held off, none follows anything: a blocking stream of the
//! program may wait for the access then, and the default stream waits for that stream.
//!
//! If the driver refuses that for an allocation, or with `default_stream_order=legacy`, the first access of each operation
//! follows all work in that stream, also kernels:
//! - An internal stream waits for an event in the default stream ([`DefaultStream::precede`]). On an H200 that adds
//!   1.0 us to a copy.
//! - An access that no stream orders (by a CPU, a NIC, another process, or a kernel that must start now) begins once the
//!   default stream is idle ([`DefaultStream::is_idle`]). The query takes 1.3 us. One answer serves all operations that
//!   began before the query ([`Moment`]).
//!
//! An MPI call on a thread that captures a stream is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::context::Context;
use crate::driver::{Event, Failure, Stream};
use crate::memo::Memo;

/// The number of queries of default streams so far.
static QUERIES: AtomicU64 = AtomicU64::new(1);

/// A point in time, as the number of queries of default streams before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Comes before all work, so that there is nothing to wait for.
    pub(crate) const START: Moment = Moment(0);

    /// Returns the present moment: before every later query.
    #[inline]
    pub(crate) fn now() -> Moment {
        Moment(QUERIES.load(Ordering::Acquire))
    }

    pub(crate) fn of(number: u64) -> Moment {
        Moment(number)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// Checks whether the work that the default stream of the context of this id had at a moment is known to be done.
/// Returns `None` if nothing is known about that stream.
pub(crate) fn settled_since(settled: &Memo, context: u64, moment: Moment) -> Option<bool> {
    settled.get(context).map(|[_, settled]| settled > moment.0)
}

/// A point in a default stream.
#[derive(Default)]
struct Mark {
    event: Option<Event>,
    /// The number of the query as which the event counts once it is done; 0 if that is noted.
    query: u64,
}

/// The legacy default stream of one context.
pub(crate) struct DefaultStream {
    context: Arc<Context>,
    /// The moment of the last query that found the stream idle. Unlike `all`, it never expires, so that a caller that
    /// polls makes progress.
    settled: AtomicU64,
    /// The moments of the last queries that found default streams idle, by ids of contexts. They serve callers that
    /// have only an id, because finding the context takes a lock. The memo forgets entries, and two threads may leave
    /// the older moment in it. The cost is one more query.
    all: Arc<Memo>,
    /// The event for which internal streams wait.
    event: Mutex<Option<Event>>,
    /// After it, all synchronous calls on some allocations are complete when they return.
    mark: Mutex<Mark>,
    /// The number of the last such mark's query, 0 if there is none.
    marked: AtomicU64,
    /// After it comes work that a caller need not wait for.
    question: Mutex<Mark>,
}

impl DefaultStream {
    pub(crate) fn new(context: Arc<Context>, all: Arc<Memo>) -> DefaultStream {
        let (settled, marked) = (AtomicU64::new(0), AtomicU64::new(0));
        let (event, mark, question) = Default::default();
        DefaultStream { context, settled, all, event, mark, marked, question }
    }

    /// Checks whether the work that it had at a moment is known to be done.
    pub(crate) fn settled_since(&self, moment: Moment) -> bool {
        self.settled.load(Ordering::Acquire) > moment.0
    }

    /// Checks whether it is idle. Returns `None` if a capture forbids the query. The context is current.
    ///
    /// The answer covers the work that the stream waits for, as observed on driver 580: blocking streams and per-thread
    /// default streams, but no non-blocking ones.
    pub(crate) fn is_idle(&self) -> Result<Option<bool>, Failure> {
        let driver = self.context.driver;
        let query = QUERIES.fetch_add(1, Ordering::AcqRel) + 1;
        let idle = driver.default_stream_is_idle()?;
        match idle {
            Some(true) => self.settle(query),
            Some(false) => {}
            None => warn_of_capture(),
        }
        Ok(idle)
    }

    /// Does the same for background work, which can wait for the end of a capture.
    pub(crate) fn is_quiet(&self) -> Result<bool, Failure> {
        Ok(self.context.driver.default_stream_is_idle()? == Some(true))
    }

    /// Notes that the work before this query is done.
    fn settle(&self, query: u64) {
        let before = self.settled.fetch_max(query, Ordering::AcqRel);
        self.all.set(self.context.id, [0, query.max(before)]);
    }

    /// Marks the present end of the stream: the driver now completes synchronous calls on another allocation before they
    /// return. Returns the moment, or `None` if a capture forbids it. The context is current.
    pub(crate) fn mark(&self) -> Result<Option<Moment>, Failure> {
        let mut mark = self.mark.lock();
        // The event may stand for an earlier mark. The later one implies it, but a program that fills new memory before
        // each message would never see any passed.
        self.note_passed(&mut mark);
        if !self.place(&mut mark)? {
            return Ok(None);
        }
        self.marked.store(mark.query, Ordering::Release);
        Ok(Some(Moment(mark.query - 1)))
    }

    /// Places a mark at the present end of the stream. Returns false if a capture forbids it. The context is current.
    fn place(&self, mark: &mut Mark) -> Result<bool, Failure> {
        let driver = self.context.driver;
        let query = QUERIES.fetch_add(1, Ordering::AcqRel) + 1;
        if mark.event.is_none() {
            mark.event = Some(driver.new_event()?);
        }
        let Some(event) = &mark.event else { return Ok(false) };
        let placed = driver.record_default_stream(event)?;
        if placed {
            mark.query = query;
        }
        Ok(placed)
    }

    /// Checks whether the work is done that it had at a moment. Later work may keep it busy; then a mark tells, but only
    /// in a later call. The context is current.
    pub(crate) fn has_passed(&self, moment: Moment) -> Result<bool, Failure> {
        let mut question = self.question.lock();
        self.note_passed(&mut question);
        // A mark that the stream has not passed stays, or frequent questions would never see one passed.
        if question.query == 0 && !self.settled_since(moment) {
            self.place(&mut question)?;
        }
        Ok(self.settled_since(moment))
    }

    /// Returns the moment of the last mark, if there is one.
    pub(crate) fn last_mark(&self) -> Option<Moment> {
        Some(Moment(self.marked.load(Ordering::Acquire).checked_sub(1)?))
    }

    /// Notes whether the stream has passed the last mark.
    pub(crate) fn look_at_mark(&self) {
        let Some(mut mark) = self.mark.try_lock() else { return };
        if mark.query != 0
            && let Ok(_scope) = self.context.enter()
        {
            self.note_passed(&mut mark);
        }
    }

    /// Notes whether the stream has passed a mark. The context is current.
    fn note_passed(&self, mark: &mut Mark) {
        if let (Some(event), 1..) = (&mark.event, mark.query)
            && self.context.driver.is_done(event).unwrap_or(false)
        {
            self.settle(std::mem::take(&mut mark.query));
        }
    }

    /// Makes later work in `stream` wait for its present work. The context is current.
    ///
    /// An event is always used. On an H200 it adds 1.0 us to a copy; a query that finds the stream idle adds 1.3 us.
    pub(crate) fn precede(&self, stream: &Stream) -> Result<(), Failure> {
        // The lock only keeps record and wait together. The order of two threads does not matter.
        self.with_event(|event| {
            if !self.context.driver.wait_for_default_stream(stream, event)? {
                warn_of_capture();
            }
            Ok(())
        })
    }

    /// Records `event` after its present work. Returns false if a capture forbids it. The context is current.
    pub(crate) fn record(&self, event: &Event) -> Result<bool, Failure> {
        let recorded = self.context.driver.record_default_stream(event)?;
        if !recorded {
            warn_of_capture();
        }
        Ok(recorded)
    }

    /// Fails if the calling thread captures a stream. The context is current.
    pub(crate) fn refuse_capture(&self) -> Result<(), Failure> {
        let driver = self.context.driver;
        if driver.capture_test_needs_event() {
            self.with_event(|event| driver.refuse_capture(Some(event)))
        } else {
            driver.refuse_capture(None)
        }
    }

    fn with_event(&self, call: impl FnOnce(&Event) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut event = self.event.lock();
        if event.is_none() {
            *event = Some(self.context.driver.new_event()?);
        }
        event.as_ref().map_or(Ok(()), call)
    }
}

impl Drop for DefaultStream {
    fn drop(&mut self) {
        let marks = [&mut self.mark, &mut self.question].map(|mark| mark.get_mut().event.take());
        let events = [self.event.get_mut().take()].into_iter().chain(marks);
        for event in events.flatten() {
            // A destroyed context has released the event.
            if let Ok(_scope) = self.context.enter() {
                destroy_event(&self.context, event);
            }
        }
    }
}

/// Destroys an event of a context, which is current.
pub(crate) fn destroy_event(context: &Context, event: Event) {
    if let Err(failure) = context.driver.destroy_event(event) {
        log::debug!("destroying an event: {}", context.driver.reason(failure));
    }
}

#[cold]
fn warn_of_capture() {
    cableway_base::warn_once("cuda/order-in-capture", || {
        "a stream capture keeps the default stream from being waited for; device buffers are copied without that order \
         while it lasts"
            .to_owned()
    });
}
