//! The plan of a comparison: series of one test over one route, for a list of message sizes.

use std::fmt;

use crate::route::{self, Route};

/// A test: the meaning of its figure, and whether more is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Test {
    /// Half a round trip, in microseconds.
    Latency,
    /// Messages per second in windows, one way.
    MessageRate,
    /// Bytes in windows, one way, in MB/s (10^6).
    Bandwidth,
    /// The total message rate of 16 pairs of threads, one of each process.
    ThreadedRate,
    /// The time of `MPI_Init`, in milliseconds.
    Start,
    /// The time of a call, in microseconds: a sum of floats. Sizes are those of each rank's buffer.
    Allreduce,
    /// The time of a call, in microseconds.
    Bcast,
    /// The time of a call, in microseconds. Sizes are those of all ranks' shares together.
    Allgather,
    /// The time of a call, in microseconds. Sizes are those of each rank's buffer.
    Alltoall,
    /// The time of a call, in microseconds: a sum of floats. Sizes are those of all ranks' shares together.
    ReduceScatter,
    /// Half a round trip of puts, in microseconds. In host memory, that of both processes is shared, here and in the tests
    /// below.
    Put,
    /// The time of a get, in microseconds.
    Get,
    /// Half a round trip of active messages, in microseconds.
    Am,
    /// Puts per second in windows.
    PutRate,
    /// Gets per second in windows.
    GetRate,
    /// Active messages per second in windows, one way.
    AmRate,
}

impl Test {
    pub(crate) const ALL: [Test; 16] = [
        Test::Latency,
        Test::MessageRate,
        Test::Bandwidth,
        Test::ThreadedRate,
        Test::Start,
        Test::Allreduce,
        Test::Bcast,
        Test::Allgather,
        Test::Alltoall,
        Test::ReduceScatter,
        Test::Put,
        Test::Get,
        Test::Am,
        Test::PutRate,
        Test::GetRate,
        Test::AmRate,
    ];

