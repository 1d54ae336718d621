//! Steps around every entry point.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver;
use crate::error::{Error, Outcome};
use crate::settings::{Fault, Settings, Which};

/// The count and the settings of one entry point.
pub(crate) struct Call {
    name: &'static str,
    count: AtomicU64,
    settings: OnceLock<CallSettings>,
}

struct CallSettings {
    faults: Vec<&'static Fault>,
    /// How much longer each call takes.
    slow: Duration,
}

impl Call {
    pub(crate) const fn new(name: &'static str) -> Self {
        Call { name, count: AtomicU64::new(0), settings: OnceLock::new() }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Runs `body`, unless this call must fail. A panic becomes `CUDA_ERROR_UNKNOWN`. Spins in a slow call, as a driver does.
    pub(crate) fn enter(&self, body: impl FnOnce() -> Outcome) -> c_int {
        let nth = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let settings = self.settings.get_or_init(|| CallSettings::of(self.name));
        if !settings.slow.is_zero() {
            let begun = Instant::now();
            while begun.elapsed() < settings.slow {
                std::hint::spin_loop();
            }
        }
        if let Some(code) = settings.fault(nth) {
            return code;
        }
        // A driver's state does not survive fork; its version does.
        if driver::is_forked_child() && self.name != "cuDriverGetVersion" {
            return Error::NOT_INITIALIZED.0;
        }
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => error.0,
            Err(_) => Error::UNKNOWN.0,
        }
    }
}

impl CallSettings {
    fn of(name: &str) -> CallSettings {
        let settings = Settings::get();
        CallSettings {
            faults: settings.faults.iter().filter(|fault| fault.name == name).collect(),
            slow: settings.slow.iter().filter(|slow| slow.0 == name).map(|slow| slow.1).sum(),
        }
    }

    fn fault(&self, nth: u64) -> Option<c_int> {
        self.faults
            .iter()
            .find(|fault| match fault.which {
                Which::Every => true,
                Which::Only(only) => nth == only,
                Which::From(from) => nth >= from,
            })
            .map(|fault| fault.code)
    }
}
