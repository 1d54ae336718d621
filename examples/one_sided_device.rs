//! One-sided operations and active messages on device memory, as docs/one-sided-examples.md goes through them.
//!
//! ```sh
//! cargo build --release --example one_sided_device
//! target/release/cableway run -n 2 -- target/release/examples/one_sided_device
//! ```

use std::sync::{Arc, Mutex};

use cableway::{
    BufferKind, Communicator, Device, DeviceBuffer, DeviceVec, Error, Layout, Registration, RemoteKey, Signal,
    SignalUpdate, TypedSlice, World,
};

const COUNT: usize = 1 << 20;
/// Words of signals, which lie on the host, where the owner's CPU reads them soonest.
const PUT: u64 = 0;
const READ: u64 = 8;

/// What every part of the example uses.
struct Example {
    world: World,
    /// Where this rank's peers write.
    window: Registration<DeviceVec<f32>>,
    signals: Registration<Vec<u64>>,
    /// The keys of both, of each rank.
    keys: Vec<[RemoteKey; 2]>,
    next: u32,
    previous: u32,
}

/// Runs every part.
pub(crate) fn main() -> Result<(), Error> {
    let example = Example::register()?;
    example.put()?;
    example.put_signal()?;
    example.get()?;
    example.columns()?;
    example.active_message()?;
    example.sendrecv()?;
    println!("rank {} is done", example.world.rank());
    // The memory stays registered until every rank is done with it.
    example.everyone().barrier()
}

impl Example {
    fn everyone(&self) -> &Communicator {
        self.world.communicator()
    }

    /// Returns device memory with one value.
    fn filled(&self, value: f32) -> Result<DeviceVec<f32>, Error> {
        place(&self.world)?.copied(&vec![value; COUNT])
    }

    /// Registers device memory, and host memory for signals. Every rank gets the keys of all.
    fn register() -> Result<Example, Error> {
        let world = World::init()?;
        let window = world.register(place(&world)?.zeroed::<f32>(COUNT)?)?;
        let signals = world.register(vec![0_u64; 2])?;
        let (rank, size) = (world.rank(), world.size());
        let mut all = vec![RemoteKey::default(); 2 * size as usize];
        world.communicator().allgather(&[*window.key(), *signals.key()], &mut all)?;
        let keys = all.chunks_exact(2).map(|keys| [keys[0], keys[1]]).collect();
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        Ok(Example { world, window, signals, keys, next, previous })
    }

    /// A put without a signal: the owner learns by other means that the data is there.
    fn put(&self) -> Result<(), Error> {
        let data = self.filled(1.0)?;
        let [window, _] = &self.keys[self.next as usize];
        // The data is in the memory of the next rank when this returns.
        self.everyone().put(&data, window.at(0))?;
        self.everyone().barrier()?;
        self.expect(1.0)
    }

    /// A put with a signal: the owner waits for a word, which changes after the data is there.
    fn put_signal(&self) -> Result<(), Error> {
        let data = self.filled(2.0)?;
        let [window, signals] = &self.keys[self.next as usize];
        let signal = Signal { at: signals.at(PUT), update: SignalUpdate::Add(1) };
        let (first, second) = (data.slice(0..COUNT / 2)?, data.slice(COUNT / 2..COUNT)?);
        self.everyone().scope(|scope| {
            // Both puts are under way at a time. The end of the scope would wait for them, too.
            let first = scope.put_signal(&first, window.at(0), signal)?;
            let second = scope.put_signal(&second, window.at(2 * COUNT as u64), signal)?;
            first.wait()?;
            second.wait().map(drop)
        })?;
        self.signals.wait_until(PUT, self.previous, |puts| puts == 2)?;
        self.expect(2.0)
    }

    /// A get. Its signal tells the owner that it may write the memory again.
    fn get(&self) -> Result<(), Error> {
        let mut room = place(&self.world)?.zeroed::<f32>(COUNT)?;
        let [window, signals] = &self.keys[self.next as usize];
        let signal = Signal { at: signals.at(READ), update: SignalUpdate::Set(1) };
        self.everyone().get_signal(&mut room, window.at(0), signal)?;
        self.signals.wait_until(READ, self.previous, |read| read == 1)?;
        check(&room.to_vec()?, 2.0)
    }

    /// The last column of a matrix of 1024 x 1024 becomes the first column of the next rank's.
    fn columns(&self) -> Result<(), Error> {
        let matrix = self.filled(3.0)?;
        let column = Layout::rows(1024, 4, 4096)?;
        let last = matrix.slice(1023..COUNT)?;
        let [window, _] = &self.keys[self.next as usize];
        self.everyone().put(&TypedSlice::new(&last, 1, &column)?, window.at(0).typed(1, &column))?;
        self.everyone().barrier()?;
        let mut values = vec![0.0_f32; COUNT];
        self.window.read(0, &mut values)?;
        check(&[values[0], values[1023 * 1024]], 3.0)?;
        check(&[values[1], values[1023]], 2.0)
    }

    /// An active message whose handler chooses device memory after it has seen the header.
    fn active_message(&self) -> Result<(), Error> {
        let (devices, place) = (self.world.devices().clone(), place(&self.world)?.index());
        let landed = Arc::new(Mutex::new(None));
        let arrived = landed.clone();
        self.world.am_handler(1, move |message| {
            let bytes = message.header().first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
            let arrived = arrived.clone();
            match DeviceBuffer::new(&devices, place, BufferKind::Device, bytes) {
                Ok(memory) => message.receive(memory, move |memory, result| {
                    if let (Ok(_), Ok(mut arrived)) = (result, arrived.lock()) {
                        *arrived = Some(memory);
                    }
                }),
                Err(error) => eprintln!("the data is dropped: {error}"),
            }
        })?;
        self.everyone().barrier()?;
        let data = self.filled(4.0)?;
        self.world.post_am(self.next, 1, &(4 * COUNT as u32).to_le_bytes(), data)?;
        self.world.progress_until(|| landed.lock().is_ok_and(|landed| landed.is_some()));
        self.world.flush_am();
        let mut last = [0; 4];
        if let Some(memory) = landed.lock().ok().and_then(|mut landed| landed.take()) {
            memory.copy_to_host(4 * (COUNT - 1), &mut last)?;
        }
        check(&[f32::from_le_bytes(last)], 4.0)
    }

    /// Messages take device memory in any mixture: here device memory there and host memory here.
    fn sendrecv(&self) -> Result<(), Error> {
        let data = self.filled(5.0)?;
        let mut received = vec![0.0_f32; COUNT];
        self.everyone().sendrecv(&data, (self.next, 0), &mut received, (self.previous, 0))?;
        check(&received, 5.0)
    }

    /// Checks what the previous rank has put.
    fn expect(&self, value: f32) -> Result<(), Error> {
        let mut values = vec![0.0_f32; COUNT];
        self.window.read(0, &mut values)?;
        check(&values, value)?;
        // The next part may write the memory.
        self.everyone().barrier()
    }
}

/// Returns the device of this rank.
fn place(world: &World) -> Result<Device<'_>, Error> {
    world.devices().initialise()?;
    world.device(world.rank() % world.devices().facts()?.devices.len() as u32)
}

fn check(values: &[f32], expected: f32) -> Result<(), Error> {
    assert!(values.iter().all(|&value| value == expected), "values other than {expected}");
    Ok(())
}
