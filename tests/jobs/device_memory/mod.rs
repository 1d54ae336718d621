//! Device memory as the library's own types and those of other crates hold it.

#[cfg(feature = "cudarc")]
mod cudarc;

use std::cell::Cell;
use std::error::Error;
use std::ffi::c_void;
use std::sync::mpsc;

use cableway::{
    BufferKind, DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceVec, Elements, ErrorKind, Parts, RawBuffer,
    ReduceOperation, RemoteKey, World,
};

use crate::support::{Driver, Role, Test, finish, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("device_memory::vectors_are_sent_and_reduced_as_elements", || every_transport("device_vectors")),
    ("device_memory::vectors_are_registered_and_land_active_messages", || every_transport("device_vectors_elsewhere")),
    ("device_memory::queued_work_is_waited_for_before_each_message", || every_transport("device_foreign")),
    #[cfg(feature = "cudarc")]
    ("device_memory::messages_keep_the_order_of_cudarcs_streams", cudarc::ordered),
];

pub(crate) const ROLES: &[Role] = &[
    ("device_vectors", vectors),
    ("device_vectors_elsewhere", vectors_elsewhere),
    ("device_foreign", foreign),
    #[cfg(feature = "cudarc")]
    ("device_cudarc", cudarc::streams),
];

type Outcome = Result<(), Box<dyn Error>>;

fn every_transport(role: &str) {
    let folder = Driver::find().folder;
    let folder = folder.to_string_lossy();
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        finish(&mut role_job(2, &[crate::support::libdir_option(), &folder, "--set", &btl], role)).assert_success();
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}").into()) }
}

fn numbers(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| at.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect()
}

/// Returns the number of this rank's device; ranks take turns.
fn device(world: &World) -> Result<u32, cableway::Error> {
    world.devices().initialise()?;
    Ok(world.rank() % world.devices().facts()?.devices.len() as u32)
}

fn vectors() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let device = world.device(device(&world)?)?;
    for len in [1_usize, 1000, 200_000] {
        let out = device.copied(&numbers(me, len))?;
        let mut inbox = device.zeroed::<u32>(len)?;
        expect("zeros", inbox.to_vec()?, vec![0; len])?;
        let status = on.sendrecv(&out, (peer, 0), &mut inbox, (peer, 0))?;
        expect("bytes", status.bytes, 4 * len as u64)?;
        expect("a vector", inbox.to_vec()?, numbers(peer, len))?;
        // A part, counted in elements. The rest does not change.
        let (first, last) = (len / 3, len - len / 4);
        inbox.copy_from_host(0, &vec![7; len])?;
        on.sendrecv(&out.slice(first..last)?, (peer, 1), &mut inbox.slice_mut(first..last)?, (peer, 1))?;
        let mut expected = vec![7; len];
        expected[first..last].copy_from_slice(&numbers(peer, len)[first..last]);
        expect("a part", inbox.to_vec()?, expected)?;
    }
    // Memory by its address, in an allocation that is known.
    let (out, inbox) = (device.copied(&numbers(me, 500))?, device.zeroed::<u32>(500)?);
    let [from, into] = [world.allocation_of(&out)?, world.allocation_of(&inbox)?];
    expect("the allocations are known", [from.is_some(), into.is_some(), from == into], [true, true, false])?;
    expect("host memory", world.allocation_of(&[0_u8; 100_000])?, None)?;
    let (source, room) = (out.as_device_ptr(), inbox.as_device_ptr());
    // SAFETY: memory of these vectors, which nobody else uses meanwhile.
    let raw = |address: *mut u32, at| unsafe { RawBuffer::new(address.cast(), 2000).within(at) };
    on.sendrecv(&raw(source, from), (peer, 5), &mut raw(room, into), (peer, 5))?;
    expect("located memory", inbox.to_vec()?, numbers(peer, 500))?;
    // Two parts of one vector are received into at the same time.
    let mut halves = device.allocate::<u64>(BufferKind::Device, 10)?;
    let (mut left, mut right) = halves.slice_mut(0..10)?.split_at(4)?;
    on.scope(|scope| {
        let coming = [scope.irecv(&mut left, peer, 2)?, scope.irecv(&mut right, peer, 3)?];
        on.send(&[6_u64; 6], peer, 3)?;
        on.send(&[4_u64; 4], peer, 2)?;
        coming.into_iter().try_for_each(|request| request.wait().map(drop))
    })?;
    expect("halves", halves.to_vec()?, [[4; 4].as_slice(), &[6; 6]].concat())?;

    // Reductions know the type. Counts of parts are of elements.
    let gradients = device.copied(&[1.5_f32 + me as f32; 3000])?;
    let mut sums = device.zeroed::<f32>(3000)?;
    on.allreduce(&gradients, &mut sums, ReduceOperation::Sum)?;
    expect("sums", sums.to_vec()?, vec![4.0; 3000])?;
    on.allreduce_in_place(&mut sums.slice_mut(0..1000)?, ReduceOperation::Max)?;
    on.allreduce(&Elements::<f32>::new(&gradients)?, &mut vec![0.0; 3000], ReduceOperation::Min)?;
    let mut parts = device.zeroed::<u32>(5)?;
    on.allgatherv(&numbers(me, 2 + me as usize)[..], &mut parts, Parts::new(&[2, 3]))?;
    expect("parts", parts.to_vec()?, [numbers(0, 2), numbers(1, 3)].concat())?;
    // Without elements.
    let mut nothing = device.zeroed::<u32>(0)?;
    on.sendrecv(&device.copied::<u32>(&[])?, (peer, 4), &mut nothing, (peer, 4))?;
    expect("nothing", nothing.to_vec()?, Vec::new())?;

    let refused = [
        parts.slice(4..6).err(),
        parts.slice_mut(usize::MAX..usize::MAX).err(),
        parts.copy_to_host(3, &mut [0; 3]).err(),
        parts.copy_from_host(usize::MAX, &[0; 2]).err(),
        device.zeroed::<u64>(usize::MAX / 4).err(),
        world.device(1000).err(),
    ];
    expect("refused", refused.iter().filter(|error| error.is_some()).count(), refused.len())?;
    Ok(on.barrier()?)
}

