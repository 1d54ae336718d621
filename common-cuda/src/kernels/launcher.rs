//! Launches a kernel in a stream of Cableway, alone or as a graph of this one kernel.
//!
//! To launch a kernel, NVIDIA's driver 580 takes 3.3 us on the host of an H200. To launch a graph with another argument it takes
//! 1.6 us (`docs/decisions/026-graphs-of-kernels.md`). This may be the other way round with another driver. So both are timed
//! once in each context, with a kernel that does nothing, and the kernels are launched in the way that took less time.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::job::THREADS;
use crate::driver::{Driver, Failure, Function, KernelGraph, Stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Alone,
    ByGraph,
}

/// The way in which the kernels of one context are launched: alone, until the ways were compared.
#[derive(Default)]
pub(crate) struct Launching(Mutex<Option<Way>>);

/// A kernel in a stream.
pub(super) struct Launcher {
    function: Function,
    /// Used in one stream only, because its launches follow each other. It stays until they have ended.
    graph: Option<KernelGraph>,
    launching: Arc<Launching>,
}

impl Launcher {
    /// Prepares launches of a function with one argument. The context is current. This may allocate memory on the device.
    pub(super) fn new(
        driver: &dyn Driver,
        function: Function,
        stream: &Stream,
        launching: &Arc<Launching>,
    ) -> Launcher {
        let launching = launching.clone();
        if *launching.0.lock() == Some(Way::Alone) {
            return Launcher { function, graph: None, launching };
        }
        let graph = driver.new_kernel_graph(function, THREADS, stream).inspect_err(|failure| {
            log::debug!("a kernel is launched without a graph: {}: {}", failure.call, driver.reason(*failure));
        });
        Launcher { function, graph: graph.ok(), launching }
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
        if let Some(graph) = &mut self.graph
            && *self.launching.0.lock() == Some(Way::ByGraph)
        {
            // SAFETY: the caller's promise. This value owns the graph.
            match unsafe { driver.launch_graph(graph, blocks, argument, stream) } {
                Ok(()) => return Ok(()),
                // If the context is gone, the other launch says so.
                Err(failure) => {
                    let (call, reason) = (failure.call, driver.reason(failure));
                    log::info!("kernels are launched without graphs from now on: {call}: {reason}");
                    *self.launching.0.lock() = Some(Way::Alone);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { driver.launch(self.function, blocks, THREADS, argument, stream) }
    }

    /// Launches the kernel several times in each way, or once where there are no graphs, and chooses the way for the kernels of
    /// the context. Fails if the driver launches no kernels. The context is current.
    ///
    /// # Safety
    /// As [`launch`](Self::launch), and the kernel may run any number of times.
    pub(super) unsafe fn compare(
        &mut self,
        driver: &dyn Driver,
        argument: *mut c_void,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let Some(graph) = &mut self.graph else {
            *self.launching.0.lock() = Some(Way::Alone);
            // SAFETY: the caller's promise.
            return unsafe { driver.launch(self.function, 1, THREADS, argument, stream) };
        };
        let compared = Compared::times(|way| {
            let begun = Instant::now();
            let launched = match way {
                // SAFETY: the caller's promise.
                Way::Alone => unsafe { driver.launch(self.function, 1, THREADS, argument, stream) },
                // SAFETY: the caller's promise. This value owns the graph.
                Way::ByGraph => unsafe { driver.launch_graph(graph, 1, argument, stream) },
            };
            match launched {
                Ok(()) => Ok(Some(begun.elapsed())),
                Err(failure) if way == Way::Alone => Err(failure),
                Err(failure) => {
                    log::debug!("no graph is launched: {}: {}", failure.call, driver.reason(failure));
                    Ok(None)
                }
            }
        })?;
        log::debug!("a kernel is launched in {:?} alone, in {:?} by a graph", compared.alone, compared.by_graph);
        *self.launching.0.lock() = Some(compared.shorter());
        Ok(())
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

/// The shortest launches of each way. `None` if there were none.
#[derive(Default)]
struct Compared {
    alone: Option<Duration>,
    by_graph: Option<Duration>,
}

impl Compared {
    /// A way is timed several times in a row, because a launch in one way after one in the other takes longer. Each way has
    /// two turns, and its shortest launch counts, so that a pause of the machine does not.
    const TURNS: usize = 2;
    const LAUNCHES: usize = 8;

    /// Compares the ways. `launch` returns `None` if there is no launch in this way.
    fn times(mut launch: impl FnMut(Way) -> Result<Option<Duration>, Failure>) -> Result<Compared, Failure> {
        let mut compared = Compared::default();
        for way in [Way::Alone, Way::ByGraph].repeat(Self::TURNS) {
            for _ in 0..Self::LAUNCHES {
                let Some(took) = launch(way)? else { return Ok(Compared { by_graph: None, ..compared }) };
                let shortest = match way {
                    Way::Alone => &mut compared.alone,
                    Way::ByGraph => &mut compared.by_graph,
                };
                *shortest = Some(shortest.map_or(took, |before| before.min(took)));
            }
        }
        Ok(compared)
    }

    fn shorter(&self) -> Way {
        match (self.alone, self.by_graph) {
            (Some(alone), Some(by_graph)) if by_graph < alone => Way::ByGraph,
            _ => Way::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shorter(time: impl Fn(Way, usize) -> Option<u64>) -> Way {
        let mut made = 0;
        let compared = Compared::times(|way| {
            made += 1;
            Ok(time(way, made).map(Duration::from_nanos))
        });
        compared.unwrap().shorter()
    }

    #[test]
    fn the_shortest_launches_are_compared() {
        let graphs_take = |graph| move |way, _| Some(if way == Way::Alone { 29 } else { graph });
        assert_eq!([28, 29, 30].map(|graph| shorter(graphs_take(graph))), [Way::ByGraph, Way::Alone, Way::Alone]);
        // Only the last launch of each is not disturbed.
        let disturbed = |way, made| Some(if made == 24 || made == 32 { graphs_take(15)(way, made)? } else { 90 });
        assert_eq!(shorter(disturbed), Way::ByGraph);
        // A launch of a graph is refused.
        assert_eq!(shorter(|_, made| (made < 30).then_some(100 - made as u64)), Way::Alone);
    }
}
