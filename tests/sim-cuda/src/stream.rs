//! Streams: `cuStream*`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use cudarc::driver::sys::CUstream_flags;
use parking_lot::Mutex;

use crate::abi::{Out, driver_api};
use crate::capture::{self, Sequence};
use crate::context::{Context, ContextState, check_faults, current};
use crate::device;
use crate::driver::{AfterInit, Handles, check_initialised, crash};
use crate::error::{Error, Outcome};
use crate::schedule::{QueueId, QueueKind, SCHEDULER, Work};

/// Handle values of the predefined streams.
const NULL: usize = 0;
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

const NON_BLOCKING: c_uint = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
/// The free device memory that a new stream needs.
const MEMORY: u64 = 4096;
/// The lowest priority. The default is 0.
pub(crate) const GREATEST_PRIORITY: c_int = -5;

pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: QueueId,
    flags: c_uint,
    priority: c_int,
    /// The capture of the stream.
    pub(crate) capture: Mutex<Option<Arc<Sequence>>>,
}

pub(crate) static STREAMS: AfterInit<Mutex<Handles<Stream>>> =
    AfterInit::new(|| Mutex::new(Handles::new(0x5000_0000_0000)));

impl Stream {
    fn new(context: Arc<Context>, queue: QueueId, flags: c_uint, priority: c_int) -> Stream {
        Stream { context, queue, flags, priority, capture: Mutex::new(None) }
    }

    fn create(flags: c_uint, priority: c_int) -> Outcome<Stream> {
        if flags & !NON_BLOCKING != 0 {
            return Err(Error::INVALID_VALUE);
        }
        let context = current()?;
        let kind = if flags & NON_BLOCKING != 0 { QueueKind::NonBlocking } else { QueueKind::Blocking };
        let queue = SCHEDULER.get()?.open(context.id, kind);
        Ok(Stream::new(context, queue, flags, priority.clamp(GREATEST_PRIORITY, 0)))
    }

    /// Creates a stream for the application, unless device memory is exhausted.
    fn create_handle(flags: c_uint, priority: c_int) -> Outcome<usize> {
        device::get(current()?.device)?.charge(MEMORY)?;
        let stream = Stream::create(flags, priority)?;
        Ok(STREAMS.get()?.lock().insert(Arc::new(stream)))
    }

    /// Returns the current context's legacy default stream.
    pub(crate) fn legacy() -> Outcome<Arc<Stream>> {
        let context = current()?;
        let queue = context.legacy_queue;
        Ok(Arc::new(Stream::new(context, queue, 0, 0)))
    }

    /// Returns the calling thread's default stream in the current context.
    fn per_thread() -> Outcome<Arc<Stream>> {
        thread_local! {
            static STREAMS: RefCell<HashMap<u64, Arc<Stream>>> = RefCell::new(HashMap::new());
        }
        let context = current()?;
        let of_context = |streams: &RefCell<HashMap<u64, Arc<Stream>>>| match streams.borrow_mut().entry(context.id) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(room) => Ok(room.insert(Arc::new(Stream::create(0, 0)?)).clone()),
        };
        STREAMS.try_with(of_context).unwrap_or(Err(Error::DEINITIALIZED))
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.queue == self.context.legacy_queue
    }

    /// Checks whether it is ordered with the legacy default stream.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Returns its capture, during which work must not run.
    ///
    /// # Errors
    /// The capture is invalid, or the present call invalidates one.
    pub(crate) fn capture_for_work(&self) -> Outcome<Option<Arc<Sequence>>> {
        if self.is_legacy() {
            capture::legacy_use(self.context.id)?;
        }
        let capture = self.capture.lock().clone();
        if let Some(sequence) = &capture {
            sequence.check()?;
        }
        Ok(capture)
    }

    /// Checks whether new work is captured and so must not run; as [`capture_for_work`](Self::capture_for_work).
    pub(crate) fn captures_work(&self) -> Outcome<bool> {
        let capture = self.capture_for_work()?;
        if let Some(sequence) = &capture {
            sequence.note_work(self.queue, true);
            sequence.note_unknown();
        }
        Ok(capture.is_some())
    }

    /// Checks whether a call is captured and so must not run. If so, launches of the graph make it, given their stream.
    pub(crate) fn captures_call(&self, call: impl Fn(usize) -> Outcome + Send + Sync + 'static) -> Outcome<bool> {
        let capture = self.capture_for_work()?;
        if let Some(sequence) = &capture {
            sequence.note_work(self.queue, true);
            sequence.record(Box::new(call));
        }
        Ok(capture.is_some())
    }

    /// Adds work after all work in the stream. Captured work is not kept.
    pub(crate) fn submit(&self, work: Box<dyn Work>) -> Outcome {
        if self.captures_work()? { Ok(()) } else { SCHEDULER.get()?.submit(self.queue, work) }
    }

    /// Waits until the work in it is done.
    pub(crate) fn wait(&self) -> Outcome {
        SCHEDULER.get()?.wait_queue(self.queue);
        check_faults()
    }

    /// Called before its state is queried.
    fn check_query(&self) -> Outcome {
        if self.is_legacy() {
            capture::legacy_use(self.context.id)?;
        }
        if let Some(sequence) = &*self.capture.lock() {
            sequence.refuse_query()?;
        }
        capture::unsafe_call()
    }
}

