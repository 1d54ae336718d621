//! The kernel that runs for some time and does nothing else. A graph may contain it.

use std::time::{Duration, Instant};

use crate::error::Outcome;
use crate::schedule::Work;
use crate::stream::{self, Stream};

/// A launch: how long it runs, and its end once it has begun.
struct Spin {
    time: Duration,
    end: Option<Instant>,
}

impl Work for Spin {
    fn waits_outside(&self) -> bool {
        true
    }

    fn step(&mut self) -> bool {
        let now = Instant::now();
        now >= *self.end.get_or_insert(now + self.time)
    }
}

/// Adds a launch to a stream.
pub(crate) fn launch(nanoseconds: u64, stream: &Stream) -> Outcome {
    if stream.captures_call(move |on| launch(nanoseconds, &*stream::get(on)?))? {
        return Ok(());
    }
    stream.submit(Box::new(Spin { time: Duration::from_nanos(nanoseconds), end: None }))
}