fn vectors_elsewhere() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let device = world.device(device(&world)?)?;
    let window = world.register(device.zeroed::<u32>(1000)?)?;
    expect("bytes", window.len(), 4000)?;
    let mut keys = vec![RemoteKey::default(); 2];
    on.allgather(&[*window.key()], &mut keys)?;
    on.put(&device.copied(&numbers(me, 10))?, keys[peer as usize].at(40))?;
    on.barrier()?;
    let mut expected = vec![0; 1000];
    expected[10..20].copy_from_slice(&numbers(peer, 10));
    expect("a window", window.into_memory().to_vec()?, expected)?;

    let (done, landed) = mpsc::channel();
    let room = std::sync::Mutex::new(Some(device.zeroed::<u32>(5000)?));
    world.am_handler(1, move |message| {
        let (Some(room), done) = (room.lock().ok().and_then(|mut room| room.take()), done.clone()) else { return };
        message.receive(room, move |room: DeviceVec<u32>, result| drop(done.send((room, result))));
    })?;
    on.barrier()?;
    world.post_am(peer, 1, b"", device.copied(&numbers(me, 5000))?)?;
    let mut found = None;
    world.progress_until(|| {
        found = landed.try_recv().ok();
        found.is_some()
    });
    let (room, result) = found.ok_or("the message did not land")?;
    expect("length", result?, 20_000)?;
    expect("an active message", room.to_vec()?, numbers(peer, 5000))?;
    Ok(on.barrier()?)
}

/// Memory of a library with a queue of its own.
struct Foreign {
    memory: DeviceVec<u32>,
    writes: Cell<u32>,
    uses: u32,
    broken: bool,
}

impl Foreign {
    fn work(&self) -> Result<(), cableway::Error> {
        if self.broken { Err(ErrorKind::DeviceOrder("the queue is broken".to_owned()).into()) } else { Ok(()) }
    }
}

// SAFETY: the vector's memory; nothing is queued.
unsafe impl DeviceMemory for Foreign {
    type Item = u32;

    fn address(&self) -> *mut c_void {
        self.memory.as_device_ptr().cast()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn finish_writes(&self) -> Result<(), cableway::Error> {
        self.writes.set(self.writes.get() + 1);
        self.work()
    }
}

// SAFETY: as above.
unsafe impl DeviceMemoryMut for Foreign {
    fn finish_uses(&mut self) -> Result<(), cableway::Error> {
        self.uses += 1;
        self.work()
    }
}

fn foreign() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let device = world.device(device(&world)?)?;
    let foreign = |values: &[u32]| {
        device.copied(values).map(|memory| Foreign { memory, writes: Cell::new(0), uses: 0, broken: false })
    };
    let (mut out, mut inbox) = (foreign(&numbers(me, 100))?, foreign(&[0; 100])?);
    on.sendrecv(&out, (peer, 0), &mut inbox, (peer, 0))?;
    expect("a message", (inbox.memory.to_vec()?, out.writes.get(), inbox.uses), (numbers(peer, 100), 1, 1))?;
    // A part is waited for when it is made.
    on.sendrecv(&DeviceSlice::new(&out, 1..2)?, (peer, 0), &mut inbox, (peer, 0))?;
    on.allreduce(&out, &mut inbox, ReduceOperation::Sum)?;
    expect("a part and a reduction", (out.writes.get(), inbox.uses), (3, 3))?;

    // The program may queue work between the messages of a persistent operation.
    on.scope(|scope| {
        let mut sending = scope.send_init(&mut out, peer, 1)?;
        let mut receiving = scope.recv_init(&mut inbox, peer, 1)?;
        for _ in 0..3 {
            receiving.start()?;
            sending.start()?;
            sending.wait()?;
            receiving.wait()?;
        }
        Ok::<(), cableway::Error>(())
    })?;
    if out.writes.get() < 6 || inbox.uses < 6 {
        return Err(format!("persistent operations waited {} and {} times", out.writes.get(), inbox.uses).into());
    }

    // Nothing is sent from memory whose work cannot be waited for, and nothing is received into it.
    (out.broken, inbox.broken) = (true, true);
    let is_order = |error: cableway::Error| matches!(error.kind(), ErrorKind::DeviceOrder(_));
    let refused = [
        on.send(&out, peer, 2).err(),
        on.recv(&mut inbox, peer, 3).err(),
        on.allreduce_in_place(&mut inbox, ReduceOperation::Sum).err(),
        on.broadcast(&mut inbox, 0).err(),
        DeviceSlice::new(&out, 0..1).err(),
        on.scope(|scope| scope.isend(&out, peer, 2).err()),
    ];
    let count = refused.len();
    expect("refused", refused.into_iter().flatten().map(is_order).filter(|&yes| yes).count(), count)?;
    let mut last = [0_u32; 2];
    on.sendrecv(&[me, 9], (peer, 2), &mut last, (peer, 2))?;
    expect("the next message", last, [peer, 9])?;
    Ok(on.barrier()?)
}
