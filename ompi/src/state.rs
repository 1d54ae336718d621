//! The one engine of this process, and what is known before it exists.

use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use cableway_base::{ParameterError, Parameters, Source};
use cableway_btl::{Job, Rank};
use cableway_pml::{Engine, Error};
use parking_lot::Mutex;

/// The engine, leaked: callers on any thread use it without counting references, and a component that Open MPI closes
/// stays loaded.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
static JOB: OnceLock<Job> = OnceLock::new();
static PARAMETERS: LazyLock<Mutex<Result<Parameters, ParameterError>>> =
    LazyLock::new(|| Mutex::new(Parameters::from_environment()));

/// The engine; none before it was made, and after a panic in it.
#[inline]
pub(crate) fn engine() -> Option<&'static Engine> {
    // SAFETY: null, or an engine that `install` leaked.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

pub(crate) fn install(engine: Arc<Engine>, job: Job) {
    let _ = JOB.set(job);
    ENGINE.store(Arc::into_raw(engine).cast_mut(), Ordering::Release);
}

/// Takes the engine out, which is dropped then.
///
/// # Safety
/// Nobody has been given a reference by [`engine`], and nobody is given one meanwhile.
pub(crate) unsafe fn uninstall() -> Option<Arc<Engine>> {
    let engine = ENGINE.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: not null, so from `install`, and taken out once.
    (!engine.is_null()).then(|| unsafe { Arc::from_raw(engine) })
}

/// The engine's number for a process that Open MPI calls so.
pub(crate) fn rank_of(name: u64) -> Option<Rank> {
    JOB.get()?.rank_of(name)
}

/// Has nobody call the engine again; whether there was one. It is not dropped.
pub(crate) fn disable() -> bool {
    !ENGINE.swap(std::ptr::null_mut(), Ordering::AcqRel).is_null()
}

/// Says what failed; the host is only told a code.
pub(crate) fn report(error: &Error) {
    match error {
        // What a program left behind in a communicator that it freed.
        Error::CommunicatorRemoved { .. } => log::debug!("{error}"),
        _ => log::warn!("{error}"),
    }
}

/// The parameters as the environment and Open MPI's variables have them.
pub(crate) fn parameters() -> Result<Parameters, ParameterError> {
    PARAMETERS.lock().clone()
}

pub(crate) fn set_parameter(name: &str, value: &str) -> Result<(), ParameterError> {
    match &mut *PARAMETERS.lock() {
        Ok(parameters) => parameters.set(name, value, Source::CommandLine),
        Err(error) => Err(error.clone()),
    }
}

/// The table's rows as C strings: name, value, help.
pub(crate) fn rows() -> &'static [[CString; 3]] {
    static ROWS: LazyLock<Vec<[CString; 3]>> = LazyLock::new(|| {
        let values = parameters().unwrap_or_default().values();
        let c = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
        Parameters::ROWS
            .iter()
            .zip(values)
            .map(|(row, (value, _))| [c(row.name), c(&value), c(&format!("{} ({})", row.help, row.kind))])
            .collect()
    });
    &ROWS
}

unsafe extern "C" {
    fn shim_log(line: *const c_char);
}

/// One line for the user, whatever the log's level.
pub(crate) fn say(line: &str) {
    if let Ok(line) = CString::new(line) {
        // SAFETY: a valid string for the call.
        unsafe { shim_log(line.as_ptr()) }
    }
}

/// Hands the stack's log to Open MPI's output: warnings, and with `CABLEWAY_LOG` (off, error, warn, info, debug) more.
struct HostLog;

impl log::Log for HostLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            say(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Verbosity is counted as the parameter `verbose` does; the variable knows better.
pub(crate) fn start_log(verbosity: i32) {
    let level = std::env::var("CABLEWAY_LOG").ok().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(match verbosity {
        ..=0 => log::LevelFilter::Warn,
        1..10 => log::LevelFilter::Info,
        10..100 => log::LevelFilter::Debug,
        100.. => log::LevelFilter::Trace,
    });
    // Whoever set one before keeps it.
    let _ = log::set_logger(&HostLog);
    log::set_max_level(level);
}

/// Text for C that stays valid. Leaked: there are few of them, and most are the last that is said.
pub(crate) fn words(text: &str) -> *const c_char {
    CString::new(text.replace('\0', "")).unwrap_or_default().into_raw()
}

/// Whether several threads may be in MPI.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// Says at the start whether several threads may call at the same time.
pub(crate) fn expect_threads(several: bool) {
    SEVERAL.store(several, Ordering::Relaxed);
}

/// Whether several threads may call at the same time.
#[inline(always)]
pub(crate) fn among_threads() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}
