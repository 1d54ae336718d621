//! Launches a kernel in a stream of Cableway, alone or as a graph of this one kernel.
//!
//! To launch a kernel, NVIDIA's driver 580 takes 2.9 us on the host of an H200. To launch a graph with another argument it takes
//! 1.5 us (`docs/decisions/026-graphs-of-kernels.md`). This may be the other way round with another driver. So the first
//! launches are timed, and later ones are made in the way that took less time.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use super::job::THREADS;
use crate::driver::{Driver, Failure, Function, KernelGraph, Stream};

/// A kernel in a stream.
pub(super) struct Launcher {
    function: Function,
    /// Used in one stream only, because its launches follow each other. It stays until they have ended.
    graph: Option<KernelGraph>,
    way: Way,
    /// Present while the ways are compared.
    trials: Option<Trials>,
}

impl Launcher {
    /// Prepares launches of a function with one argument. The context is current. This may allocate memory on the device.
    pub(super) fn new(driver: &dyn Driver, function: Function, stream: &Stream) -> Launcher {
        let graph = match driver.new_kernel_graph(function, THREADS, stream) {
            Ok(graph) => Some(graph),
            Err(failure) => {
                log::debug!("a kernel is launched without a graph: {}: {}", failure.call, driver.reason(failure));
                None
            }
        };
        let trials = graph.is_some().then(Trials::default);
        Launcher { function, graph, way: Way::Alone, trials }
    }

    /// Launches the kernel in the stream. The context is current.
    ///
    /// # Safety
    /// The argument is what the kernel declares, and memory that it names stays valid until the kernel ends.
    pub(super) unsafe fn launch(
        &mut self,
        driver: &dyn Driver,
        blocks: u32,
        argument: *mut c_void,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let Some(mut trials) = self.trials.take() else {
            // SAFETY: the caller's promise.
            return unsafe { self.launch_in(self.way, driver, blocks, argument, stream) }.map(drop);
        };
        let (way, begun) = (trials.next(), Instant::now());
        // SAFETY: the caller's promise.
        let used = unsafe { self.launch_in(way, driver, blocks, argument, stream) }?;
        trials.note(way, begun.elapsed());
        match trials.shorter() {
            _ if used != way => {}
            Some(shorter) => self.way = shorter,
            None => self.trials = Some(trials),
        }
        Ok(())
    }

    /// Launches the kernel in one way, or alone if the driver refuses to launch the graph. Returns the way.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn launch_in(
        &mut self,
        way: Way,
        driver: &dyn Driver,
        blocks: u32,
        argument: *mut c_void,
        stream: &Stream,
    ) -> Result<Way, Failure> {
        if let (Way::ByGraph, Some(graph)) = (way, &mut self.graph) {
            // SAFETY: the caller's promise. This value owns the graph.
            match unsafe { driver.launch_graph(graph, blocks, argument, stream) } {
                Ok(()) => return Ok(Way::ByGraph),
                Err(failure) if failure.context_gone() => return Err(failure),
                Err(failure) => {
                    let (call, reason) = (failure.call, driver.reason(failure));
                    log::info!("a kernel is launched without a graph from now on: {call}: {reason}");
                    self.way = Way::Alone;
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { driver.launch(self.function, blocks, THREADS, argument, stream) }.map(|()| Way::Alone)
    }

    /// Destroys the graph. The context is current, and every launch has ended.
    pub(super) fn destroy(self, driver: &dyn Driver) {
        if let Some(graph) = self.graph
            && let Err(failure) = driver.destroy_kernel_graph(graph)
        {
            log::debug!("destroying a graph: {}", driver.reason(failure));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Alone,
    ByGraph,
}

/// The timed launches of each way. The shortest one counts: the first ones of each way take longer.
const TRIALS: u32 = 8;

/// The times of launches: first of those alone, and then of those by the graph. A launch in one way after one in the other takes
/// longer.
#[derive(Default)]
struct Trials {
    made: u32,
    alone: Option<Duration>,
    by_graph: Option<Duration>,
}

impl Trials {
    /// Returns the way of the next launch.
    fn next(&self) -> Way {
        if self.made < TRIALS { Way::Alone } else { Way::ByGraph }
    }

    /// Notes how long the call took.
    fn note(&mut self, way: Way, took: Duration) {
        let shortest = match way {
            Way::Alone => &mut self.alone,
            Way::ByGraph => &mut self.by_graph,
        };
        *shortest = Some(shortest.map_or(took, |before| before.min(took)));
        self.made += 1;
    }

    /// Returns the way that took less time, once there were enough launches.
    fn shorter(&self) -> Option<Way> {
        let enough = self.made >= 2 * TRIALS;
        enough.then(|| if self.by_graph < self.alone { Way::ByGraph } else { Way::Alone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shorter(alone: [u64; 8], by_graph: [u64; 8]) -> Option<Way> {
        let mut trials = Trials::default();
        for (way, times) in [(Way::Alone, alone), (Way::ByGraph, by_graph)] {
            for took in times {
                assert_eq!((trials.next(), trials.shorter()), (way, None));
                trials.note(way, Duration::from_nanos(took));
            }
        }
        trials.shorter()
    }

    #[test]
    fn the_shortest_launches_are_compared() {
        assert_eq!(shorter([9, 3, 3, 3, 3, 3, 3, 3], [100, 4, 3, 2, 50, 3, 3, 3]), Some(Way::ByGraph));
        assert_eq!(shorter([9, 3, 3, 3, 3, 3, 3, 3], [4; 8]), Some(Way::Alone));
        assert_eq!(shorter([3; 8], [3; 8]), Some(Way::Alone));
    }
}
