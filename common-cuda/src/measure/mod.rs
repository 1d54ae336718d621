//! When costs are read and measured: the first time that a context of a device is seen.
//!
//! A file is read at once. A background thread measures the rows that the file lacks. It begins once the context's default
//! stream is idle, and holds the lock of the node, so that two ranks do not disturb each other's figures. A process
//! without the lock reads the file that the other one has written, or keeps the estimates. The thread ends when all rows
//! are measured, when it gives up, and at [`Keeper::stop`].

mod bench;
mod halt;
mod key;
mod rows;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use cableway_base::Parameters;
use cableway_base::parameters::CostSource;
use parking_lot::Mutex;

use self::halt::Halt;
use crate::context::Primary;
use crate::copies::CopyQueue;
use crate::costs::folder::Folder;
use crate::costs::text::{self, Content, Key};
use crate::costs::{CostOrigin, CostReport, Costs, DeviceCosts};
use crate::driver::Driver;
use crate::location::DeviceIndex;
use crate::mapping_gate::Gate;

/// The time to wait for an idle default stream and for measurements by other processes before this process gives up.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval between two checks. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Reads and measures costs.
pub(crate) struct Keeper {
    pub(crate) costs: Arc<Costs>,
    pub(crate) gate: Arc<Gate>,
    source: CostSource,
    /// `None` if costs are not kept.
    folder: Option<Folder>,
    /// True if the parameter names the folder.
    folder_named: bool,
    kernels: bool,
    /// The devices that were used, one bit each.
    met: AtomicU32,
    halt: Arc<Halt>,
    threads: Mutex<Vec<(u32, JoinHandle<()>)>>,
}

impl Keeper {
    pub(crate) fn new(parameters: &Parameters, kernels: bool, costs: Arc<Costs>, gate: Arc<Gate>) -> Self {
        Keeper {
            costs,
            gate,
            source: parameters.costs,
            folder: Folder::new(&parameters.costs_folder),
            folder_named: !parameters.costs_folder.is_empty(),
            kernels,
            met: AtomicU32::new(0),
            halt: Arc::default(),
            threads: Mutex::default(),
        }
    }

