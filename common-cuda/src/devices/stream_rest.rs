//! Whether a stream of the program has done its work, asked while the program may begin a capture there.
//!
//! To ask a stream that captures a graph would invalidate the capture, and another thread may begin one between any check
//! and the question. An event tells as much without that danger: recording it in a capture adds nothing to the graph, and
//! an event that was recorded outside of captures may be asked at any time. So the stream is checked behind the recording.
//!
//! No second event is recorded before the first is done, so that questions do not fill the queue of a stream that waits.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::context::Context;
use crate::driver::{Event, Failure, Stream};
use crate::order::destroy_event;

/// Questions in a row after a recording. Most often the event of an idle stream is done by then.
const QUESTIONS: usize = 32;

/// The latest question to a stream, and Cableway's own additions to it.
#[derive(Default)]
pub(super) struct Rest {
    added: AtomicU64,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    event: Option<Event>,
    /// What had been added at the latest recording, until that is known to be done.
    recorded: Option<u64>,
}

impl Rest {
    /// Notes that Cableway has added work to the stream.
    pub(super) fn note_added(&self) {
        self.added.fetch_add(1, Ordering::Release);
    }

    /// Checks whether the stream has done what Cableway added, and what the program had added when this was first asked.
    /// A stream that captures a graph counts as busy. The context is current.
    pub(super) fn is_reached(&self, context: &Context, stream: &Stream) -> Result<bool, Failure> {
        let driver = context.driver;
        let mut asked = self.asked.lock();
        if let (Some(added), Some(event)) = (asked.recorded, &asked.event) {
            if !driver.is_done(event)? {
                return Ok(false);
            }
            asked.recorded = None;
            if added == self.added.load(Ordering::Acquire) {
                return Ok(true);
            }
        }
        let added = self.added.load(Ordering::Acquire);
        if driver.is_capturing(stream)? {
            return Ok(false);
        }
        let event = match asked.event.take() {
            Some(event) => event,
            None => driver.new_event()?,
        };
        let recorded = driver.record(&event, stream);
        if recorded.is_err() || !matches!(driver.is_capturing(stream), Ok(false)) {
            destroy_event(context, event);
            return recorded.map(|()| false);
        }
        for _ in 0..QUESTIONS {
            match driver.is_done(&event) {
                Ok(false) => std::hint::spin_loop(),
                Ok(true) => {
                    asked.event = Some(event);
                    return Ok(true);
                }
                Err(failure) => {
                    // A capture that began and ended meanwhile holds the event, for example.
                    destroy_event(context, event);
                    return Err(failure);
                }
            }
        }
        *asked = Asked { event: Some(event), recorded: Some(added) };
        Ok(false)
    }

    /// Gives up the event.
    pub(super) fn end(&self, context: &Context) {
        if let Some(event) = self.asked.lock().event.take()
            // A destroyed context has released the event.
            && let Ok(_scope) = context.enter()
        {
            destroy_event(context, event);
        }
    }
}
