//! What is measured: series of one test over one transport, for a list of message sizes.

use std::fmt;

/// What a figure is and which way is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Test {
    /// Half a round trip, in microseconds.
    Latency,
    /// Messages a second in windows, one way.
    MessageRate,
    /// Bytes in windows, one way, in MB/s (10^6).
    Bandwidth,
    /// As the message rate, by 16 threads in each process, each with one of the other's; in all.
    ThreadedRate,
    /// How long `MPI_Init` takes, in milliseconds.
    Start,
}

impl Test {
    const ALL: [Test; 5] = [Test::Latency, Test::MessageRate, Test::Bandwidth, Test::ThreadedRate, Test::Start];

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Test::Latency => "us",
            Test::MessageRate | Test::ThreadedRate => "messages/s",
            Test::Bandwidth => "MB/s",
            Test::Start => "ms",
        }
    }

    fn sizes(self) -> Vec<u64> {
        match self {
            Test::Latency => vec![8, 1 << 10, 4 << 10, 64 << 10],
            Test::MessageRate | Test::ThreadedRate => vec![8],
            Test::Bandwidth => [10, 12, 14].into_iter().chain(16..=26).map(|exponent| 1 << exponent).collect(),
            Test::Start => vec![0],
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Test::Latency => "latency",
            Test::MessageRate => "message-rate",
            Test::Bandwidth => "bandwidth",
            Test::ThreadedRate => "threaded-rate",
            Test::Start => "start",
        })
    }
}

/// One test over one transport.
pub(crate) struct Series {
    pub(crate) test: Test,
    pub(crate) btl: &'static str,
    pub(crate) sizes: Vec<u64>,
}

/// Everything that one round measures.
pub(crate) struct Plan {
    pub(crate) series: Vec<Series>,
    pub(crate) seconds: f64,
}

impl Plan {
    pub(crate) fn new(seconds: f64, btls: &[String], tests: &[String]) -> Self {
        let chosen = |names: &[String], name: &str| names.iter().any(|chosen| chosen == name);
        let mut series = Vec::new();
        for btl in ["sm", "tcp"] {
            for test in Test::ALL {
                // Over sockets a message rate says nothing that the latency does not, and a start is one of everything.
                let measured = btl == "sm" || matches!(test, Test::Latency | Test::Bandwidth);
                if measured && chosen(btls, btl) && chosen(tests, &test.to_string()) {
                    series.push(Series { test, btl, sizes: test.sizes() });
                }
            }
        }
        Plan { series, seconds }
    }
}

/// Messages in flight one way: OSU's 64, fewer where they would come to more than 256 MiB.
pub(crate) fn window(size: u64) -> u64 {
    const MOST: u64 = 64;
    const BYTES: u64 = 256 << 20;
    (BYTES / size.max(1)).clamp(1, MOST)
}

/// Runs of equal [`window`], so that one start of a program measures several sizes.
pub(crate) fn by_window(sizes: &[u64]) -> impl Iterator<Item = &[u64]> {
    sizes.chunk_by(|one, next| window(*one) == window(*next))
}
