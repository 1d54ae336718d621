//! The process as a member of its job.

use std::ffi::{c_char, c_int};
use std::io::Write;

use crate::arguments::{self, Out};
use crate::code::{Code, Failure};
use crate::communicator::Communicator;
use crate::handle::{Handle, Named, free};
use crate::outcome::guard;

/// The process as a member of its job, and the communicator of all processes.
pub(crate) struct World {
    world: cableway::World,
    everyone: Box<Handle<Communicator>>,
}

impl Named for World {
    const TAG: u64 = 0x7b4f_c1d6_0000_301d;
    const NAME: &'static str = "world";
}

impl World {
    fn own(world: cableway::World) -> *mut Handle<World> {
        let everyone = Handle::new(Communicator::of_world(world.communicator()));
        Box::into_raw(Handle::new(World { world, everyone }))
    }

    pub(crate) fn world(&self) -> &cableway::World {
        &self.world
    }

    pub(crate) fn devices(&self) -> &cableway::Devices {
        self.world.devices()
    }
}

/// `cableway_parameter`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Parameter {
    name: *const c_char,
    value: *const c_char,
}

/// Joins the job.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_init(
    parameters: *const Parameter,
    count: usize,
    world: *mut *mut Handle<World>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(world, "the place for the world")?;
        let mut options = cableway::World::options()?;
        for &Parameter { name, value } in arguments::array(parameters, count, "the array of parameters")? {
            let name = arguments::text(name, "the name of a parameter")?;
            options = options.set(name, arguments::text(value, "the value of a parameter")?)?;
        }
        log_to_stderr();
        place.set(World::own(options.init()?));
        Ok(())
    })
}

/// Another world of the same processes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_worker(world: *mut Handle<World>, worker: *mut *mut Handle<World>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(worker, "the place for the worker")?;
        place.set(World::own(Handle::get(world)?.world.worker()?));
        Ok(())
    })
}

/// Has warnings written to the standard error output, or what `CABLEWAY_LOG` selects, as the command does.
fn log_to_stderr() {
    let environment = env_logger::Env::new().filter_or("CABLEWAY_LOG", "warn");
    let mut builder = env_logger::Builder::from_env(environment);
    builder.format(|out, record| {
        writeln!(out, "cableway: {}: {}", record.level().as_str().to_ascii_lowercase(), record.args())
    });
    // It fails if an earlier call has done it.
    let _ = builder.try_init();
}

/// Leaves the job.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_finalize(world: *mut *mut Handle<World>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let mut all_handed_over = true;
        free(world, |World { world, everyone }: World| {
            all_handed_over = world.finalize();
            drop(everyone);
        })?;
        match all_handed_over {
            true => Ok(()),
            false => Err(Failure::new(
                Code::ErrUnfinished,
                "left the job before all sent messages were handed over: receive them, or raise peer_timeout",
            )),
        }
    })
}

/// The communicator of all processes of the job, which belongs to the world.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_world_communicator(
    world: *mut Handle<World>,
    everyone: *mut *mut Handle<Communicator>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(everyone, "the place for the communicator")?;
        place.set((&raw const *Handle::get(world)?.everyone).cast_mut());
        Ok(())
    })
}

/// The number of processes of the job on this node.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_local_size(world: *mut Handle<World>, size: *mut c_int) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(size, "the place for the size")?;
        place.set(Handle::get(world)?.world.local_size().cast_signed());
        Ok(())
    })
}

/// Progresses messages without waiting.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_progress(world: *mut Handle<World>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        Handle::get(world)?.world.progress();
        Ok(())
    })
}

/// The value of a counter.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_counter(world: *mut Handle<World>, name: *const c_char, value: *mut u64) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(value, "the place for the value")?;
        let (world, name) = (Handle::get(world)?, arguments::text(name, "the name of the counter")?);
        let rows = world.world.counters().rows();
        let found = rows.iter().find(|(known, ..)| *known == name);
        let known = || rows.iter().map(|(known, ..)| *known).collect::<Vec<_>>().join(", ");
        let &(.., count) =
            found.ok_or_else(|| Failure::argument(format!("there is no counter '{name}'; they are {}", known())))?;
        place.set(count);
        Ok(())
    })
}
