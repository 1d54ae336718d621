//! How messages in the order of a stream are measured.

use std::time::Duration;

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamMode {
    /// Sends and receives are calls on the stream
    Calls,
    /// The messages are prepared once, and posted on the stream in each step
    Prepared,
    /// Each launch of a graph posts prepared messages for so many steps
    Graph,
    /// Puts with signals, and waits for signals
    Put,
    /// Rank 0 receives messages that came before its stream gets to the receive
    Late,
    /// To compare with: the host waits for the stream, and makes the calls itself
    Host,
}

/// The part of a plan that is about a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StreamPlan {
    pub(crate) mode: StreamMode,
    /// The number of steps that are added to the stream before the host waits for it.
    pub(crate) steps: u32,
    /// How long the kernel between a receive and the next send runs.
    pub(crate) kernel: Option<Duration>,
    /// The memory of a rank is ordinary host memory. The host copies checked messages there, since a driver would wait for
    /// the stream before it copies such memory.
    pub(crate) in_host_memory: bool,
}

/// The most messages that wait for their receives.
const MOST_WAITING: u32 = 64;

impl StreamPlan {
    /// Returns the most steps that are added together.
    pub(crate) fn most_steps(&self, check: bool) -> u32 {
        match self.mode {
            _ if check && self.in_host_memory => 1,
            StreamMode::Late => self.steps.min(MOST_WAITING),
            _ => self.steps,
        }
    }

    /// Returns the title and the field name of each figure that is measured besides the latency.
    pub(crate) fn columns(&self) -> &'static [(&'static str, &'static str)] {
        const SEND: (&str, &str) = ("Send call (us)", "send_call_us");
        const RECEIVE: (&str, &str) = ("Recv call (us)", "recv_call_us");
        const LAUNCH: (&str, &str) = ("Launch (us)", "launch_us");
        const MOVED_BY: (&str, &str) = ("Moved by", "moved_by");
        const BATCH: (&str, &str) = ("1 of 16 (us)", "batched_write_us");
        match self.mode {
            StreamMode::Calls => &[SEND, RECEIVE],
            StreamMode::Put => &[SEND, RECEIVE, MOVED_BY],
            StreamMode::Prepared => &[SEND, RECEIVE, BATCH, MOVED_BY],
            StreamMode::Graph => &[LAUNCH, MOVED_BY],
            StreamMode::Late => &[RECEIVE],
            StreamMode::Host => &[],
        }
    }

    /// Returns what a title says.
    pub(crate) fn title(&self) -> String {
        let mut title = match self.mode {
            StreamMode::Calls => "by calls on a stream".to_owned(),
            StreamMode::Prepared => "by prepared messages on a stream".to_owned(),
            StreamMode::Graph => "by graphs of prepared messages".to_owned(),
            StreamMode::Put => "by puts with signals on a stream".to_owned(),
            StreamMode::Late => "received late on a stream".to_owned(),
            StreamMode::Host => "by the host, which waits for the stream".to_owned(),
        };
        if self.mode != StreamMode::Host {
            title += &format!(", {} steps together", self.most_steps(false));
        }
        if let Some(kernel) = self.kernel {
            title += &format!(", a kernel of {} us between", kernel.as_secs_f64() * 1e6);
        }
        title
    }
}

/// Reads the time of a kernel in microseconds.
pub(crate) fn parse_kernel(text: &str) -> Result<f64, String> {
    let time = text.parse().ok().filter(|time| (0.1..=1e6).contains(time));
    time.ok_or_else(|| format!("invalid time '{text}': a number of microseconds from 0.1 to 1000000 is expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_messages_of_host_memory_are_sent_one_at_a_time() {
        let plan = StreamPlan { mode: StreamMode::Calls, steps: 1000, kernel: None, in_host_memory: true };
        assert_eq!((plan.most_steps(true), plan.most_steps(false)), (1, 1000));
        let late = StreamPlan { mode: StreamMode::Late, in_host_memory: false, ..plan };
        assert_eq!((late.most_steps(true), late.most_steps(false)), (64, 64));
    }

    #[test]
    fn titles_say_how_messages_are_sent() {
        let kernel = Some(Duration::from_micros(10));
        let plan = StreamPlan { mode: StreamMode::Calls, steps: 100, kernel, in_host_memory: false };
        assert_eq!(plan.title(), "by calls on a stream, 100 steps together, a kernel of 10 us between");
        let host = StreamPlan { mode: StreamMode::Host, kernel: None, ..plan };
        assert_eq!(host.title(), "by the host, which waits for the stream");
    }

    #[test]
    fn times_of_kernels_are_microseconds() {
        assert_eq!(parse_kernel("2.5"), Ok(2.5));
        assert!(["0", "-1", "x", "2e6"].iter().all(|text| parse_kernel(text).is_err()));
    }
}
