//! The plan of a measurement: sizes, iterations and windows.

use clap::ValueEnum;

use super::stream::StreamPlan;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// Half the time that a message takes there and back
    Latency,
    /// Bytes per second one way
    Bandwidth,
    /// Bytes per second both ways at once
    Bidirectional,
    /// Messages per second one way
    MessageRate,
    /// Half the time that a put with a signal takes there and back
    Put,
    /// Time of a get by rank 0 of rank 1's memory
    Get,
    /// Half the time that an active message takes there and back, to where its handler has it land
    Am,
    /// Puts per second by rank 0, in windows
    PutRate,
    /// Gets per second by rank 0, in windows
    GetRate,
    /// Active messages per second from rank 0, in windows
    AmRate,
    /// Time to register rank 0's memory, which was registered before, and to end the registration
    Register,
}

impl Test {
    /// Returns whether messages of a window are under way at a time.
    pub(crate) fn has_window(self) -> bool {
        matches!(self, Test::Bandwidth | Test::Bidirectional | Test::MessageRate) || self.has_threads()
    }

    /// Returns whether it measures something else than messages that are received.
    pub(crate) fn without_receives(self) -> bool {
        matches!(self, Test::Put | Test::Get | Test::Am | Test::Register) || self.has_threads()
    }

    /// Returns whether data in blocks can be moved.
    pub(crate) fn has_layouts(self) -> bool {
        !self.without_receives() || matches!(self, Test::Put | Test::Get)
    }

    /// Returns whether several threads can take part.
    pub(crate) fn has_threads(self) -> bool {
        matches!(self, Test::PutRate | Test::GetRate | Test::AmRate)
    }

    /// Returns whether messages can be checked.
    pub(crate) fn has_check(self) -> bool {
        self != Test::Register && !self.has_threads()
    }
}

pub(crate) struct Plan {
    pub(crate) test: Test,
    pub(crate) sizes: Vec<u64>,
    pub(crate) iterations: Option<u32>,
    /// Time to measure each size for, instead of a number of iterations.
    pub(crate) seconds: Option<f64>,
    pub(crate) window: u32,
    pub(crate) threads: u32,
    pub(crate) check: bool,
    /// Present if messages are in the order of a stream.
    pub(crate) stream: Option<StreamPlan>,
}

/// Bytes that all iterations of one size send, within the bounds on their number.
const BYTES_PER_SIZE: u64 = 2 << 30;

/// The most bytes that the messages of a checked window take. Each needs its own slot.
const CHECKED_WINDOW_BYTES: u64 = 512 << 20;

impl Plan {
    /// Returns the number of timed iterations for messages of `size` bytes. Both ranks get the same number.
    pub(crate) fn iterations(&self, size: u64) -> u32 {
        let (least, most) = match (self.check, self.test) {
            (true, _) => (1, 50),
            (false, test) if test.has_window() => (2, 1_000),
            (false, _) => (4, 10_000),
        };
        let affordable = BYTES_PER_SIZE / (size.max(1) * u64::from(self.window(size)));
        self.iterations.unwrap_or_else(|| affordable.clamp(least, most) as u32)
    }

    /// Returns the number of iterations before the clock starts.
    pub(crate) fn warm_up(&self, size: u64) -> u32 {
        (self.iterations(size) / 10).max(1)
    }

    /// Returns the number of messages in flight.
    pub(crate) fn window(&self, size: u64) -> u32 {
        let checked = (CHECKED_WINDOW_BYTES / size.max(1)).clamp(1, u64::from(u32::MAX)) as u32;
        match (&self.stream, self.test) {
            // Checked steps that are added together have memory of their own.
            (Some(stream), _) if self.check => stream.most_steps(true).min(checked),
            (_, test) if !test.has_window() => 1,
            _ if self.check => self.window.min(checked),
            _ => self.window,
        }
    }

    /// Returns the most steps that are added to a stream before the host waits for it.
    pub(crate) fn steps_together(&self, size: u64) -> u32 {
        match &self.stream {
            Some(_) if self.check => self.window(size),
            Some(stream) => stream.most_steps(false),
            None => 1,
        }
    }

    /// Returns the bytes that a buffer must hold. Unchecked messages of a window share their bytes, as in the OSU
    /// benchmarks.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let bytes = |&size: &u64| if self.check { size * u64::from(self.window(size)) } else { size };
        self.sizes.iter().map(bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(test: Test, check: bool) -> Plan {
        Plan {
            test,
            sizes: vec![8, 64 << 20],
            iterations: None,
            seconds: None,
            window: 64,
            threads: 1,
            check,
            stream: None,
        }
    }

    #[test]
    fn iterations_fall_with_size() {
        let latency = plan(Test::Latency, false);
        assert_eq!(latency.iterations(8), 10_000);
        assert_eq!(latency.iterations(1 << 20), 2048);
        assert_eq!(latency.iterations(4 << 30), 4);
        assert_eq!(plan(Test::Bandwidth, false).iterations(64 << 20), 2);
        assert_eq!(plan(Test::Latency, true).iterations(1 << 30), 2);
        assert_eq!(Plan { iterations: Some(3), ..latency }.iterations(8), 3);
    }

    #[test]
    fn a_checked_window_fits_in_memory() {
        let checked = plan(Test::Bandwidth, true);
        assert_eq!((checked.window(8), checked.window(64 << 20), checked.window(4 << 30)), (64, 8, 1));
        assert_eq!(checked.buffer_bytes(), 512 << 20);
        assert_eq!(plan(Test::Bandwidth, false).buffer_bytes(), 64 << 20);
    }
}
