//! A thread that progresses messages while the program computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cableway_base::fork::Origin;
use cableway_pml::Engine;

use crate::{Error, ErrorKind};

/// Polls without an event before the thread sleeps.
const SPINS: u32 = 1000;

/// Time that the thread sleeps between polls when idle. A message waits at most so long.
const IDLE_SLEEP: Duration = Duration::from_micros(50);

/// The thread of the parameter `progress_thread`. Dropping it ends the thread.
pub(crate) struct ProgressThread {
    origin: Origin,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    pub(crate) fn start(engine: &Arc<Engine>) -> Result<Self, Error> {
        let (stop, engine) = (Arc::new(AtomicBool::new(false)), engine.clone());
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("cableway progress".into());
        let thread = cableway_base::without_signals(|| thread.spawn(move || run(&engine, &stopped)))
            .map_err(|source| ErrorKind::System { what: "starting the progress thread", source })?;
        Ok(ProgressThread { origin: Origin::here(), stop, thread: Some(thread) })
    }
}

fn run(engine: &Engine, stopped: &AtomicBool) {
    let mut idle = 0;
    while !stopped.load(Ordering::Acquire) {
        if engine.progress() > 0 {
            idle = 0;
        } else if idle < SPINS {
            idle += 1;
            std::thread::yield_now();
        } else {
            std::thread::sleep(IDLE_SLEEP);
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take();
        if !self.origin.is_here() {
            // The thread does not exist in a forked child. Joining it there would hang.
            return std::mem::forget(thread);
        }
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            log::error!("the progress thread panicked");
        }
    }
}
