//! Starts, progresses and stops the engine.

use std::ffi::{c_char, c_int};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cableway_btl::{Job, Modex as _};
use cableway_common_cuda::{Devices, MemoryClass};
use cableway_pml::{Communicator, Config, Engine, Explained, Form, Side};
use cableway_transports::Growth;

use crate::boundary::{Code, JobDescription};
use crate::collectives;
use crate::deferred;
use crate::fault::{self, Point};
use crate::guard::guarded;
use crate::host::HostModex;
use crate::{host, state, streams};

/// How long finalize waits for pending sends.
const FINALIZE_LIMIT: Duration = Duration::from_secs(10);

/// # Safety
/// `job` and `reason` are valid during the call. It is called only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_start(job: *const JobDescription, reason: *mut *const c_char) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe { *reason = c"an internal error".as_ptr() };
    let code = guarded(Code::Internal.negative(), || {
        // SAFETY: the caller's promise.
        let description = unsafe { &*job };
        match start(description) {
            Ok((engine, job)) => {
                state::install(engine, job);
                0
            }
            Err(error) => {
                // SAFETY: as above.
                unsafe { *reason = state::leak_c_string(&error.to_string()) };
                Code::Internal.negative()
            }
        }
    });
    if code != 0 {
        guarded((), host::withdraw);
    }
    code
}

/// # Safety
/// No other function has been called since [`cableway_start`], and none is called at the same time.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_discard() {
    guarded((), || {
        // SAFETY: the caller's promise.
        if let Some(engine) = unsafe { state::uninstall() } {
            engine.finalize(FINALIZE_LIMIT);
        }
        host::withdraw();
    });
}

fn start(description: &JobDescription) -> Result<(Arc<Engine>, Job), Box<dyn std::error::Error>> {
    state::set_multithreaded(description.threads);
    let modex = HostModex::new(description)?;
    let job = modex.job().clone();
    let parameters = Arc::new(state::parameters()?);
    let devices = Devices::open(&parameters);
    let btls = cableway_transports::open(&job, Growth::Spawns, &parameters, &devices)?;
    let config = Config { modex: Arc::new(modex), parameters, devices, btls };
    let engine = if description.threads {
        Engine::new(config)?
    } else {
        // SAFETY: Open MPI serialises its calls unless MPI_THREAD_MULTIPLE was granted.
        unsafe { Engine::new_serialized(config)? }
    };
    Ok((engine, job))
}

#[unsafe(no_mangle)]
extern "C" fn cableway_stop() -> bool {
    guarded(false, || {
        streams::stop();
        state::engine().is_some_and(|engine| engine.finalize(FINALIZE_LIMIT))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cableway_drain() -> bool {
    guarded(false, || {
        // Streams and kernels that wait go on. A later session starts another thread.
        streams::stop();
        state::engine().is_some_and(|engine| engine.drain(FINALIZE_LIMIT))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cableway_progress() -> c_int {
    /// The number of consecutive calls without events. Lost updates do no harm.
    static IDLE: AtomicU64 = AtomicU64::new(0);
    /// The number of idle calls between two looks whether the thread of streams lives.
    const LOOK_EVERY: u64 = 1024;
    guarded(0, || {
        let performed = deferred::perform();
        let Some(engine) = state::engine() else { return performed as c_int };
        fault::point(Point::Progress);
        let events = performed + engine.progress();
        let idle = if events == 0 { IDLE.load(Ordering::Relaxed) + 1 } else { 0 };
        IDLE.store(idle, Ordering::Relaxed);
        if idle != 0 && idle.is_multiple_of(LOOK_EVERY) {
            streams::check();
        }
        engine.waited(idle);
        events as c_int
    })
}

#[unsafe(no_mangle)]
extern "C" fn cableway_dump(_communicator: *const Communicator) {
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        for (name, help, value) in engine.counters().rows() {
            log::info!("{name} {value} ({help})");
        }
    });
}

/// The message sizes that are explained.
const EXPLAINED_SIZES: RangeInclusive<u64> = 1..=4 << 20;

#[unsafe(no_mangle)]
extern "C" fn cableway_explain(process: u64) {
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        collectives::explain(engine);
        let Some(peer) = state::rank_of(process) else { return };
        for note in engine.notes(peer).unwrap_or_default() {
            state::print_line(&note);
        }
        for (what, from, to) in [
            ("host to host", MemoryClass::Host, MemoryClass::Host),
            ("host to device", MemoryClass::Host, MemoryClass::Device),
            ("device to host", MemoryClass::Device, MemoryClass::Host),
            ("device to device", MemoryClass::Device, MemoryClass::Device),
        ] {
            let side = |class| Side { class, form: Form::Run };
            let rows = engine.explain(peer, side(from), side(to), EXPLAINED_SIZES);
            match rows.and_then(|rows| Ok(Explained::table(&rows, &engine.transports(peer)?, &[]))) {
                Ok(table) => {
                    state::print_line(&format!("messages from {what}"));
                    table.lines().for_each(state::print_line);
                }
                Err(error) => state::report(&error),
            }
        }
    });
}