    /// Returns the folder to search, or the reason why there is none.
    fn folder(&self, driver: &dyn Driver) -> Result<&Folder, &'static str> {
        match &self.folder {
            _ if self.source == CostSource::Default => Err("costs=default"),
            None => Err("neither costs_folder, XDG_CACHE_HOME nor HOME names a folder for them"),
            // The figures describe no real device, and do not belong into a user's folder.
            Some(_) if driver.library().simulated && !self.folder_named => Err("the driver is a simulated one"),
            Some(folder) => Ok(folder),
        }
    }

    /// Handles the first use of a context of a device.
    pub(crate) fn met(&self, queue: &Arc<CopyQueue>) {
        let context = &queue.workspace.context;
        let driver = context.driver;
        let Ok(folder) = self.folder(driver) else { return };
        let device = context.enter().and_then(|_scope| driver.current_device());
        let Ok(device) = device else { return };
        queue.workspace.known_as(device);
        if !self.is_first(device) {
            return;
        }
        let Ok(key) = key::of(driver, device) else { return };
        let found = folder.read(&key).map(|content| content.costs);
        let no_more = self.source == CostSource::Cached || self.halt.is_halted();
        let all = found.as_ref().is_some_and(|costs| self.is_all(&key, costs));
        // The program may destroy any other context while the thread is within a call.
        let retained = if no_more || all { None } else { Primary::if_it_is(driver, device, context.id) };
        let Some(retained) = retained else {
            self.costs.set(device, found.unwrap_or_default());
            return;
        };
        let (queue, folder) = (queue.clone(), folder.clone());
        let gate = self.gate.clone();
        let work = Work { queue, _retained: retained, device, key, folder, kernels: self.kernels, gate };
        let (halt, costs) = (self.halt.clone(), self.costs.clone());
        let run = move || {
            let known = work.final_costs(&halt);
            costs.set(device, known.or(found).unwrap_or_default());
        };
        let thread = std::thread::Builder::new().name("cableway-costs".to_owned());
        match cableway_base::without_signals(|| thread.spawn(run)) {
            Ok(thread) => self.threads.lock().push((std::process::id(), thread)),
            Err(error) => log::info!("the costs of copies are not measured: no thread: {error}"),
        }
    }

    fn is_first(&self, device: DeviceIndex) -> bool {
        let bit = 1_u32.checked_shl(device.0);
        bit.is_some_and(|bit| self.met.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    fn is_all(&self, key: &Key, costs: &DeviceCosts) -> bool {
        is_all(key, costs, self.kernels)
    }

    /// Reads the stored costs of a device for a report.
    pub(crate) fn report(&self, driver: &dyn Driver, device: DeviceIndex) -> CostReport {
        let read = || {
            let folder = self.folder(driver)?;
            let key = key::of(driver, device).map_err(|_| "the driver does not report the device's identity")?;
            let content = folder.read(&key).ok_or("nothing was measured yet")?;
            Ok::<_, &str>((folder.file(&key), content))
        };
        let origin = match read() {
            Ok((path, Content { measured, costs })) => {
                self.costs.set(device, costs);
                CostOrigin::File { path, measured }
            }
            Err(reason) => CostOrigin::Default(reason.to_owned()),
        };
        // Only this process knows which operations the driver refused here.
        CostReport { device, origin, costs: self.costs.of(device).cloned().unwrap_or_default() }
    }

    /// Waits until all measurements are complete or have been given up.
    pub(crate) fn settle(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        let own = std::process::id();
        // A child process has none of its parent's threads.
        for (_, thread) in threads.into_iter().filter(|(process, _)| *process == own) {
            let _ = thread.join();
        }
    }

    /// Stops measurements that are in progress.
    pub(crate) fn stop(&self) {
        self.halt.halt();
        self.settle();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Checks whether nothing is left to measure.
fn is_all(key: &Key, costs: &DeviceCosts, kernels: bool) -> bool {
    let DeviceCosts { to_host, from_host, within, call, rows_per_second, several, kernel, peers } = costs;
    let alone = to_host.is_settled()
        && from_host.is_settled()
        && within.is_settled()
        && call.is_settled()
        && rows_per_second.is_settled();
    let many = several.is_settled() && (kernel.is_settled() || !kernels);
    let settled =
        |uuid| peers.iter().any(|peer| peer.device == uuid && peer.push.is_settled() && peer.pull.is_settled());
    alone && (many || key.peers.is_empty()) && key.peers.iter().all(|(uuid, _)| settled(*uuid))
}

/// The task of the thread.
struct Work {
    /// A primary context, and the reference that keeps it active.
    queue: Arc<CopyQueue>,
    _retained: Primary,
    device: DeviceIndex,
    key: Key,
    folder: Folder,
    kernels: bool,
    gate: Arc<Gate>,
}

impl Work {
    /// Returns the final costs of the device; `None` if there are no new ones.
    fn final_costs(&self, halt: &Halt) -> Option<DeviceCosts> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        while begun.elapsed() < PATIENCE {
            match self.try_once(halt) {
                Ok(Some(costs)) => return Some(costs),
                Ok(None) => {}
                Err(reason) => {
                    log::info!("the costs of copies by device {} are not measured: {reason}", self.device.0);
                    return None;
                }
            }
            if !halt.pause(pause) {
                return None;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        log::info!("device {} was never idle, so the costs of its copies are not measured", self.device.0);
        None
    }

    /// Returns `None` if it should be tried again.
    fn try_once(&self, halt: &Halt) -> Result<Option<DeviceCosts>, String> {
        // Measurements wait for streams, as mappings do.
        let Some(_measuring) = self.gate.enter() else { return Ok(None) };
        if !self.is_quiet()? {
            return Ok(None);
        }
        let refused = |error: std::io::Error| format!("{}: {error}", self.folder.file(&self.key).display());
        let Some(lock) = self.folder.try_lock().map_err(refused)? else { return Ok(None) };
        // The last holder of the lock may have just written the file.
        let kept = self.folder.read(&self.key);
        if let Some(content) = kept.as_ref().filter(|content| is_all(&self.key, &content.costs, self.kernels)) {
            return Ok(Some(content.costs.clone()));
        }
        let begun = Instant::now();
        let before = kept.map(|content| content.costs).unwrap_or_default();
        let costs = rows::measure(&self.queue.workspace, self.device, &self.key, before.clone(), self.kernels, halt);
        let took = begun.elapsed();
        if costs == before {
            return Err("nothing could be measured".to_owned());
        }
        log::debug!("device {}: the costs of copies were measured in {took:?}", self.device.0);
        let figures = costs.figures();
        if figures != before {
            let content = Content { measured: text::measured(SystemTime::now(), took), costs: figures };
            if let Err(error) = self.folder.write(&lock, &self.key, &content) {
                log::info!("the costs of copies by device {} are not kept: {}", self.device.0, refused(error));
            }
        }
        Ok(Some(costs))
    }

    /// Checks whether the default stream is idle. Returns false while a stream that synchronises with it captures.
    fn is_quiet(&self) -> Result<bool, String> {
        let workspace = &self.queue.workspace;
        let quiet = workspace.context.enter().and_then(|_scope| workspace.default_stream.is_quiet());
        quiet.map_err(|failure| workspace.context.driver.reason(failure))
    }
}
