//! The decision when to ask the driver whether a job failed.

use std::time::{Duration, Instant};

/// The time since a launch. A job that fails never reports its end, so the driver is asked after a while, and then
/// after twice as long each time.
pub(crate) struct Silence {
    launched: Instant,
    asked: Duration,
}

impl Silence {
    /// Begins at a launch.
    pub(crate) fn new() -> Silence {
        Silence { launched: Instant::now(), asked: Duration::from_millis(1) }
    }

    pub(super) fn since_launch(&self) -> Duration {
        self.launched.elapsed()
    }

    /// Checks whether it is time to ask the driver.
    pub(crate) fn is_long(&mut self) -> bool {
        let long = self.since_launch() > self.asked;
        if long {
            self.asked *= 2;
        }
        long
    }
}
