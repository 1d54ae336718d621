//! A thread that moves messages while the program computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cableway_base::fork::Origin;
use cableway_pml::Engine;

use crate::{Error, ErrorKind};

/// Polls without an event before the thread takes a nap.
const SPINS: u32 = 1000;

/// How long the nap is: what a message waits at most when nothing has come for a while.
const NAP: Duration = Duration::from_micros(50);

/// The parameter `progress_thread`. Ends when dropped.
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
            std::thread::sleep(NAP);
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take();
        if !self.origin.is_here() {
            // A forked child has no such thread, so it would wait for ever.
            return std::mem::forget(thread);
        }
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            log::error!("the progress thread has panicked");
        }
    }
}
