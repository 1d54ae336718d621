//! Captured graphs.
//!
//! A graph holds the captured calls, and a launch makes them again in its stream (`graph_calls`). Waits and writes of words,
//! copies and fills can be launched. A graph with other work, or of several streams, cannot be instantiated here.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{AfterInit, Handles};
use crate::error::Outcome;

/// A captured call, given the stream to make it in.
pub(crate) type Call = Box<dyn Fn(usize) -> Outcome + Send + Sync>;

/// A captured graph.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) calls: Vec<Call>,
    /// It contains work that is not in the calls.
    pub(crate) incomplete: bool,
}

pub(crate) static GRAPHS: AfterInit<Mutex<Handles<Graph>>> =
    AfterInit::new(|| Mutex::new(Handles::new(0x5200_0000_0000)));
pub(crate) static EXECUTABLES: AfterInit<Mutex<Handles<Arc<Graph>>>> =
    AfterInit::new(|| Mutex::new(Handles::new(0x5300_0000_0000)));

/// Returns the handle of a new graph.
pub(crate) fn add(graph: Graph) -> Outcome<usize> {
    Ok(GRAPHS.get()?.lock().insert(Arc::new(graph)))
}
