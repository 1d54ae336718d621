//! Puts data into the next rank's registered memory, and counts in rank 0's. With a device in each rank, the memory may
//! be a `DeviceVec` as well.
//!
//! ```sh
//! cargo build --release --example one_sided
//! target/release/cableway run -n 4 -- target/release/examples/one_sided
//! ```

use cableway::{RemoteKey, Signal, SignalUpdate, World};

fn main() -> Result<(), cableway::Error> {
    let world = World::init()?;
    let everyone = world.communicator();
    let (rank, size) = (everyone.rank(), everyone.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);

    // Each rank registers memory, and sends its key to all others. Word 0 is a signal, word 1 a counter.
    let window = world.register(vec![0_u64; 102])?;
    let mut keys = vec![RemoteKey::default(); size as usize];
    everyone.allgather(&[*window.key()], &mut keys)?;

    // The signal changes after the data is there.
    let data = [u64::from(rank); 100];
    let target = &keys[next as usize];
    everyone.put_signal(&data, target.at(16), Signal { at: target.at(0), update: SignalUpdate::Set(1) })?;
    window.wait_until(0, previous, |word| word == 1)?;
    let mut received = [0_u64; 100];
    window.read(16, &mut received)?;
    println!("rank {rank} got {} from rank {previous}", received[99]);

    let ticket = everyone.fetch_add(1_u64, keys[0].at(8))?;
    println!("rank {rank} has ticket {ticket}");
    // The memory stays registered until every rank is done with it.
    everyone.barrier()
}
