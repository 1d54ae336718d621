//! Times collective operations on device memory, or on host memory.
//!
//! ```text
//! cargo build --release --example collective_times
//! target/release/cableway run -n 2 -- target/release/examples/collective_times device 0.1 8,65536,1048576
//! ```
//!
//! The arguments are `device` or `host`, the seconds of each figure, and the bytes of each rank's buffer; of an allgather and
//! a reduce-scatter, those of all ranks' shares together. Operations that divide the buffers are left out where that is not
//! possible evenly. Prints a line for each operation: bytes, and the median time of single calls in microseconds, of the rank
//! that took longest. Each call begins after a barrier.

use std::error::Error;
use std::time::{Duration, Instant};

use cableway::{Communicator, RecvBuffer, RecvElements, ReduceOperation, SendBuffer, SendElements, World};

const OPERATIONS: [&str; 6] = ["allreduce", "reduce", "bcast", "allgather", "alltoall", "reduce-scatter"];
/// So many of the operations do not divide the buffers among the ranks.
const WHOLE: usize = 3;
const WARM_UP: u32 = 16;
const MOST_CALLS: usize = 10_000;
const LEAST_CALLS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, seconds, sizes] = &arguments[..] else {
        return Err("usage: collective_times device|host SECONDS SIZE[,SIZE...]".into());
    };
    let sizes: Vec<usize> = sizes.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let seconds = Duration::from_secs_f64(seconds.parse()?);
    let world = World::init()?;
    let everyone = world.communicator();
    // The measurement itself uses host memory, so it has a communicator of its own.
    let watch = Watch { on: everyone.dup()?, seconds };
    let device = match place.as_str() {
        "host" => None,
        "device" => {
            world.devices().initialise()?;
            Some(world.device(world.rank() % world.devices().facts()?.devices.len() as u32)?)
        }
        other => return Err(format!("'{other}' is no place: pass device or host").into()),
    };
    for bytes in sizes {
        let floats = bytes / size_of::<f32>();
        match &device {
            Some(device) => {
                let lens = [floats, floats, floats / everyone.size() as usize];
                let [send, receive, share] = lens.map(|len| device.zeroed::<f32>(len));
                Buffers { send: send?, receive: receive?, share: share? }.times(bytes, everyone, &watch)?;
            }
            None => {
                let share = vec![0.0_f32; floats / everyone.size() as usize];
                let buffers = Buffers { send: vec![0.0_f32; floats], receive: vec![0.0_f32; floats], share };
                buffers.times(bytes, everyone, &watch)?;
            }
        }
    }
    Ok(())
}

struct Buffers<B> {
    send: B,
    receive: B,
    /// A rank's share of one of them.
    share: B,
}

impl<B: SendBuffer + RecvBuffer + SendElements<Item = f32> + RecvElements<Item = f32>> Buffers<B> {
    /// Times each operation, and has rank 0 print the times.
    fn times(mut self, bytes: usize, on: &Communicator, watch: &Watch) -> Result<(), Box<dyn Error>> {
        let floats = bytes / size_of::<f32>();
        let ranks = on.size() as usize;
        let operations =
            if floats >= ranks && floats.is_multiple_of(ranks) { &OPERATIONS[..] } else { &OPERATIONS[..WHOLE] };
        for &operation in operations {
            let (median, calls) = watch.median(|| self.call(operation, on))?;
            if on.rank() == 0 {
                println!("{operation:<18} {bytes:>12} {median:>12.2}  ({calls} calls)");
            }
        }
        Ok(())
    }

    fn call(&mut self, operation: &str, on: &Communicator) -> Result<(), cableway::Error> {
        let Buffers { send, receive, share } = self;
        match operation {
            "allreduce" => on.allreduce(send, receive, ReduceOperation::Sum),
            "reduce" => on.reduce(send, ReduceOperation::Sum, 0, Some(receive)),
            "bcast" => on.broadcast(receive, 0),
            "allgather" => on.allgather(share, receive),
            "alltoall" => on.alltoall(send, receive),
            _ => on.reduce_scatter_block(send, share, ReduceOperation::Sum),
        }
    }
}

/// Measures calls.
struct Watch {
    on: Communicator,
    seconds: Duration,
}

impl Watch {
    /// Returns the median time in microseconds of the rank that took longest, and the number of calls.
    fn median(&self, mut call: impl FnMut() -> Result<(), cableway::Error>) -> Result<(f64, usize), cableway::Error> {
        for _ in 0..WARM_UP {
            call()?;
        }
        let (begun, mut times, mut more) = (Instant::now(), Vec::new(), [1_u8]);
        while more != [0] {
            self.on.barrier()?;
            let from = Instant::now();
            call()?;
            let mut took = [from.elapsed().as_secs_f64() * 1e6];
            self.on.allreduce_in_place(&mut took, ReduceOperation::Max)?;
            times.push(took[0]);
            let few = times.len() < LEAST_CALLS;
            more = [u8::from(few || times.len() < MOST_CALLS && begun.elapsed() < self.seconds)];
            self.on.broadcast(&mut more, 0)?;
        }
        times.sort_by(f64::total_cmp);
        Ok((times[times.len() / 2], times.len()))
    }
}
