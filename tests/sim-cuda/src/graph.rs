//! Graphs.
//!
//! A captured graph holds the captured calls, and a launch makes them again in its stream (`graph_calls`). Waits and writes of
//! words, copies and fills can be launched. A graph with other work, or of several streams, cannot be instantiated here. A graph
//! that is made otherwise has one node, a kernel of Cableway.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{AfterInit, Handles};
use crate::error::Outcome;

/// A captured call, given the stream to make it in.
pub(crate) type Call = Box<dyn Fn(usize) -> Outcome + Send + Sync>;

/// A kernel in a graph.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: usize,
    pub(crate) launch: Arc<Call>,
}

/// A graph.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) calls: Vec<Call>,
    /// It contains work that is not in the calls.
    pub(crate) incomplete: bool,
    /// The kernel that was added to it.
    pub(crate) node: Mutex<Option<Node>>,
}

/// What can be launched of a graph.
pub(crate) struct Executable {
    pub(crate) graph: Arc<Graph>,
    /// The kernel with the argument of the next launch.
    pub(crate) node: Mutex<Option<Node>>,
}

pub(crate) static GRAPHS: AfterInit<Mutex<Handles<Graph>>> =
    AfterInit::new(|| Mutex::new(Handles::new(0x5200_0000_0000)));
pub(crate) static EXECUTABLES: AfterInit<Mutex<Handles<Executable>>> =
    AfterInit::new(|| Mutex::new(Handles::new(0x5300_0000_0000)));

/// Returns the handle of a new graph.
pub(crate) fn add(graph: Graph) -> Outcome<usize> {
    Ok(GRAPHS.get()?.lock().insert(Arc::new(graph)))
}
