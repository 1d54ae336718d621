//! Slices of the crate cudarc, whose streams run late.

use std::sync::Arc;

use cableway::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use cableway::{ReduceOperation, RemoteKey, World};

use super::{Outcome, device, expect, numbers};
use crate::support::{Driver, finish, role_job, skip, transports};

/// The simulated driver's work is slow enough that a message without order would send stale data.
pub(super) fn ordered() {
    if sim_cuda::Vendor::tested() != sim_cuda::Vendor::Nvidia {
        return skip("cudarc has no devices of other vendors");
    }
    let folder = Driver::find().folder;
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        let options = ["--cuda-libdir", folder.to_str().expect("a folder"), "--set", &btl];
        let mut job = role_job(2, &options, "device_cudarc");
        // Where cudarc looks for the driver.
        finish(job.env("LD_LIBRARY_PATH", &folder).env("SIM_CUDA_DELAY_US", "3000")).assert_success();
    }
}

/// A slice that a stream fills late.
struct Late {
    source: CudaSlice<u32>,
    filled: CudaSlice<u32>,
}

impl Late {
    fn new(stream: &Arc<CudaStream>, values: &[u32]) -> Result<Late, Box<dyn std::error::Error>> {
        let source = stream.clone_htod(values)?;
        let filled = stream.alloc_zeros(values.len())?;
        stream.synchronize()?;
        Ok(Late { source, filled })
    }

    /// Queues the copy in a stream that is not the slice's own.
    fn fill(&mut self, stream: &Arc<CudaStream>) -> Outcome {
        Ok(stream.memcpy_dtod(&self.source, &mut self.filled)?)
    }
}

pub(super) fn streams() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let context = CudaContext::new(device(&world)? as usize)?;
    let (own, other) = (context.new_stream()?, context.new_stream()?);
    for len in [2_usize, 15_000, 300_000] {
        let (theirs, old) = (numbers(peer, len), numbers(99, len));
        for tag in 0..3 {
            let mut out = Late::new(&own, &numbers(me, len))?;
            out.fill(&other)?;
            let mut inbox = own.clone_htod(&old)?;
            // A late read of what will be overwritten, and a late write that must not overwrite the message.
            let mut before = own.alloc_zeros::<u32>(len)?;
            other.memcpy_dtod(&inbox, &mut before)?;
            if tag == 1 {
                other.memset_zeros(&mut inbox)?;
            }
            on.sendrecv(&out.filled, (peer, tag), &mut inbox, (peer, tag))?;
            // Work that is queued afterwards sees the message.
            let mut after = other.alloc_zeros::<u32>(len)?;
            other.memcpy_dtod(&inbox, &mut after)?;
            expect("after the message", other.clone_dtoh(&after)? == theirs, true)?;
            expect("before the message", own.clone_dtoh(&before)? == old, true)?;
        }
        // Views, in a scope.
        let mut out = Late::new(&own, &numbers(me, len))?;
        out.fill(&other)?;
        let mut inbox = own.alloc_zeros::<u32>(len)?;
        {
            let (first, mut room) = (out.filled.slice(..len / 2), inbox.slice_mut(len / 2..len / 2 * 2));
            on.scope(|scope| {
                let coming = scope.irecv(&mut room, peer, 9)?;
                scope.isend(&first, peer, 9)?.wait()?;
                coming.wait()
            })?;
        }
        expect("a view", own.clone_dtoh(&inbox)?[len / 2..] == theirs[..len / 2], true)?;
    }

    // Collective and one-sided operations.
    let mut terms = Late::new(&own, &[me + 1; 5000])?;
    terms.fill(&other)?;
    let mut sums = own.alloc_zeros::<u32>(5000)?;
    on.allreduce(&terms.filled, &mut sums, ReduceOperation::Sum)?;
    expect("sums", own.clone_dtoh(&sums)?, vec![3; 5000])?;
    let mut memory = Late::new(&own, &numbers(me, 1000))?;
    memory.fill(&other)?;
    let window = world.register(memory.filled)?;
    let mut keys = vec![RemoteKey::default(); 2];
    on.allgather(&[*window.key()], &mut keys)?;
    let mut got = own.alloc_zeros::<u32>(1000)?;
    other.memset_zeros(&mut got)?;
    on.get(&mut got, keys[peer as usize].at(0))?;
    expect("a get", own.clone_dtoh(&got)? == numbers(peer, 1000), true)?;
    on.barrier()?;
    expect("a window", own.clone_dtoh(&window.into_memory())? == numbers(me, 1000), true)?;
    Ok(on.barrier()?)
}
