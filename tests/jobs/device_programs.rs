//! What CUDA programs do around their messages: one device for each rank, their own streams, exhausted memory.

#[path = "../../common-cuda/tests/common/app.rs"]
pub(crate) mod app;

use std::error::Error;

use app::App;
use cableway::{Communicator, RawBuffer, World};

use crate::device_copy::{direct, run, told};
use crate::support::{Driver, Role, Test, finish, role_job, shell_job, skip, this, transports};

pub(crate) const TESTS: &[Test] = &[
    ("device_programs::ranks_that_see_one_device_each_copy_directly", each_rank_sees_one_device_alone),
    ("device_programs::programs_may_use_their_own_streams", streams_of_the_programs_own),
    ("device_programs::messages_pass_without_free_device_memory", device_memory_used_up),
];

pub(crate) const ROLES: &[Role] =
    &[("device_count", device_count), ("device_own_streams", own_streams), ("device_memory_full", memory_full)];

type Outcome = Result<(), Box<dyn Error>>;

/// Sizes for a copy engine and for staging, eager and not.
const SIZES: [usize; 3] = [8, 60_000, 3 << 20];

/// `CUDA_VISIBLE_DEVICES` differs by rank, as launchers set it. So every rank has a device 0.
fn each_rank_sees_one_device_alone() {
    let folder = Driver::find().folder;
    if told(&run(1, &[], &[], "device_count").assert_success(), "devices ") < 2 {
        return skip("there is one device");
    }
    let [program, role] = this("device_exchange");
    let script = r#"export CUDA_VISIBLE_DEVICES=$((CABLEWAY_JOB_RANK % 2)); exec "$0" "$1""#;
    for ranks in [2, 3] {
        let options = [crate::support::libdir_option(), folder.to_str().expect("a folder"), "--set", "btl=sm"];
        let finished = finish(shell_job(ranks, &options, script).args([&program, &role])).assert_success();
        let direct = direct(&finished);
        assert!(direct > 0, "{ranks} ranks that see one device each map no memory of each other");
    }
}

fn streams_of_the_programs_own() {
    over_every_transport("device_own_streams", &[]);
}

/// Cableway cannot allocate anything more, such as scratch memory.
fn device_memory_used_up() {
    over_every_transport("device_memory_full", &[("SIM_CUDA_MEMORY", "64M")]);
}

fn over_every_transport(role: &str, variables: &[(&str, &str)]) {
    let folder = Driver::find().folder;
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        let options = [crate::support::libdir_option(), folder.to_str().expect("a folder"), "--set", &btl];
        finish(role_job(2, &options, role).envs(variables.iter().copied())).assert_success();
    }
}

fn device_count() -> Outcome {
    let world = World::init()?;
    world.devices().initialise()?;
    println!("devices {}", world.devices().facts()?.devices.len());
    Ok(())
}

/// Returns the program's side of the driver, with the primary context of the rank's device current.
fn program(world: &World) -> Result<App, Box<dyn Error>> {
    world.devices().initialise()?;
    let folder = std::env::var_os(sim_cuda::Vendor::tested().variable()).ok_or("the job names no driver")?;
    let app = App::load(Some(folder.as_ref())).ok_or("no driver")?;
    app.use_device((world.rank() % app.device_count()).try_into()?);
    Ok(app)
}

fn send(on: &Communicator, address: u64, len: usize, peer: u32) -> Outcome {
    // SAFETY: the callers' memory has `len` bytes, and nobody writes it before the send returns.
    Ok(on.send(&unsafe { RawBuffer::new(address as *mut _, len as u64) }, peer, 0)?)
}

fn receive(on: &Communicator, address: u64, len: usize, peer: u32) -> Outcome {
    // SAFETY: the callers' memory has `len` bytes, and nobody touches it before the receive returns.
    on.recv(&mut unsafe { RawBuffer::new(address as *mut _, len as u64) }, peer, 0)?;
    Ok(())
}

/// Rank 0 writes its data in a stream and synchronizes it. Rank 1 uses the data in another stream at once. The streams
/// are first non-blocking ones, then per-thread default streams (`--default-stream per-thread`).
fn own_streams() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let app = program(&world)?;
    let non_blocking = app.stream(app::NON_BLOCKING_STREAM);
    for stream in [non_blocking, app::PER_THREAD_STREAM] {
        for len in SIZES {
            let (buffer, copied) = (app.malloc(len), app.malloc(len));
            for round in 1..=10 {
                let value = round * 3 + len as u8;
                let called = |result: Result<(), i32>| result.map_err(|code| format!("the driver answered {code}"));
                if me == 0 {
                    called(app.cuMemsetD8Async(buffer, value, len, stream))?;
                    called(app.cuStreamSynchronize(stream))?;
                    send(on, buffer, len, peer)?;
                } else {
                    receive(on, buffer, len, peer)?;
                    called(app.cuMemcpyAsync(copied, buffer, len, stream))?;
                    called(app.cuStreamSynchronize(stream))?;
                    let found = app.download(copied, len);
                    if let Some(at) = found.iter().position(|byte| *byte != value) {
                        return Err(format!("byte {at} of {len}: {} instead of {value}", found[at]).into());
                    }
                }
            }
        }
    }
    Ok(on.barrier()?)
}

/// Both ranks use up their device's memory after the first messages, so the driver cannot create streams any more.
fn memory_full() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let app = program(&world)?;
    let buffers = SIZES.map(|len| app.malloc(len));
    let exchange = |rounds: std::ops::Range<usize>| -> Outcome {
        for (buffer, len) in buffers.into_iter().zip(SIZES) {
            for round in rounds.clone() {
                let message: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
                if me == 0 {
                    app.upload(buffer, &message);
                    send(on, buffer, len, peer)?;
                } else {
                    receive(on, buffer, len, peer)?;
                    if app.download(buffer, len) != message {
                        return Err(format!("{len} bytes, round {round}: other bytes than were sent").into());
                    }
                }
            }
        }
        Ok(on.barrier()?)
    };
    exchange(0..1)?;
    let mut left = 64_usize << 30;
    while left >= 512 {
        let mut address = 0;
        if app.cuMemAlloc(&raw mut address, left).is_err() {
            left /= 2;
        }
    }
    on.barrier()?;
    exchange(1..10)
}
