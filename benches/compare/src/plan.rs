//! What is measured: series of one test over one route, for a list of message sizes.

use std::fmt;

use crate::route::{self, Route};

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

    /// Others than an MPI are not asked for it.
    pub(crate) fn is_of_mpi(self) -> bool {
        matches!(self, Test::ThreadedRate | Test::Start)
    }

    pub(crate) fn less_is_better(self) -> bool {
        matches!(self, Test::Latency | Test::Start)
    }

    /// Of messages over a route; empty where the test says nothing there that others do not.
    fn sizes(self, route: &Route) -> Vec<u64> {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        match (route.name, self) {
            ("sm", Test::MessageRate | Test::ThreadedRate) => vec![8],
            ("sm", Test::Start) => vec![0],
            ("sm" | "tcp", Test::Latency) => vec![8, KIB, 4 * KIB, 64 * KIB],
            ("sm" | "tcp", Test::Bandwidth) => {
                [10, 12, 14].into_iter().chain(16..=26).map(|exponent| 1 << exponent).collect()
            }
            ("devices", Test::Latency) => vec![8, KIB, 64 * KIB, MIB],
            ("devices-copier", Test::Latency) => vec![8, KIB, 64 * KIB],
            ("devices" | "devices-copier", Test::MessageRate) => vec![8],
            ("devices", Test::Bandwidth) => vec![64 * KIB, MIB, 4 * MIB, 64 * MIB, 256 * MIB],
            ("devices-staged", Test::Bandwidth) => vec![64 * KIB, MIB, 64 * MIB],
            ("devices-tcp", Test::Bandwidth) => vec![MIB],
            ("devices-staged" | "one-device" | "host-device", Test::Latency) => vec![8],
            // Of an extent four times as long.
            ("strided", Test::Latency) => vec![256 * KIB, 16 * MIB],
            _ => Vec::new(),
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

/// One test over one route.
pub(crate) struct Series {
    pub(crate) test: Test,
    pub(crate) route: &'static Route,
    pub(crate) sizes: Vec<u64>,
}

/// Everything that one round measures.
pub(crate) struct Plan {
    pub(crate) series: Vec<Series>,
    pub(crate) seconds: f64,
}

impl Plan {
    /// The named tests over the named routes, as far as so many devices allow.
    pub(crate) fn new(seconds: f64, routes: &[String], tests: &[String], devices: u32) -> Self {
        let chosen = |names: &[String], name: &str| names.iter().any(|chosen| chosen == name);
        let routes = route::ALL.into_iter().filter(|route| chosen(routes, route.name) && route.devices() <= devices);
        let series = routes.flat_map(|route| Test::ALL.map(|test| Series { test, route, sizes: test.sizes(route) }));
        let series = series.filter(|series| !series.sizes.is_empty() && chosen(tests, &series.test.to_string()));
        Plan { series: series.collect(), seconds }
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
