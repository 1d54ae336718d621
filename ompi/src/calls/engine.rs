//! The engine's life: making it, driving it, ending it.

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
use crate::fault::{self, Point};
use crate::guard::guarded;
use crate::host::HostModex;
use crate::{host, state};

/// How long finalize waits for what was sent to leave.
const FINALIZE_LIMIT: Duration = Duration::from_secs(10);

/// # Safety
/// `job` and `reason` are valid for the call. Called once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_start(job: *const JobDescription, reason: *mut *const c_char) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe { *reason = c"an internal error".as_ptr() };
    let code = guarded(Code::Internal.refused(), || {
        // SAFETY: the caller's promise.
        let description = unsafe { &*job };
        match start(description) {
            Ok((engine, job)) => {
                state::install(engine, job);
                0
            }
            Err(error) => {
                // SAFETY: as above.
                unsafe { *reason = state::words(&error.to_string()) };
                Code::Internal.refused()
            }
        }
    });
    if code != 0 {
        guarded((), host::withdraw);
    }
    code
}

/// # Safety
/// No other call has been made since [`cableway_start`], nor is one made meanwhile.
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
    state::expect_threads(description.threads);
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
    guarded(false, || state::engine().is_some_and(|engine| engine.finalize(FINALIZE_LIMIT)))
}

/// Lets what was sent leave; the engine can be used again.
#[unsafe(no_mangle)]
extern "C" fn cableway_drain() -> bool {
    guarded(false, || state::engine().is_some_and(|engine| engine.drain(FINALIZE_LIMIT)))
}

#[unsafe(no_mangle)]
extern "C" fn cableway_progress() -> c_int {
    /// Calls in vain, one after another. Threads may miscount, which matters to nobody.
    static IDLE: AtomicU64 = AtomicU64::new(0);
    guarded(0, || {
        let Some(engine) = state::engine() else { return 0 };
        fault::point(Point::Progress);
        let events = engine.progress();
        let idle = if events == 0 { IDLE.load(Ordering::Relaxed) + 1 } else { 0 };
        IDLE.store(idle, Ordering::Relaxed);
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

/// How large the messages are that are explained.
const EXPLAINED: RangeInclusive<u64> = 1..=4 << 20;

#[unsafe(no_mangle)]
extern "C" fn cableway_explain(process: u64) {
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        let Some(peer) = state::rank_of(process) else { return };
        for note in engine.notes(peer).unwrap_or_default() {
            state::say(&note);
        }
        for (what, from, to) in [
            ("host to host", MemoryClass::Host, MemoryClass::Host),
            ("host to device", MemoryClass::Host, MemoryClass::Device),
            ("device to host", MemoryClass::Device, MemoryClass::Host),
            ("device to device", MemoryClass::Device, MemoryClass::Device),
        ] {
            let side = |class| Side { class, form: Form::Run };
            let rows = engine.explain(peer, side(from), side(to), EXPLAINED);
            match rows.and_then(|rows| Ok(Explained::table(&rows, &engine.transports(peer)?, &[]))) {
                Ok(table) => {
                    state::say(&format!("messages from {what}"));
                    table.lines().for_each(state::say);
                }
                Err(error) => state::report(&error),
            }
        }
    });
}