/// Returns the stream of a handle.
pub(crate) fn get(handle: usize) -> Outcome<Arc<Stream>> {
    match handle {
        NULL | LEGACY => Stream::legacy(),
        PER_THREAD => Stream::per_thread(),
        _ => {
            let Some(stream) = STREAMS.get()?.lock().get(handle) else { crash("stream", handle) };
            check_context(&stream.context, handle)?;
            Ok(stream)
        }
    }
}

/// Fails if a kernel has faulted. Fails, or ends the process, if a stream's context is destroyed.
fn check_context(context: &Context, handle: usize) -> Outcome {
    match context.state()? {
        ContextState::Alive => check_faults(),
        ContextState::Destroyed if !context.is_primary()? => Err(Error::INVALID_CONTEXT),
        _ => crash("the context of stream", handle),
    }
}

/// Waits until all work of the context is done.
pub(crate) fn synchronize_context(context: &Context) -> Outcome {
    SCHEDULER.get()?.wait_context(context.id);
    check_faults()
}

driver_api! {
    2000 cuStreamCreate: fn cuStreamCreate(stream: Out<usize>, flags: c_uint) {
        stream.set(Stream::create_handle(flags, 0)?)
    }

    5050 cuStreamCreateWithPriority: fn cuStreamCreateWithPriority(stream: Out<usize>, flags: c_uint, priority: c_int) {
        stream.set(Stream::create_handle(flags, priority)?)
    }

    4000 cuStreamDestroy: fn cuStreamDestroy_v2(stream: usize) {
        check_initialised()?;
        let handle = stream;
        if handle <= PER_THREAD {
            return Err(Error::INVALID_HANDLE);
        }
        let Some(stream) = STREAMS.get()?.lock().remove(handle) else { crash("stream", handle) };
        check_context(&stream.context, handle)?;
        capture::leave(&stream);
        SCHEDULER.get()?.close(stream.queue);
        Ok(())
    }

    2000 cuStreamQuery: fn cuStreamQuery(stream: usize) {
        let stream = get(stream)?;
        stream.check_query()?;
        if SCHEDULER.get()?.is_idle(stream.queue) {
            // A fault may have dropped the work just now.
            return check_faults();
        }
        std::thread::yield_now();
        Err(Error::NOT_READY)
    }

    2000 cuStreamSynchronize: fn cuStreamSynchronize(stream: usize) {
        let stream = get(stream)?;
        stream.check_query()?;
        stream.wait()
    }

    9020 cuStreamGetCtx: fn cuStreamGetCtx(stream: usize, context: Out<usize>) {
        context.set(get(stream)?.context.handle)
    }

    12050 cuStreamGetCtx: fn cuStreamGetCtx_v2(stream: usize, context: Out<usize>, green: Out<usize>) {
        green.set_if_asked(0);
        context.set(get(stream)?.context.handle)
    }

    5050 cuStreamGetFlags: fn cuStreamGetFlags(stream: usize, flags: Out<c_uint>) {
        flags.set(get(stream)?.flags)
    }

    5050 cuStreamGetPriority: fn cuStreamGetPriority(stream: usize, priority: Out<c_int>) {
        priority.set(get(stream)?.priority)
    }

    12000 cuStreamGetId: fn cuStreamGetId(stream: usize, id: Out<u64>) {
        id.set(get(stream)?.queue)
    }

    12080 cuStreamGetDevice: fn cuStreamGetDevice(stream: usize, device: Out<c_int>) {
        device.set(get(stream)?.context.device)
    }
}
