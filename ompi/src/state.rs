//! The state of this process: the engine, the parameters and the log.

use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use cableway_base::{ParameterError, Parameters, Source};
use cableway_btl::{Job, Rank};
use cableway_pml::{Engine, Error};
use parking_lot::Mutex;

/// The engine, or null. It is leaked, so that callers on any thread use it without counting references.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
static JOB: OnceLock<Job> = OnceLock::new();
static PARAMETERS: LazyLock<Mutex<Result<Parameters, ParameterError>>> =
    LazyLock::new(|| Mutex::new(Parameters::from_environment()));

/// Returns the engine. There is none before it starts, and after a panic in it.
#[inline]
pub(crate) fn engine() -> Option<&'static Engine> {
    // SAFETY: null, or an engine that `install` leaked.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

pub(crate) fn install(engine: Arc<Engine>, job: Job) {
    let _ = JOB.set(job);
    ENGINE.store(Arc::into_raw(engine).cast_mut(), Ordering::Release);
}

/// Takes the engine out, so that the caller can drop it.
///
/// # Safety
/// No reference from [`engine`] exists, and [`engine`] is not called during this call.
pub(crate) unsafe fn uninstall() -> Option<Arc<Engine>> {
    let engine = ENGINE.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: it is not null, so it is from `install`. The swap takes it out only once.
    (!engine.is_null()).then(|| unsafe { Arc::from_raw(engine) })
}

/// Returns the engine's rank of a process, given by its name in Open MPI.
pub(crate) fn rank_of(name: u64) -> Option<Rank> {
    JOB.get()?.rank_of(name)
}

/// Disables the engine without dropping it, and returns whether there was one.
pub(crate) fn disable() -> bool {
    !ENGINE.swap(std::ptr::null_mut(), Ordering::AcqRel).is_null()
}

/// Logs an error. Open MPI only gets a code.
pub(crate) fn report(error: &Error) {
    match error {
        // The program freed a communicator with pending operations.
        Error::CommunicatorRemoved { .. } => log::debug!("{error}"),
        _ => log::warn!("{error}"),
    }
}

/// Returns the parameters as set by the environment and by MCA parameters.
pub(crate) fn parameters() -> Result<Parameters, ParameterError> {
    PARAMETERS.lock().clone()
}

pub(crate) fn set_parameter(name: &str, value: &str) -> Result<(), ParameterError> {
    match &mut *PARAMETERS.lock() {
        Ok(parameters) => parameters.set(name, value, Source::CommandLine),
        Err(error) => Err(error.clone()),
    }
}

/// Returns the rows of the parameter table as C strings: name, value and help.
pub(crate) fn parameter_rows() -> &'static [[CString; 3]] {
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

/// Prints one line for the user, whatever the log level.
pub(crate) fn print_line(line: &str) {
    if let Ok(line) = CString::new(line) {
        // SAFETY: a valid string for the call.
        unsafe { shim_log(line.as_ptr()) }
    }
}

/// Writes the log to Open MPI's output.
struct HostLog;

impl log::Log for HostLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            print_line(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Starts the log. The environment variable `CABLEWAY_LOG` (off, error, warn, info, debug, trace) overrides
/// `verbosity`, the value of the parameter `verbose`.
pub(crate) fn start_log(verbosity: i32) {
    let level = std::env::var("CABLEWAY_LOG").ok().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(match verbosity {
        ..=0 => log::LevelFilter::Warn,
        1..10 => log::LevelFilter::Info,
        10..100 => log::LevelFilter::Debug,
        100.. => log::LevelFilter::Trace,
    });
    // A logger that was set before stays.
    let _ = log::set_logger(&HostLog);
    log::set_max_level(level);
}

/// Leaks a C string. The strings are few: names of counters, and errors that end the start.
pub(crate) fn leak_c_string(text: &str) -> *const c_char {
    CString::new(text.replace('\0', "")).unwrap_or_default().into_raw()
}

/// Whether MPI_THREAD_MULTIPLE was granted, or streams have a thread.
static MULTITHREADED: AtomicBool = AtomicBool::new(false);

/// Sets whether several threads may call at the same time: at the start, and before the thread of streams starts.
pub(crate) fn set_multithreaded(several: bool) {
    MULTITHREADED.store(several, Ordering::Relaxed);
}

/// Returns whether several threads may call at the same time.
#[inline(always)]
pub(crate) fn is_multithreaded() -> bool {
    MULTITHREADED.load(Ordering::Relaxed)
}
