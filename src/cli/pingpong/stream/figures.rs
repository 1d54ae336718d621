//! What is measured besides the latency: the time of calls on the host, and what moved the data.

use std::time::{Duration, Instant};

use super::plan::{StreamMode, StreamPlan};

/// Calls are timed in so many first steps of a round. A stream takes about a thousand pieces of work before its calls
/// wait.
const TIMED_STEPS: u32 = 64;

#[derive(Default)]
pub(crate) struct Figures {
    pub(super) send: Mean,
    pub(super) receive: Mean,
    pub(super) launch: Mean,
    /// A call that adds 16 writes of words.
    pub(super) batch: Mean,
    pub(super) by_thread: bool,
}

/// The mean time of a call.
#[derive(Default)]
pub(super) struct Mean {
    sum: Duration,
    count: u32,
}

impl Mean {
    /// Makes a call in step `step` of a round, and times it if that is one of the first.
    pub(super) fn time<R>(&mut self, step: u32, call: impl FnOnce() -> R) -> R {
        if step >= TIMED_STEPS {
            return call();
        }
        let start = Instant::now();
        let result = call();
        self.sum += start.elapsed();
        self.count += 1;
        result
    }

    fn shown(&self) -> String {
        self.shown_of(1)
    }

    /// Returns the time of one of the parts that a call has.
    fn shown_of(&self, parts: u32) -> String {
        format!("{:.3}", self.sum.as_secs_f64() * 1e6 / f64::from(self.count.max(1) * parts))
    }
}

impl Figures {
    /// Returns the values of [`StreamPlan::columns`].
    pub(crate) fn values(&self, plan: &StreamPlan) -> Vec<String> {
        let moved_by = if self.by_thread { "thread" } else { "streams" }.to_owned();
        match plan.mode {
            StreamMode::Calls => vec![self.send.shown(), self.receive.shown()],
            StreamMode::Put => vec![self.send.shown(), self.receive.shown(), moved_by],
            StreamMode::Prepared => vec![self.send.shown(), self.receive.shown(), self.batch.shown_of(16), moved_by],
            StreamMode::Graph => vec![self.launch.shown(), moved_by],
            StreamMode::Late => vec![self.receive.shown()],
            StreamMode::Host => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_value() {
        for mode in [
            StreamMode::Calls,
            StreamMode::Prepared,
            StreamMode::Graph,
            StreamMode::Put,
            StreamMode::Late,
            StreamMode::Host,
        ] {
            let plan = StreamPlan { mode, steps: 1, kernel: None, in_host_memory: false };
            assert_eq!(Figures::default().values(&plan).len(), plan.columns().len());
        }
    }

    #[test]
    fn calls_of_the_first_steps_are_timed() {
        let mut mean = Mean::default();
        assert_eq!((mean.time(0, || 5), mean.time(TIMED_STEPS, || 6)), (5, 6));
        assert_eq!(mean.count, 1);
    }
}
