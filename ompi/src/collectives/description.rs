//! Decodes the shim's descriptions of calls.

use std::ffi::{c_int, c_void};

use cableway_coll::{Call, Edge, Element, Error, FunctionOperands, Memory, Operands, ReduceOperation, Reduced};
use cableway_datatype::Layout;

use super::function::FunctionDescription;
use crate::boundary::BufferDescription;

/// `struct cableway_collective`
#[repr(C)]
pub(crate) struct Description {
    kind: c_int,
    root: c_int,
    in_place: bool,
    even: bool,
    send: Side,
    receive: Side,
    operation: c_int,
    element: c_int,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    counts: *const c_int,
    ranks: usize,
    function: FunctionDescription,
}

/// `struct cableway_side`
#[repr(C)]
struct Side {
    buffers: *const BufferDescription,
    count: usize,
    edges: *const EdgeDescription,
}

/// `struct cableway_edge`
#[derive(Clone, Copy)]
#[repr(C)]
struct EdgeDescription {
    rank: u32,
    message: u32,
}

/// `enum cableway_collective_kind`
mod kind {
    use std::ffi::c_int;

    pub(super) const BROADCAST: c_int = 0;
    pub(super) const GATHER: c_int = 1;
    pub(super) const SCATTER: c_int = 2;
    pub(super) const ALLGATHER: c_int = 3;
    pub(super) const ALLTOALL: c_int = 4;
    pub(super) const NEIGHBORS: c_int = 5;
    pub(super) const ALLREDUCE: c_int = 6;
    pub(super) const REDUCE: c_int = 7;
    pub(super) const REDUCE_SCATTER: c_int = 8;
    pub(super) const SCAN: c_int = 9;
    pub(super) const EXCLUSIVE_SCAN: c_int = 10;
    pub(super) const REDUCE_LOCAL: c_int = 11;
}

/// Makes a slice of an array that may be null if it is empty.
///
/// # Safety
/// The array holds so many entries for as long as the slice is used.
unsafe fn slice<'a, T>(array: *const T, len: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(array, len) } }
}

impl Side {
    /// # Safety
    /// The description is valid, as long as the result is used.
    unsafe fn buffers(&self) -> &[BufferDescription] {
        // SAFETY: the caller's promise.
        unsafe { slice(self.buffers, self.count) }
    }

    /// # Safety
    /// As [`buffers`](Self::buffers), and of a neighbourhood operation.
    unsafe fn edges(&self) -> &[EdgeDescription] {
        // SAFETY: the caller's promise.
        unsafe { slice(self.edges, self.count) }
    }
}

impl Description {
    /// Returns the call.
    ///
    /// # Safety
    /// The description is valid. Its layouts live as long as the call. It does not move before the operation has finished.
    pub(crate) unsafe fn call<'a>(&self) -> Result<Call<'a>, Error> {
        // SAFETY: the caller's promise.
        let (send, receive) = unsafe { (self.send.buffers(), self.receive.buffers()) };
        // SAFETY: the caller's promise.
        let all = |list: &[BufferDescription]| list.iter().map(|one| unsafe { memory(one) }).collect::<Vec<_>>();
        let first = |list: &[BufferDescription]| all(list).first().copied();
        let nothing = Memory::bytes(std::ptr::null_mut(), 0);
        // A negative rank was refused by Open MPI.
        let root = self.root as u32;
        // SAFETY: one count for each rank.
        let counts =
            || unsafe { slice(self.counts, self.ranks) }.iter().map(|&count| u64::try_from(count).unwrap_or(0));
        if self.function.is_given() {
            let reduced = match self.kind {
                kind::ALLREDUCE => Reduced::Everywhere,
                kind::REDUCE => Reduced::AtRoot(root),
                kind::REDUCE_SCATTER => Reduced::Scattered(counts().collect()),
                kind::SCAN => Reduced::Scan,
                kind::EXCLUSIVE_SCAN => Reduced::ExclusiveScan,
                kind::REDUCE_LOCAL => Reduced::Locally,
                unknown => unreachable!("a reduction of kind {unknown}"),
            };
            let (input, output) = (self.input(), self.output.cast());
            // SAFETY: the caller's promise.
            let (function, element) = unsafe { (self.function.function(), self.function.element()) };
            let operands = FunctionOperands { function, element, count: self.count, input, output };
            return Ok(Call::ByFunction(operands, reduced));
        }
        Ok(match self.kind {
            kind::BROADCAST => Call::Broadcast { memory: first(receive).unwrap_or(nothing), root },
            kind::GATHER => Call::Gather { send: first(send), receive: all(receive), root },
            kind::SCATTER => Call::Scatter { send: all(send), receive: first(receive), root },
            kind::ALLGATHER => Call::Allgather { send: first(send), receive: all(receive) },
            kind::ALLTOALL => {
                let send = (!self.in_place).then(|| all(send));
                Call::Alltoall { send, receive: all(receive), even: self.even }
            }
            kind::NEIGHBORS => {
                // SAFETY: each edge belongs to a buffer.
                let edges = unsafe { (self.send.edges(), self.receive.edges()) };
                let (send, receive) = (join(edges.0, all(send)), join(edges.1, all(receive)));
                Call::Neighbors { send, receive, with_empty: false }
            }
            kind::ALLREDUCE => Call::Allreduce(self.operands()?),
            kind::REDUCE => Call::Reduce { operands: self.operands()?, root },
            kind::REDUCE_SCATTER => Call::ReduceScatter { operands: self.operands()?, counts: counts().collect() },
            kind::SCAN => Call::Scan(self.operands()?),
            kind::EXCLUSIVE_SCAN => Call::ExclusiveScan(self.operands()?),
            kind::REDUCE_LOCAL => Call::ReduceLocal(self.operands()?),
            unknown => unreachable!("a collective operation of kind {unknown}"),
        })
    }

    fn operands(&self) -> Result<Operands, Error> {
        let operation = ReduceOperation::ALL[self.operation as usize];
        let element = Element::ALL[self.element as usize];
        Ok(Operands { operation, element, count: self.count, input: self.input(), output: self.output.cast() })
    }

    fn input(&self) -> Option<*const u8> {
        (!self.in_place).then_some(self.input.cast())
    }
}

/// # Safety
/// The layout is null, or lives as long as the memory is used.
unsafe fn memory<'a>(description: &BufferDescription) -> Memory<'a> {
    let BufferDescription { address, len, layout, count } = *description;
    // SAFETY: the caller's promise.
    let layout = unsafe { layout.cast::<Layout>().as_ref() };
    Memory { address: address.cast(), count: if layout.is_some() { count } else { len }, layout }
}

fn join<'a>(edges: &[EdgeDescription], memory: Vec<Memory<'a>>) -> Vec<Edge<'a>> {
    let edge = |(edge, memory): (&EdgeDescription, Memory<'a>)| Edge { rank: edge.rank, message: edge.message, memory };
    edges.iter().zip(memory).map(edge).collect()
}