    /// Returns the name on the command line and in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::MessageRate => "message-rate",
            Test::Bandwidth => "bandwidth",
            Test::ThreadedRate => "threaded-rate",
            Test::Start => "start",
            Test::Allreduce => "allreduce",
            Test::Bcast => "bcast",
            Test::Allgather => "allgather",
            Test::Alltoall => "alltoall",
            Test::ReduceScatter => "reduce-scatter",
            Test::Put => "put",
            Test::Get => "get",
            Test::Am => "am",
            Test::PutRate => "put-rate",
            Test::GetRate => "get-rate",
            Test::AmRate => "am-rate",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Test::MessageRate | Test::ThreadedRate | Test::AmRate => "messages/s",
            Test::PutRate | Test::GetRate => "operations/s",
            Test::Bandwidth => "MB/s",
            Test::Start => "ms",
            _ => "us",
        }
    }

    /// Returns whether the test is a collective operation.
    pub(crate) fn is_collective(self) -> bool {
        matches!(self, Test::Allreduce | Test::Bcast | Test::Allgather | Test::Alltoall | Test::ReduceScatter)
    }

    /// Returns whether the test is one of puts, gets or active messages.
    pub(crate) fn is_one_sided(self) -> bool {
        matches!(self, Test::Put | Test::Get | Test::Am | Test::PutRate | Test::GetRate | Test::AmRate)
    }

    /// Returns whether the test moves data between memory of two processes without a receive.
    pub(crate) fn is_put_or_get(self) -> bool {
        self.is_one_sided() && !matches!(self, Test::Am | Test::AmRate)
    }

    /// Returns whether the test is one of messages between two processes.
    pub(crate) fn is_of_messages(self) -> bool {
        matches!(self, Test::Latency | Test::MessageRate | Test::Bandwidth)
    }

    /// Returns whether a program without MPI can run the test.
    pub(crate) fn needs_no_mpi(self) -> bool {
        self.is_of_messages() || self.is_one_sided()
    }

    /// Returns whether the figure is a number a second.
    pub(crate) fn is_rate(self) -> bool {
        matches!(self, Test::MessageRate | Test::ThreadedRate | Test::PutRate | Test::GetRate | Test::AmRate)
    }

    pub(crate) fn less_is_better(self) -> bool {
        matches!(self.unit(), "us" | "ms")
    }

    /// Returns the number of messages in flight one way: 64 as in the OSU benchmarks, fewer if these exceed 256 MiB.
    pub(crate) fn window(self, size: u64) -> u64 {
        const MOST: u64 = 64;
        const BYTES: u64 = 256 << 20;
        let single = matches!(self, Test::Latency | Test::Put | Test::Get | Test::Am) || self.is_collective();
        if single { 1 } else { (BYTES / size.max(1)).clamp(1, MOST) }
    }

    /// Returns the message sizes for a route; none if the test adds nothing to the others there.
    fn sizes(self, route: &Route) -> Vec<u64> {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        match (route.name, self) {
            ("sm", Test::MessageRate | Test::ThreadedRate) => vec![8],
            ("sm", Test::Start) => vec![0],
            ("sm", Test::Latency) => {
                vec![8, 32, KIB, 4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB]
            }
            ("tcp", Test::Latency) => vec![8, KIB, 4 * KIB, 64 * KIB],
            ("sm" | "tcp", Test::Bandwidth) => {
                [10, 12, 14].into_iter().chain(16..=26).map(|exponent| 1 << exponent).collect()
            }
            // Includes the sizes of routes that are compared with this one.
            ("devices", Test::Latency) => vec![8, KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB],
            ("devices-copier", Test::Latency) => vec![8, KIB, 64 * KIB],
            ("devices" | "devices-copier" | "host-beside-devices", Test::MessageRate) => vec![8],
            ("devices", Test::Bandwidth) => vec![64 * KIB, MIB, 4 * MIB, 64 * MIB, 256 * MIB],
            ("devices-staged", Test::Bandwidth) => vec![64 * KIB, MIB, 64 * MIB],
            ("devices-tcp", Test::Bandwidth) => vec![MIB],
            ("host-device" | "page-locked-device", Test::Latency) => vec![8, 4 * KIB, 64 * KIB, MIB, 4 * MIB],
            ("host-device" | "page-locked-device", Test::Bandwidth) => vec![MIB, 16 * MIB],
            ("devices-staged" | "one-device" | "host-beside-devices", Test::Latency) => vec![8],
            // The extent is four times as long.
            ("strided", Test::Latency) => vec![256 * KIB, 16 * MIB],
            ("irregular-64" | "irregular-8", Test::Latency) => vec![64 * KIB, MIB, 16 * MIB],
            ("sm" | "devices", Test::PutRate | Test::GetRate | Test::AmRate) => vec![8],
            ("sm", test) if test.is_collective() || test.is_one_sided() => vec![8, 4 * KIB, 64 * KIB, MIB],
            ("devices", test) if test.is_one_sided() => vec![8, 4 * KIB, 64 * KIB, MIB, 16 * MIB],
            ("devices", test) if test.is_collective() => vec![8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// One test over one route.
pub(crate) struct Series {
    pub(crate) test: Test,
    pub(crate) route: &'static Route,
    pub(crate) sizes: Vec<u64>,
}

impl Series {
    /// Returns runs of sizes with equal windows, and the windows. A program is started once for each run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&[u64], u64)> {
        let runs = self.sizes.chunk_by(|one, next| self.test.window(*one) == self.test.window(*next));
        runs.map(|sizes| (sizes, self.test.window(sizes[0])))
    }
}

/// All series of one round.
pub(crate) struct Plan {
    pub(crate) series: Vec<Series>,
    pub(crate) seconds: f64,
    /// The chosen routes that need more devices than there are.
    pub(crate) left_out: Vec<&'static Route>,
}

impl Plan {
    /// Makes the plan for the wanted series that `devices` devices allow.
    pub(crate) fn new(wanted: &Wanted, devices: u32) -> Self {
        let Wanted { seconds, routes, tests, skipped, up_to } = wanted;
        let chosen = |names: &[String], name: &str| names.iter().any(|chosen| chosen == name);
        let routes = route::ALL.into_iter().filter(|route| chosen(routes, route.name));
        let (routes, left_out): (Vec<_>, Vec<_>) = routes.partition(|route| route.devices() <= devices);
        let wanted = |route: &Route, test: Test| {
            chosen(tests, &test.to_string()) && !chosen(skipped, &format!("{}:{test}", route.name))
        };
        let sizes = |test: Test, route| test.sizes(route).into_iter().filter(|size| size <= up_to).collect();
        let series = routes.into_iter().flat_map(|route| {
            let tests = Test::ALL.into_iter().filter(move |test| wanted(route, *test));
            tests.map(move |test| Series { test, route, sizes: sizes(test, route) })
        });
        Plan { series: series.filter(|series| !series.sizes.is_empty()).collect(), seconds: *seconds, left_out }
    }
}

/// The user's selection of series.
pub(crate) struct Wanted {
    /// Approximate seconds of each measurement.
    pub(crate) seconds: f64,
    pub(crate) routes: Vec<String>,
    pub(crate) tests: Vec<String>,
    /// Series to leave out, each as `ROUTE:TEST`.
    pub(crate) skipped: Vec<String>,
    /// The largest message size in bytes.
    pub(crate) up_to: u64,
}

#[cfg(test)]
impl Wanted {
    pub(crate) fn everything() -> Self {
        let routes = route::ALL.map(|route| route.name.to_owned()).into();
        let tests = Test::ALL.map(|test| test.to_string()).into();
        Wanted { seconds: 0.1, routes, tests, skipped: Vec::new(), up_to: u64::MAX }
    }
}

/// Checks that a text names a route and a test, as in `sm:bandwidth`.
pub(crate) fn parse_series(text: &str) -> Result<String, String> {
    let known = |(name, test): (&str, &str)| {
        route::ALL.iter().any(|route| route.name == name) && Test::ALL.iter().any(|known| known.to_string() == test)
    };
    let known = text.split_once(':').is_some_and(known);
    known
        .then(|| text.to_owned())
        .ok_or_else(|| format!("invalid series '{text}': a route and a test are expected, as in sm:bandwidth"))
}

/// Reads bytes as 8, 64K or 1M.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => 64,
    };
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1_u64.checked_shl(shift)?));
    size.ok_or_else(|| format!("invalid size '{text}': a number of bytes is expected, such as 8, 64K or 1M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything(devices: u32) -> Plan {
        Plan::new(&Wanted::everything(), devices)
    }

    #[test]
    fn routes_without_their_devices_are_left_out_by_name() {
        let names = |plan: &Plan| plan.left_out.iter().map(|route| route.name).collect::<Vec<_>>();
        assert_eq!(names(&everything(2)), [""; 0]);
        assert!(!names(&everything(1)).contains(&"one-device") && names(&everything(1)).contains(&"irregular-8"));
        assert_eq!(names(&everything(0)).len(), route::ALL.len() - 2);
        assert!(everything(0).series.iter().all(|series| !series.route.on_device()));
    }

    #[test]
    fn sizes_are_bounded_by_what_people_write() {
        assert_eq!(["8", "64K", "1M", "2G"].map(parse_size), [Ok(8), Ok(64 << 10), Ok(1 << 20), Ok(2 << 30)]);
        for wrong in ["", "K", "8KK", "8k", "99999999999999999999", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        let (routes, tests) = (vec!["devices".to_owned(), "strided".to_owned()], vec!["latency".to_owned()]);
        let plan = Plan::new(&Wanted { routes, tests, up_to: 64 << 10, ..Wanted::everything() }, 2);
        assert_eq!(plan.series.len(), 1, "nothing of the other route is so small");
        assert_eq!(plan.series[0].sizes, [8, 1 << 10, 64 << 10]);
    }

    #[test]
    fn a_routes_test_can_be_skipped() {
        let plan = Plan::new(&Wanted { skipped: vec!["sm:bandwidth".to_owned()], ..Wanted::everything() }, 2);
        let has = |name, test| plan.series.iter().any(|series| series.route.name == name && series.test == test);
        assert!(!has("sm", Test::Bandwidth) && has("sm", Test::Latency) && has("tcp", Test::Bandwidth));
        assert_eq!(parse_series("sm:bandwidth").unwrap(), "sm:bandwidth");
        for wrong in ["sm", "sm:speed", "nowhere:latency"] {
            assert!(parse_series(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_route_is_measured() {
        let plan = everything(2);
        for route in route::ALL {
            assert!(plan.series.iter().any(|series| series.route == route), "{}", route.name);
        }
    }

    #[test]
    fn one_start_measures_what_has_one_window() {
        let starts = |name, test| {
            let plan = everything(2);
            let series = plan.series.into_iter().find(|series| series.route.name == name && series.test == test);
            series.unwrap().runs().map(|(sizes, window)| (sizes.len(), window)).collect::<Vec<_>>()
        };
        assert_eq!(starts("devices", Test::Bandwidth), [(3, 64), (1, 4), (1, 1)]);
        assert_eq!(starts("devices", Test::Latency), [(6, 1)]);
    }
}
