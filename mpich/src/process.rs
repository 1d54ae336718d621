//! This process: its parameters, its devices, its job, and its engine, which starts when a communicator first needs it.

use std::ffi::{CStr, c_char, c_int};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cableway_base::{Parameters, parameters};
use cableway_btl::{Job, Modex as _};
use cableway_coll::Collectives;
use cableway_common_cuda::{Devices, HostPool};
use cableway_pml::{Config, Engine};
use cableway_transports::Growth;

use crate::boundary::{Hello, slice};
use crate::guard::{guarded, is_poisoned};
use crate::modex::MpiModex;

/// How long the end of the process waits for peers to take its messages.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What every call may need.
pub(crate) struct Process {
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) devices: Devices,
    /// Memory for host copies.
    pub(crate) pool: HostPool,
}

/// What a communicator that Cableway serves needs.
pub(crate) struct Started {
    pub(crate) engine: Arc<Engine>,
    pub(crate) collectives: Arc<Collectives>,
    pub(crate) modex: Arc<MpiModex>,
    /// What others need to know to reach this process.
    pub(crate) card: Vec<u8>,
    contexts: AtomicU32,
}

static PROCESS: OnceLock<Process> = OnceLock::new();
static JOB: OnceLock<Job> = OnceLock::new();
static STARTED: OnceLock<Option<Started>> = OnceLock::new();

/// Returns the process, after MPI_Init.
pub(crate) fn process() -> Option<&'static Process> {
    PROCESS.get()
}

/// Returns the engine and what belongs to it. There is none before a communicator needs it, if it cannot start, and after
/// a panic.
pub(crate) fn started() -> Option<&'static Started> {
    if is_poisoned() { None } else { STARTED.get()?.as_ref() }
}

/// Returns the same, and starts the engine first if it was not tried before.
pub(crate) fn start() -> Option<&'static Started> {
    STARTED.get_or_init(|| {
        let started = new_engine();
        let say = |error: &String| {
            log::warn!("the engine cannot start, so collectives on device memory go through host copies: {error}");
        };
        started.inspect_err(say).ok()
    });
    started()
}

fn new_engine() -> Result<Started, String> {
    let (Some(process), Some(job)) = (process(), JOB.get()) else { return Err("there is no job".to_owned()) };
    let Process { parameters, devices, .. } = process;
    let modex = Arc::new(MpiModex::new(job.clone()));
    // A spawned process has a job of its own, which this one never meets.
    let btls =
        cableway_transports::open(job, Growth::Spawns, parameters, devices).map_err(|error| error.to_string())?;
    let config = Config { modex: modex.clone(), parameters: parameters.clone(), devices: devices.clone(), btls };
    let engine = Engine::new(config).map_err(|error| error.to_string())?;
    let collectives = Collectives::new(engine.clone(), parameters);
    log::debug!("the engine runs: {:?}", modex.job());
    let card = modex.card();
    Ok(Started { engine, collectives, modex, card, contexts: AtomicU32::new(0) })
}

impl Started {
    /// Returns a context that no other communicator of the job has: each process counts in its own residue class modulo the
    /// size of the job. Returns 0 when the numbers are used up.
    pub(crate) fn new_context(&self) -> u32 {
        let job = self.modex.job();
        let number = self.contexts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_add(1));
        let context =
            number.ok().and_then(|number| number.checked_mul(job.size)?.checked_add(job.rank)?.checked_add(1));
        context.unwrap_or(0)
    }
}

/// # Safety
/// `hello` is valid for writes, and `processor` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_prepare(hello: *mut Hello, processor: *const c_char, rank: c_int) {
    let silent = Hello { host: 0, id: 0, secret: [0; 32], expects: 0 };
    // SAFETY: the caller's promise, here and below.
    let processor = unsafe { CStr::from_ptr(processor) };
    let mine = guarded(silent, || {
        start_log();
        let parameters = Parameters::from_environment().unwrap_or_else(|error| {
            log::warn!("{error}; the defaults are used");
            Parameters::default()
        });
        let devices = Devices::open(&parameters);
        let pool = HostPool::new(&devices, parameters.staging_limit);
        let expects = u64::from(devices.expected());
        let _ = PROCESS.set(Process { parameters: Arc::new(parameters), devices, pool });
        // The hash is the same in all processes, because its keys are.
        let mut hasher = std::hash::DefaultHasher::new();
        processor.hash(&mut hasher);
        let (id, secret) =
            if rank == 0 { (random().map(u64::from_le_bytes), random()) } else { (Some(0), Some([0; 32])) };
        match (id, secret) {
            (Some(id), Some(secret)) => Hello { host: hasher.finish(), id, secret, expects },
            // A secret that is not random proves nothing.
            _ => silent,
        }
    });
    // SAFETY: as above.
    unsafe { hello.write(mine) }
}

fn random<const LEN: usize>() -> Option<[u8; LEN]> {
    let mut bytes = [0; LEN];
    // SAFETY: the buffer is valid for its length. So few bytes are returned completely or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), LEN, 0) };
    (got == LEN as isize).then_some(bytes)
}

/// # Safety
/// `all` holds `size` valid entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_job(all: *const Hello, rank: c_int, size: c_int) {
    guarded((), || {
        let (Ok(own), Ok(size)) = (u32::try_from(rank), u32::try_from(size)) else { return };
        // SAFETY: the caller's promise.
        let all = unsafe { slice(all, size as usize) };
        let (first, mine) = (&all[0], &all[own as usize]);
        if first.secret == [0; 32] {
            log::warn!(
                "rank 0 has no random numbers for a secret, so collectives on device memory go through host copies"
            );
            return;
        }
        let here = all.iter().filter(|hello| hello.host == mine.host).count() as u32;
        let _ = JOB.set(Job::new(format!("mpich-{:016x}", first.id), first.secret, own, size, here));
    });
}

#[unsafe(no_mangle)]
extern "C" fn cableway_present() -> bool {
    guarded(false, || process().is_some_and(|process| process.devices.expected() && process.devices.present()))
}

#[unsafe(no_mangle)]
extern "C" fn cableway_stop() {
    guarded((), || {
        if let Some(started) = started()
            && !started.engine.finalize(STOP_LIMIT)
        {
            log::warn!("messages of collectives were not handed over within {STOP_LIMIT:?}");
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn cableway_performer() -> c_int {
    guarded(1, || match process().map(|process| process.parameters.coll_performer) {
        Some(parameters::Performer::Auto) => 0,
        Some(parameters::Performer::Cableway) => 2,
        Some(parameters::Performer::Mpi) | None => 1,
    })
}

#[unsafe(no_mangle)]
extern "C" fn cableway_shared_limit() -> u64 {
    guarded(u64::MAX, || process().map_or(u64::MAX, |process| process.parameters.coll_shared_limit as u64))
}

/// Writes the log to stderr.
struct Log;

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // In one piece, because ranks share the terminal. Nobody can be told that it failed.
            let line = format!("cableway: {}\n", record.args());
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Starts the log. The environment variable `CABLEWAY_LOG` names the level.
fn start_log() {
    let level = std::env::var("CABLEWAY_LOG").ok().and_then(|level| level.parse().ok());
    // A logger that the program has set stays.
    if log::set_logger(&Log).is_ok() {
        log::set_max_level(level.unwrap_or(log::LevelFilter::Warn));
    }
}
