//! Events: `cuEvent*`.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cudarc::driver::sys::CUevent_flags;
use parking_lot::Mutex;

use crate::abi::{Out, driver_api};
use crate::context::{Context, current};
use crate::driver::driver;
use crate::error::{Error, Outcome};
use crate::schedule::Work;
use crate::stream;

const DISABLE_TIMING: c_uint = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
const INTERPROCESS: c_uint = CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
const KNOWN_FLAGS: c_uint = DISABLE_TIMING | INTERPROCESS | CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;

pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    flags: c_uint,
    /// The latest `cuEventRecord`.
    latest: Mutex<Option<Arc<Recording>>>,
}

/// One `cuEventRecord`. Who waits for an event waits for the recording that was the latest then.
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

struct Record(Arc<Recording>);

impl Work for Record {
    fn step(&mut self) -> bool {
        self.0.finish();
        true
    }

    fn abandon(&mut self) {
        self.0.finish();
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

impl Event {
    fn latest(&self) -> Option<Arc<Recording>> {
        self.latest.lock().clone()
    }
}

fn get(handle: usize) -> Outcome<Arc<Event>> {
    let event = driver()?.events.lock().get(handle)?;
    event.context.check()?;
    Ok(event)
}

fn record(event: usize, stream: usize) -> Outcome {
    let event = get(event)?;
    let stream = stream::get(stream)?;
    if stream.context.id != event.context.id {
        return Err(Error::INVALID_HANDLE);
    }
    let recording = Arc::new(Recording::default());
    stream.submit(Box::new(Record(recording.clone())))?;
    *event.latest.lock() = Some(recording);
    Ok(())
}

driver_api! {
    2000 cuEventCreate: fn cuEventCreate(event: Out<usize>, flags: c_uint) {
        let context = current()?;
        if flags & !KNOWN_FLAGS != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(Error::INVALID_VALUE);
        }
        let made = Event { context, flags, latest: Mutex::new(None) };
        event.set(driver()?.events.lock().insert(Arc::new(made)))
    }

    4000 cuEventDestroy: fn cuEventDestroy_v2(event: usize) {
        driver()?.events.lock().remove(event).map(drop)
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
        match get(event)?.latest() {
            Some(recording) if !recording.is_done() => {
                // Who asks in a loop lets the work run where there are fewer processors than threads.
                std::thread::yield_now();
                Err(Error::NOT_READY)
            }
            _ => Ok(()),
        }
    }

    2000 cuEventSynchronize: fn cuEventSynchronize(event: usize) {
        if let Some(recording) = get(event)?.latest() {
            driver()?.scheduler.wait_until(|| recording.is_done());
        }
        Ok(())
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
        let (stream, event) = (stream::get(stream)?, get(event)?);
        match event.latest() {
            Some(recording) => stream.submit(Box::new(Wait(recording))),
            None => Ok(()),
        }
    }
}

fn elapsed(milliseconds: Out<f32>, start: usize, end: usize) -> Outcome {
    let instant = |handle: usize| -> Outcome<Instant> {
        let event = get(handle)?;
        if event.flags & DISABLE_TIMING != 0 {
            return Err(Error::INVALID_HANDLE);
        }
        let recording = event.latest().ok_or(Error::INVALID_HANDLE)?;
        recording.at.get().copied().ok_or(Error::NOT_READY)
    };
    let (start, end) = (instant(start)?, instant(end)?);
    let signed = end.duration_since(start).as_secs_f32() - start.duration_since(end).as_secs_f32();
    milliseconds.set(signed * 1e3)
}
