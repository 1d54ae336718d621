//! A ring: every rank passes a greeting on to the next one.
//!
//! ```text
//! cargo build --release --example hello
//! target/release/cableway run -n 4 -- target/release/examples/hello
//! ```

use cableway::{Any, World};

fn main() -> Result<(), cableway::Error> {
    let world = World::init()?;
    let everyone = world.communicator();
    let (rank, size) = (everyone.rank(), everyone.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);

    // Both at once, so that no rank waits for another to begin.
    let mut received = [0_u32; 4];
    let sent = [rank, 10 * rank, 100 * rank, 1000 * rank];
    everyone.sendrecv(&sent, (next, 0), &mut received, (previous, 0))?;
    println!("rank {rank} of {size} received {received:?} from rank {previous}");

    // Rank 0 collects a number of values that it does not know before.
    if rank == 0 {
        for _ in 1..size {
            let (values, status) = everyone.recv_vec::<f64>(Any, 1)?;
            println!("{} values from rank {}", values.len(), status.source);
        }
    } else {
        everyone.send(&vec![0.5; rank as usize], 0, 1)?;
    }
    Ok(())
}
