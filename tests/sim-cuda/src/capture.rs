//! Stream capture: the calls that it forbids, and the captures that they invalidate.
//!
//! Work submitted to a capturing stream is kept in its graph (`graph`). The following behaviour was observed on
//! driver 580:
//! - A potentially unsafe call (allocation, registration, query, synchronisation) of any thread invalidates every
//!   capture in global mode, and those in thread-local mode that the same thread began, unless the thread has exchanged
//!   its mode for relaxed.
//! - Work in the legacy default stream invalidates captures of blocking streams in every mode.
//! - `cuCtxSynchronize` invalidates every capture in the context in every mode.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use cudarc::driver::sys::{CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status};
use parking_lot::Mutex;

use crate::abi::{Out, driver_api};
use crate::driver::{check_initialised, fresh_id};
use crate::error::{Error, Outcome};
use crate::graph::{self, Call, Graph};
use crate::schedule::QueueId;
use crate::stream::{self, Stream};

const GLOBAL: c_int = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL as c_int;
const THREAD_LOCAL: c_int = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_int;
const RELAXED: c_int = Mode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;

/// One capture, from its beginning to its end in one stream.
pub(crate) struct Sequence {
    pub(crate) id: u64,
    mode: c_int,
    thread: ThreadId,
    context: u64,
    /// True if the stream where it began is ordered with the legacy default stream.
    blocking: bool,
    invalid: AtomicBool,
    /// Streams that joined by waiting for an event of the capture, and whether the capture must still wait for their
    /// work.
    joined: Mutex<Vec<Joined>>,
    graph: Mutex<Graph>,
}

/// A stream that joined a capture.
struct Joined {
    stream: Arc<Stream>,
    has_work: bool,
}

impl Sequence {
    fn invalidate(&self) {
        self.invalid.store(true, Ordering::Relaxed);
    }

    fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Relaxed)
    }

    /// Fails if the capture is invalid.
    pub(crate) fn check(&self) -> Outcome {
        if self.is_invalid() { Err(Error::STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    /// Fails a query of a stream in it.
    pub(crate) fn refuse_query(&self) -> Outcome {
        self.invalidate();
        Err(Error::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Returns the error for a query of an event recorded in it.
    pub(crate) fn refuse_event(&self) -> Error {
        if !ACTIVE.lock().iter().any(|active| active.id == self.id) {
            return Error::INVALID_VALUE;
        }
        self.invalidate();
        Error::CAPTURED_EVENT
    }

    /// Adds `stream`, which waits for an event of the capture.
    pub(crate) fn join(self: &Arc<Self>, stream: &Arc<Stream>) {
        let mut capture = stream.capture.lock();
        if capture.is_none() {
            *capture = Some(self.clone());
            self.joined.lock().push(Joined { stream: stream.clone(), has_work: false });
            self.note_unknown();
        }
    }

    /// Adds a call to the graph.
    pub(crate) fn record(&self, call: Call) {
        self.graph.lock().calls.push(call);
    }

    /// Notes that the graph cannot be launched here.
    pub(crate) fn note_unknown(&self) {
        self.graph.lock().incomplete = true;
    }

    /// Records that work was captured in the stream with this queue, or that the capture has waited for it.
    pub(crate) fn note_work(&self, queue: QueueId, has_work: bool) {
        for joined in self.joined.lock().iter_mut().filter(|joined| joined.stream.queue == queue) {
            joined.has_work = has_work;
        }
    }
}

/// The captures that have begun and not ended.
static ACTIVE: Mutex<Vec<Arc<Sequence>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Invalidates the captures for which `hurt` returns true. Fails with `error` if there is one.
fn refuse(error: Error, hurt: impl Fn(&Sequence) -> bool) -> Outcome {
    let active = ACTIVE.lock();
    let mut hurts = false;
    for sequence in active.iter().filter(|sequence| hurt(sequence)) {
        sequence.invalidate();
        hurts = true;
    }
    if hurts { Err(error) } else { Ok(()) }
}

/// Called first by functions that the documentation calls potentially unsafe.
pub(crate) fn unsafe_call() -> Outcome {
    let mode = MODE.get();
    if mode == RELAXED {
        return Ok(());
    }
    let thread = thread::current().id();
    refuse(Error::STREAM_CAPTURE_UNSUPPORTED, |sequence| match sequence.mode {
        GLOBAL => mode == GLOBAL || sequence.thread == thread,
        THREAD_LOCAL => sequence.thread == thread,
        _ => false,
    })
}

/// Called by functions that use the context's legacy default stream.
pub(crate) fn legacy_use(context: u64) -> Outcome {
    refuse(Error::STREAM_CAPTURE_IMPLICIT, |sequence| sequence.blocking && sequence.context == context)
}

/// Called by functions that wait for the whole context.
pub(crate) fn context_wait(context: u64) -> Outcome {
    refuse(Error::STREAM_CAPTURE_UNSUPPORTED, |sequence| sequence.context == context)
}

fn begin(stream: usize, mode: c_int) -> Outcome {
    if !matches!(mode, GLOBAL | THREAD_LOCAL | RELAXED) {
        return Err(Error::INVALID_VALUE);
    }
    let stream = stream::get(stream)?;
    if stream.is_legacy() {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut capture = stream.capture.lock();
    if capture.is_some() {
        return Err(Error::ILLEGAL_STATE);
    }
    let sequence = Arc::new(Sequence {
        id: fresh_id(),
        mode,
        thread: thread::current().id(),
        context: stream.context.id,
        blocking: stream.is_blocking(),
        invalid: AtomicBool::new(false),
        joined: Mutex::new(Vec::new()),
        graph: Mutex::default(),
    });
    ACTIVE.lock().push(sequence.clone());
    *capture = Some(sequence);
    Ok(())
}

/// Removes the stream from its capture, which ends for all of its streams.
pub(crate) fn leave(stream: &Stream) -> Option<Arc<Sequence>> {
    let sequence = stream.capture.lock().take()?;
    ACTIVE.lock().retain(|active| active.id != sequence.id);
    for joined in sequence.joined.lock().iter() {
        *joined.stream.capture.lock() = None;
    }
    Some(sequence)
}

fn end(stream: usize) -> Outcome<usize> {
    let stream = stream::get(stream)?;
    let sequence = stream.capture.lock().clone().ok_or(Error::ILLEGAL_STATE)?;
    if sequence.mode != RELAXED && sequence.thread != thread::current().id() {
        return Err(Error::STREAM_CAPTURE_WRONG_THREAD);
    }
    if sequence.joined.lock().iter().any(|joined| joined.stream.queue == stream.queue) {
        return Err(Error::STREAM_CAPTURE_UNMATCHED);
    }
    leave(&stream);
    sequence.check()?;
    if sequence.joined.lock().iter().any(|joined| joined.has_work) {
        return Err(Error::STREAM_CAPTURE_UNJOINED);
    }
    let graph = std::mem::take(&mut *sequence.graph.lock());
    graph::add(graph)
}

/// Returns the status and number of a stream's capture.
fn status(stream: usize) -> Outcome<(c_uint, u64)> {
    let stream = stream::get(stream)?;
    // Unlike other uses of the legacy stream, this query does not invalidate captures.
    let excluded = |active: &Arc<Sequence>| active.blocking && active.context == stream.context.id;
    if stream.is_legacy() && ACTIVE.lock().iter().any(excluded) {
        return Err(Error::STREAM_CAPTURE_IMPLICIT);
    }
    let capture = stream.capture.lock();
    Ok(match &*capture {
        None => (Status::CU_STREAM_CAPTURE_STATUS_NONE as c_uint, 0),
        Some(sequence) if sequence.is_invalid() => {
            (Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED as c_uint, sequence.id)
        }
        Some(sequence) => (Status::CU_STREAM_CAPTURE_STATUS_ACTIVE as c_uint, sequence.id),
    })
}

driver_api! {
    10010 cuStreamBeginCapture: fn cuStreamBeginCapture_v2(stream: usize, mode: c_int) {
        begin(stream, mode)
    }

    10000 cuStreamEndCapture: fn cuStreamEndCapture(stream: usize, graph: Out<usize>) {
        match end(stream) {
            Ok(made) => graph.set(made),
            Err(error) => {
                graph.set_if_asked(0);
                Err(error)
            }
        }
    }

    10000 cuStreamIsCapturing: fn cuStreamIsCapturing(stream: usize, capturing: Out<c_uint>) {
        capturing.set(status(stream)?.0)
    }

    11030 cuStreamGetCaptureInfo: fn cuStreamGetCaptureInfo_v2(stream: usize, capturing: Out<c_uint>, id: Out<u64>, graph: Out<usize>, dependencies: Out<usize>, count: Out<usize>) {
        info(stream, capturing, id, [graph, dependencies, count])
    }

    12030 cuStreamGetCaptureInfo: fn cuStreamGetCaptureInfo_v3(stream: usize, capturing: Out<c_uint>, id: Out<u64>, graph: Out<usize>, dependencies: Out<usize>, _edges: Out<usize>, count: Out<usize>) {
        info(stream, capturing, id, [graph, dependencies, count])
    }

    10010 cuThreadExchangeStreamCaptureMode: fn cuThreadExchangeStreamCaptureMode(mode: crate::abi::InOut<c_int>) {
        check_initialised()?;
        mode.exchange(|new| MODE.replace(new))
    }
}

fn info(stream: usize, capturing: Out<c_uint>, id: Out<u64>, rest: [Out<usize>; 3]) -> Outcome {
    let (status, number) = status(stream)?;
    capturing.set(status)?;
    id.set_if_asked(number);
    for out in rest {
        out.set_if_asked(0);
    }
    Ok(())
}
