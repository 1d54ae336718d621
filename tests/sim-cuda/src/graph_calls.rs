//! Graphs are made, launched and destroyed: `cuGraph*`.

use std::ffi::c_ulonglong;
use std::sync::Arc;

use crate::abi::{Out, driver_api};
use crate::error::Error;
use crate::graph::{EXECUTABLES, GRAPHS};
use crate::stream;

driver_api! {
    11040 cuGraphInstantiate: fn cuGraphInstantiateWithFlags(executable: Out<usize>, graph: usize, flags: c_ulonglong) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        let graph = GRAPHS.get()?.lock().get(graph).ok_or(Error::INVALID_VALUE)?;
        if graph.incomplete {
            return Err(Error::NOT_SUPPORTED);
        }
        executable.set(EXECUTABLES.get()?.lock().insert(Arc::new(graph)))
    }

    10000 cuGraphLaunch: fn cuGraphLaunch(executable: usize, stream: usize) {
        let graph = EXECUTABLES.get()?.lock().get(executable).ok_or(Error::INVALID_VALUE)?;
        // A graph within a graph.
        if stream::get(stream)?.captures_work()? {
            return Ok(());
        }
        graph.calls.iter().try_for_each(|call| call(stream))
    }

    10000 cuGraphExecDestroy: fn cuGraphExecDestroy(executable: usize) {
        EXECUTABLES.get()?.lock().remove(executable).map(drop).ok_or(Error::INVALID_VALUE)
    }

    10000 cuGraphDestroy: fn cuGraphDestroy(graph: usize) {
        GRAPHS.get()?.lock().remove(graph).map(drop).ok_or(Error::INVALID_VALUE)
    }
}
