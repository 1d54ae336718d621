//! Graphs are made, changed, launched and destroyed: `cuGraph*`.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{In, List, Out, driver_api};
use crate::capture;
use crate::driver::fresh_id;
use crate::error::{Error, Outcome};
use crate::graph::{self, Call, EXECUTABLES, Executable, GRAPHS, Graph, Node};
use crate::node::{NodeKernel, NodeParameters};
use crate::stream;

/// Returns the call that launches a kernel with this argument.
fn launches(parameters: NodeParameters) -> Outcome<Arc<Call>> {
    let kernel = NodeKernel::read(parameters)?;
    Ok(Arc::new(Box::new(move |stream| kernel.launch(stream))))
}

driver_api! {
    10000 cuGraphCreate: fn cuGraphCreate(graph: Out<usize>, flags: c_uint) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        graph.set(graph::add(Graph::default())?)
    }

    12000 cuGraphAddKernelNode: fn cuGraphAddKernelNode_v2(node: Out<usize>, graph: usize, dependencies: List<usize>, count: usize, parameters: In<NodeParameters>) {
        let graph = GRAPHS.get()?.lock().get(graph).ok_or(Error::INVALID_VALUE)?;
        let mut only = graph.node.lock();
        if !dependencies.get(count)?.is_empty() || only.is_some() || graph.incomplete || !graph.calls.is_empty() {
            return Err(Error::NOT_SUPPORTED);
        }
        let handle = fresh_id() as usize;
        *only = Some(Node { handle, launch: launches(parameters.get()?)? });
        node.set(handle)
    }

    11040 cuGraphInstantiateWithFlags: fn cuGraphInstantiateWithFlags(executable: Out<usize>, graph: usize, flags: c_ulonglong) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        capture::unsafe_call()?;
        let graph = GRAPHS.get()?.lock().get(graph).ok_or(Error::INVALID_VALUE)?;
        if graph.incomplete {
            return Err(Error::NOT_SUPPORTED);
        }
        let node = Mutex::new(graph.node.lock().clone());
        executable.set(EXECUTABLES.get()?.lock().insert(Arc::new(Executable { graph, node })))
    }

    11010 cuGraphUpload: fn cuGraphUpload(executable: usize, stream: usize) {
        EXECUTABLES.get()?.lock().get(executable).ok_or(Error::INVALID_VALUE)?;
        stream::get(stream).map(drop)
    }

    12000 cuGraphExecKernelNodeSetParams: fn cuGraphExecKernelNodeSetParams_v2(executable: usize, node: usize, parameters: In<NodeParameters>) {
        let executable = EXECUTABLES.get()?.lock().get(executable).ok_or(Error::INVALID_VALUE)?;
        let changed = launches(parameters.get()?)?;
        match &mut *executable.node.lock() {
            Some(kept) if kept.handle == node => kept.launch = changed,
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }

    10000 cuGraphLaunch: fn cuGraphLaunch(executable: usize, stream: usize) {
        let executable = EXECUTABLES.get()?.lock().get(executable).ok_or(Error::INVALID_VALUE)?;
        // A graph within a graph.
        if stream::get(stream)?.captures_work()? {
            return Ok(());
        }
        executable.graph.calls.iter().try_for_each(|call| call(stream))?;
        match &*executable.node.lock() {
            Some(node) => (node.launch)(stream),
            None => Ok(()),
        }
    }

    10000 cuGraphExecDestroy: fn cuGraphExecDestroy(executable: usize) {
        EXECUTABLES.get()?.lock().remove(executable).map(drop).ok_or(Error::INVALID_VALUE)
    }

    10000 cuGraphDestroy: fn cuGraphDestroy(graph: usize) {
        GRAPHS.get()?.lock().remove(graph).map(drop).ok_or(Error::INVALID_VALUE)
    }
}
