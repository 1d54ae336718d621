//! Ranks that post active messages to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_common_cuda::Devices;
use cableway_pml::{ActiveMessages, Arrival, Buffer, Error};
use parking_lot::Mutex;

use super::{Link, Ranks, space};

/// The context of active messages.
pub const CONTEXT: u32 = 7;

pub struct Active {
    pub ranks: Ranks,
    pub am: Vec<ActiveMessages>,
}

impl Active {
    pub fn new(size: u32, links: &[Link], parameters: &[(&str, &str)]) -> Self {
        Self::on(&Devices::none(), size, links, parameters)
    }

    pub fn on(devices: &Devices, size: u32, links: &[Link], parameters: &[(&str, &str)]) -> Self {
        let ranks = Ranks::on(devices, size, links, parameters, false);
        let group: Vec<u32> = (0..size).collect();
        let active = |rank: usize| ActiveMessages::new(&ranks.engines[rank], CONTEXT, group.clone(), rank as u32);
        let am = (0..size as usize).map(|rank| active(rank).unwrap()).collect();
        Active { ranks, am }
    }

    /// Posts owned data, and returns how often its completion was called, and with which error.
    pub fn post(&self, from: usize, to: u32, id: u32, header: &[u8], data: Vec<u8>) -> Result<Arc<Ended>, Error> {
        let ended = Arc::new(Ended::default());
        let buffer = Buffer::bytes(data.as_ptr(), data.len() as u64);
        let seen = ended.clone();
        // SAFETY: the completion owns the data.
        unsafe {
            self.am[from].poster().post_then(to, id, header, buffer, move |result| {
                drop(data);
                seen.end(result.err());
            })?;
        }
        Ok(ended)
    }

    /// Lets all ranks make progress until `over` returns true.
    pub fn until(&self, over: impl Fn() -> bool) {
        for _ in 0..2_000_000 {
            if over() {
                return;
            }
            for engine in &self.ranks.engines {
                engine.progress();
            }
        }
        panic!("active messages hang: {:?}", self.ranks.engines[0].counters());
    }

    /// Ends active messages and checks that nothing is left.
    pub fn finish(self) {
        self.ranks.settle();
        for am in &self.am {
            assert_eq!(am.poster().pending(), 0);
            am.close();
        }
        assert_eq!(self.ranks.net.registered() + self.ranks.net.fragments(), 0);
        self.ranks.finalize();
    }
}

/// How often a completion was called, and with which error the last time.
#[derive(Default)]
pub struct Ended {
    calls: AtomicUsize,
    error: Mutex<Option<Error>>,
}

impl Ended {
    pub fn end(&self, error: Option<Error>) {
        *self.error.lock() = error;
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub fn error(&self) -> Option<Error> {
        self.error.lock().clone()
    }
}

/// What a handler has received: source, header and data of each message, in the order of completion.
pub type Received = Arc<Mutex<Vec<(u32, Vec<u8>, Result<Vec<u8>, Error>)>>>;

/// Receives the data of a message into host memory of `capacity` bytes.
pub fn keep(arrival: Arrival<'_>, capacity: usize, received: &Received) {
    let (source, header, received) = (arrival.source(), arrival.header().to_vec(), received.clone());
    let mut memory = vec![0xee; capacity];
    let buffer = space(&mut memory);
    // SAFETY: the completion owns the memory.
    unsafe {
        arrival.receive(buffer, move |result| {
            let result = result.map(|len| {
                memory.truncate(len as usize);
                memory
            });
            received.lock().push((source, header, result));
        });
    }
}

/// Returns a handler that receives the data of each message into host memory.
pub fn keeper(received: &Received) -> impl Fn(Arrival<'_>) + Send + Sync + 'static {
    let received = received.clone();
    move |arrival| {
        let capacity = arrival.len() as usize;
        keep(arrival, capacity, &received);
    }
}
