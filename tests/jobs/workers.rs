//! Workers: worlds of the same processes, each with its own locks and connections.

use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway::{ReduceOperation, RemoteKey, Signal, SignalUpdate, StartedBy, World};

use crate::faults;
use crate::support::{Role, Test, finish, role_job, with_every_driver};

pub(crate) const TESTS: &[Test] = &[
    ("workers::threads_use_a_worker_each", || with_every_driver(2, "workers_of_threads")),
    ("workers::workers_outlive_the_world_that_made_them", || with_every_driver(3, "workers_outlive")),
    ("workers::a_process_alone_has_workers", || {
        drop(finish(&mut role_job(1, &[], "workers_outlive")).assert_success())
    }),
    ("workers::other_threads_go_on_while_workers_are_made", || with_every_driver(2, "workers_made_late")),
    ("workers::a_rank_that_cannot_make_its_worker_is_an_error_everywhere", || {
        drop(finish(&mut role_job(3, &["--set", "btl=tcp"], "workers_without_ports")).assert_success());
    }),
    ("workers::a_rank_that_dies_ends_the_making_of_workers", || faults::every_transport("workers_die")),
];

pub(crate) const ROLES: &[Role] = &[
    ("workers_of_threads", of_threads),
    ("workers_outlive", outlive),
    ("workers_made_late", made_late),
    ("workers_without_ports", without_ports),
    ("workers_die", die),
];

type Outcome = Result<(), Box<dyn Error>>;
type InThread = Result<(), Box<dyn Error + Send + Sync>>;

fn expect<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> InThread {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}

/// Returns the content of a message of a thread of rank `from`.
fn values(from: u32, thread: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ from << 28 ^ thread << 20).collect()
}

