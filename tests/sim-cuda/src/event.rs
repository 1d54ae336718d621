//! Events: `cuEvent*`.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cudarc::driver::sys::CUevent_flags;
use parking_lot::Mutex;

use crate::abi::{Out, driver_api};
use crate::capture::{self, Sequence};
use crate::context::{Context, ContextState, check_faults, current};
use crate::device;
use crate::driver::{AfterInit, Handles, crash};
use crate::error::{Error, Outcome};
use crate::schedule::{QueueId, SCHEDULER, Work};
use crate::store::{PAGE, Piece};
use crate::stream::{self, Stream};

pub(crate) const DISABLE_TIMING: c_uint = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
pub(crate) const INTERPROCESS: c_uint = CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
const KNOWN_FLAGS: c_uint = DISABLE_TIMING | INTERPROCESS | CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;

pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    flags: c_uint,
    /// The latest `cuEventRecord` of this process.
    latest: Mutex<Latest>,
    /// For an event that processes share.
    shared: Option<Arc<SharedState>>,
}

pub(crate) static EVENTS: AfterInit<Mutex<Handles<Event>>> =
    AfterInit::new(|| Mutex::new(Handles::new(0x5100_0000_0000)));

#[derive(Clone, Default)]
enum Latest {
    #[default]
    Nothing,
    Recorded(Arc<Recording>),
    /// In a stream with this queue, as part of a capture.
    Captured(Arc<Sequence>, QueueId),
}

/// One `cuEventRecord`. A wait for an event refers to the latest recording at the time of the call.
#[derive(Default)]
pub(crate) struct Recording {
    done: AtomicBool,
    at: OnceLock<Instant>,
}

impl Recording {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn finish(&self) {
        self.at.get_or_init(Instant::now);
        self.done.store(true, Ordering::Release);
    }
}

/// The state of an event that processes share: the number of recordings, and the latest completed one.
pub(crate) struct SharedState {
    piece: Piece,
}

impl SharedState {
    pub(crate) fn create(context: &Context) -> Outcome<SharedState> {
        Ok(SharedState::of(device::get(context.device)?.store()?.piece(PAGE)?))
    }

    pub(crate) fn of(piece: Piece) -> SharedState {
        SharedState { piece }
    }

    pub(crate) fn piece(&self) -> &Piece {
        &self.piece
    }

    /// Counts a recording. Returns its number.
    pub(crate) fn begin(&self) -> u64 {
        self.piece.shared()[0].fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn recorded(&self) -> u64 {
        self.piece.shared()[0].load(Ordering::Relaxed)
    }

    pub(crate) fn finish(&self, number: u64) {
        self.piece.shared()[1].fetch_max(number, Ordering::Release);
    }

    /// Checks whether recording `number`, or a later one, is done. An event that its owner destroyed counts as done.
    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.piece.shared()[1].load(Ordering::Acquire) >= number || !self.piece.is_alive()
    }
}

struct Record {
    recording: Arc<Recording>,
    shared: Option<(Arc<SharedState>, u64)>,
}

impl Record {
    fn finish(&self) {
        self.recording.finish();
        if let Some((shared, number)) = &self.shared {
            shared.finish(*number);
        }
    }
}

impl Work for Record {
    fn step(&mut self) -> bool {
        self.finish();
        true
    }

    fn abandon(&mut self) {
        self.finish();
    }
}

struct Wait(Arc<Recording>);

impl Work for Wait {
    fn is_ready(&self) -> bool {
        self.0.is_done()
    }

    fn step(&mut self) -> bool {
        true
    }
}

/// Waits for a recording of some process.
struct WaitShared(Arc<SharedState>, u64);

impl Work for WaitShared {
    fn is_ready(&self) -> bool {
        self.0.is_done(self.1)
    }

    fn waits_outside(&self) -> bool {
        true
    }

    fn step(&mut self) -> bool {
        true
    }
}

impl Event {
    pub(crate) fn new(context: Arc<Context>, flags: c_uint, shared: Option<SharedState>) -> Event {
        Event { context, flags, latest: Mutex::default(), shared: shared.map(Arc::new) }
    }

    /// Returns the state that processes share.
    pub(crate) fn shared(&self) -> Option<&Arc<SharedState>> {
        self.shared.as_ref()
    }

    /// Checks whether the latest recording is done.
    fn is_done(&self) -> Outcome<bool> {
        if let Latest::Captured(sequence, _) = &*self.latest.lock() {
            return Err(sequence.refuse_event());
        }
        capture::unsafe_call()?;
        Ok(match (&self.shared, &*self.latest.lock()) {
            (Some(shared), _) => shared.is_done(shared.recorded()),
            (None, Latest::Recorded(recording)) => recording.is_done(),
            (None, _) => true,
        })
    }
}

/// Returns the event of a handle.
pub(crate) fn get(handle: usize) -> Outcome<Arc<Event>> {
    if handle == 0 {
        return Err(Error::INVALID_HANDLE);
    }
    let Some(event) = EVENTS.get()?.lock().get(handle) else { crash("event", handle) };
    check_context(&event, handle)?;
    Ok(event)
}