/// Three threads use a worker each, and one uses the world that made them. All use the same tags, ids and places.
fn of_threads() -> Outcome {
    let world = World::init()?;
    let workers: Vec<_> = (0..3).map(|_| world.worker()).collect::<Result<_, _>>()?;
    expect(
        &workers.iter().map(|worker| (worker.rank(), worker.size())).collect(),
        &vec![(world.rank(), world.size()); 3],
    )
    .map_err(|error| error.to_string())?;
    std::thread::scope(|threads| {
        let of_workers = (1..).zip(workers).map(|(thread, own)| {
            threads.spawn(move || {
                exchange(&own, thread)?;
                // Nobody uses the worker after this, so its last messages leave here.
                expect(&own.finalize(), &true)
            })
        });
        let running: Vec<_> = of_workers.collect();
        exchange(&world, 0)?;
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
    .map_err(|error| error.to_string())?;
    Ok(world.communicator().barrier()?)
}

/// Messages, a collective, active messages, and puts with a signal, in host memory and, if there is a device, in its memory.
fn exchange(world: &World, thread: u32) -> InThread {
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for len in [0, 2, 1000, 20_000, 300_000] {
        let mut inbox = vec![0; len];
        on.sendrecv(&values(me, thread, len), (peer, 5), &mut inbox, (peer, 5))?;
        expect(&inbox, &values(peer, thread, len))?;
    }
    let mut sum = [u64::from(me + thread)];
    on.allreduce_in_place(&mut sum, ReduceOperation::Sum)?;
    expect(&sum[0], &u64::from(2 * thread + 1))?;

    let landed = Arc::new(AtomicU64::new(0));
    let counted = landed.clone();
    world.am_handler(1, move |message| {
        let word = message.header().first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        counted.fetch_add(word, Ordering::Relaxed);
    })?;
    on.barrier()?;
    for _ in 0..100 {
        world.post_am(peer, 1, &u64::from(thread + 1).to_le_bytes(), Vec::<u8>::new())?;
    }
    world.progress_until(|| landed.load(Ordering::Relaxed) >= 100 * u64::from(thread + 1));
    on.barrier()?;
    expect(&landed.load(Ordering::Relaxed), &(100 * u64::from(thread + 1)))?;

    let memory = world.register(vec![0_u32; 1000])?;
    let signal = world.register(world.shared_vec::<u64>(1)?)?;
    let mut keys = [RemoteKey::default(); 4];
    on.allgather(&[*memory.key(), *signal.key()], &mut keys)?;
    let at = Signal { at: keys[2 * peer as usize + 1].at(0), update: SignalUpdate::Add(1) };
    on.put_signal(&values(me, thread, 1000), keys[2 * peer as usize].at(0), at)?;
    signal.wait_until(0, peer, |word| word == 1)?;
    on.barrier()?;
    expect(&memory.into_memory(), &values(peer, thread, 1000))?;
    drop(signal);
    on_device(world, thread)?;
    // The end of a registration waits for the peer, which hears of it only in calls of this worker.
    Ok(on.barrier()?)
}

/// Messages of device memory, whose mappings every worker of this process has for itself.
fn on_device(world: &World, thread: u32) -> InThread {
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    if world.devices().initialise().is_err() {
        return Ok(());
    }
    let device = world.device(me % world.devices().facts()?.devices.len() as u32)?;
    for len in [2, 1000, 20_000, 300_000] {
        let out = device.copied(&values(me, thread, len))?;
        let mut inbox = device.zeroed::<u32>(len)?;
        on.sendrecv(&out, (peer, 5), &mut inbox, (peer, 5))?;
        expect(&inbox.to_vec()?, &values(peer, thread, len))?;
    }
    let memory = world.register(device.zeroed::<u32>(1000)?)?;
    let mut keys = [RemoteKey::default(); 2];
    on.allgather(&[*memory.key()], &mut keys)?;
    on.put(&device.copied(&values(me, thread, 1000))?, keys[peer as usize].at(0))?;
    on.flush(peer)?;
    on.barrier()?;
    expect(&memory.into_memory().to_vec()?, &values(peer, thread, 1000))
}

/// The world goes, and its worker makes another one, which has messages in flight as it goes.
fn outlive() -> Outcome {
    let world = World::init()?;
    let worker = world.worker()?;
    if !world.finalize() {
        return Err("the world had messages left".into());
    }
    let next = worker.worker()?;
    let (on, me, size) = (next.communicator(), next.rank(), next.size());
    for len in [1, 50_000] {
        let mut inbox = vec![0; len];
        let (to, from) = ((me + 1) % size, (me + size - 1) % size);
        on.sendrecv(&values(me, 0, len), (to, 0), &mut inbox, (from, 0))?;
        expect(&inbox, &values(from, 0, len)).map_err(|error| error.to_string())?;
    }
    // Nobody uses it after this, so its last messages leave here.
    expect(&next.finalize(), &true).map_err(|error| error.to_string())?;
    let mut sum = [1_u32];
    worker.communicator().allreduce_in_place(&mut sum, ReduceOperation::Sum)?;
    Ok(expect(&sum[0], &size).map_err(|error| error.to_string())?)
}

/// A rank makes workers only after it has got a message that another thread of the peer sends while the peer makes them.
fn made_late() -> Outcome {
    let world = World::init()?;
    let separate = world.communicator().dup()?;
    let made = if world.rank() == 0 {
        std::thread::scope(|threads| {
            let sent = threads.spawn(|| separate.ssend(&values(0, 0, 100_000), 1, 0));
            let made = world.worker();
            sent.join().unwrap_or(Ok(()))?;
            made
        })?
    } else {
        let mut inbox = vec![0; 100_000];
        separate.recv(&mut inbox, 0, 0)?;
        expect(&inbox, &values(0, 0, 100_000)).map_err(|error| error.to_string())?;
        world.worker()?
    };
    Ok(made.communicator().barrier()?)
}

/// Rank 1 has one port, which its world takes. Nobody gets a worker, and the world goes on.
fn without_ports() -> Outcome {
    let mut options = World::options()?;
    if StartedBy::detect() == StartedBy::Cableway && std::env::var("CABLEWAY_JOB_RANK")? == "1" {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        options = options.set("btl_tcp_port_min", &port.to_string())?.set("btl_tcp_port_range", "1")?;
    }
    let world = options.init()?;
    let expected = if world.rank() == 1 { "port" } else { "rank 1 cannot make its worker" };
    for _ in 0..2 {
        match world.worker() {
            Ok(_) => return Err("a worker was made without a port".into()),
            Err(error) if error.to_string().contains(expected) => {}
            Err(error) => return Err(format!("'{error}' in place of '{expected}'").into()),
        }
        let mut sum = [1_u32];
        world.communicator().allreduce_in_place(&mut sum, ReduceOperation::Sum)?;
        expect(&sum[0], &3).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Rank 1 dies before it makes a worker with the others.
fn die() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    if world.rank() == 1 {
        for other in [0, 2] {
            on.recv(&mut [0_u8], other, 0)?;
        }
        return faults::kill_myself();
    }
    // The others are connected to it, and wait for nothing of it before they make a worker.
    on.send(&[0_u8], 1, 0)?;
    faults::others_go_on(on)?;
    faults::fails_soon("making a worker", || world.worker().map(drop))?;
    faults::others_go_on(on)?;
    faults::survived()
}