/// Fails if a kernel has faulted. Fails, or ends the process, if an event's context is destroyed.
fn check_context(event: &Event, handle: usize) -> Outcome {
    match event.context.state()? {
        ContextState::Alive => check_faults(),
        ContextState::Destroyed => Err(Error::CONTEXT_IS_DESTROYED),
        ContextState::Replaced => crash("the context of event", handle),
    }
}

fn record(event: usize, stream: usize) -> Outcome {
    let event = get(event)?;
    let stream = stream::get(stream)?;
    if stream.context.id != event.context.id {
        return Err(Error::INVALID_HANDLE);
    }
    if let Some(sequence) = stream.capture_for_work()? {
        *event.latest.lock() = Latest::Captured(sequence, stream.queue);
        return Ok(());
    }
    let recording = Arc::new(Recording::default());
    let mut latest = event.latest.lock();
    let shared = event.shared.as_ref().map(|shared| (shared.clone(), shared.begin()));
    stream.submit(Box::new(Record { recording: recording.clone(), shared }))?;
    *latest = Latest::Recorded(recording);
    Ok(())
}

fn wait(stream: &Arc<Stream>, event: &Event) -> Outcome {
    let capture = stream.capture_for_work()?;
    let latest = event.latest.lock().clone();
    match (capture, latest, &event.shared) {
        (None, Latest::Captured(sequence, _), _) => {
            sequence.check()?;
            sequence.join(stream);
            Ok(())
        }
        (Some(mine), Latest::Captured(sequence, queue), _) if mine.id == sequence.id => {
            mine.note_work(queue, false);
            Ok(())
        }
        (Some(_), Latest::Captured(..), _) => Err(Error::STREAM_CAPTURE_MERGE),
        (Some(_), Latest::Recorded(recording), _) if !recording.is_done() => Err(Error::STREAM_CAPTURE_ISOLATION),
        (Some(_), _, _) => Ok(()),
        (None, _, Some(shared)) => stream.submit(Box::new(WaitShared(shared.clone(), shared.recorded()))),
        (None, Latest::Recorded(recording), None) => stream.submit(Box::new(Wait(recording))),
        (None, Latest::Nothing, None) => Ok(()),
    }
}

driver_api! {
    2000 cuEventCreate: fn cuEventCreate(event: Out<usize>, flags: c_uint) {
        let context = current()?;
        if flags & !KNOWN_FLAGS != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(Error::INVALID_VALUE);
        }
        let shared = if flags & INTERPROCESS != 0 { Some(SharedState::create(&context)?) } else { None };
        let made = Event::new(context, flags, shared);
        event.set(EVENTS.get()?.lock().insert(Arc::new(made)))
    }

    4000 cuEventDestroy: fn cuEventDestroy_v2(event: usize) {
        if event == 0 {
            return Err(Error::INVALID_HANDLE);
        }
        match EVENTS.get()?.lock().remove(event) {
            Some(gone) => check_context(&gone, event),
            None => Err(Error::CONTEXT_IS_DESTROYED),
        }
    }

    2000 cuEventRecord: fn cuEventRecord(event: usize, stream: usize) {
        record(event, stream)
    }

    11010 cuEventRecordWithFlags: fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) {
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        record(event, stream)
    }

    2000 cuEventQuery: fn cuEventQuery(event: usize) {
        let event = get(event)?;
        if event.is_done()? {
            // A fault may have dropped the work before it just now.
            return check_faults();
        }
        // A polling caller lets work run, in case there are fewer processors than threads.
        std::thread::yield_now();
        Err(Error::NOT_READY)
    }

    2000 cuEventSynchronize: fn cuEventSynchronize(event: usize) {
        let event = get(event)?;
        if event.is_done()? {
            return Ok(());
        }
        let latest = event.latest.lock().clone();
        let scheduler = SCHEDULER.get()?;
        match (latest, event.shared()) {
            (_, Some(shared)) => {
                let number = shared.recorded();
                scheduler.wait_outside(|| shared.is_done(number));
            }
            (Latest::Recorded(recording), None) => scheduler.wait_until(|| recording.is_done()),
            _ => {}
        }
        check_faults()
    }

    2000 cuEventElapsedTime: fn cuEventElapsedTime(milliseconds: Out<f32>, start: usize, end: usize) {
        elapsed(milliseconds, start, end)
    }

    12080 cuEventElapsedTime: fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: usize, end: usize) {
        elapsed(milliseconds, start, end)
    }

    3020 cuStreamWaitEvent: fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        wait(&stream::get(stream)?, &*get(event)?)
    }
}

fn elapsed(milliseconds: Out<f32>, start: usize, end: usize) -> Outcome {
    let instant = |handle: usize| -> Outcome<Instant> {
        let event = get(handle)?;
        if event.flags & DISABLE_TIMING != 0 {
            return Err(Error::INVALID_HANDLE);
        }
        let Latest::Recorded(recording) = event.latest.lock().clone() else { return Err(Error::INVALID_HANDLE) };
        recording.at.get().copied().ok_or(Error::NOT_READY)
    };
    let (start, end) = (instant(start)?, instant(end)?);
    let signed = end.duration_since(start).as_secs_f32() - start.duration_since(end).as_secs_f32();
    milliseconds.set(signed * 1e3)
}
