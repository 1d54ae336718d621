//! Workers: further worlds of the same processes, so that threads share neither locks nor connections.

use std::sync::{Arc, OnceLock};

use cableway_base::Rank;
use cableway_btl::published::{self, Values};
use cableway_btl::{Job, Modex, ModexError};
use parking_lot::Mutex;

use crate::communicator::Communicator;
use crate::inner::Seat;
use crate::world::World;
use crate::{Error, Parts};

impl World {
    /// Makes another world of the same processes, with the same ranks and parameters, and with locks and connections of its
    /// own. For messages in host memory a thread that uses its own worker never waits for threads that use others, so rates of
    /// small messages grow with the number of threads. Workers share what the process knows of devices, and its streams for
    /// copies. UCX has workers for this, and LCI has devices. Collective on [`communicator`](Self::communicator).
    ///
    /// Communicators, registrations, remote keys and handlers belong to the worker that made them. Nothing orders messages of
    /// one worker after those of another one. A worker may outlive the world that made it.
    ///
    /// Messages of a worker progress only while a thread is in a call of this worker, or if the parameter `progress_thread`
    /// gives it a thread. So [`finalize`](Self::finalize) a worker that no thread uses any more: a message that a call has
    /// accepted may leave in a later call. And end registrations before the last collective call on a worker: their end waits
    /// for peers, which hear of it in calls of their worker.
    ///
    /// This takes a few milliseconds. Each worker has its own shared memory and its own sockets, and connects to a peer at the
    /// first message.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let workers: Vec<_> = (0..4).map(|_| world.worker()).collect::<Result<_, _>>()?;
    /// std::thread::scope(|threads| {
    ///     for worker in &workers {
    ///         // Each thread receives from the thread of the same number in the rank below.
    ///         threads.spawn(move || {
    ///             let (on, rank, size) = (worker.communicator(), worker.rank(), worker.size());
    ///             let mut from = [0];
    ///             on.sendrecv(&[rank], ((rank + 1) % size, 0), &mut from, ((rank + size - 1) % size, 0))
    ///         });
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A rank failed, or one of them cannot open a transport. Then no rank gets a worker.
    pub fn worker(&self) -> Result<World, Error> {
        let inner = self.inner();
        let job = inner.modex.job().part(&inner.number_of_next_worker().to_string());
        let exchange = Arc::new(Exchange {
            job,
            parent: inner.modex.clone(),
            carrier: Mutex::new(Some(self.communicator().clone())),
            own: Mutex::default(),
            all: OnceLock::new(),
            failure: Mutex::default(),
        });
        let (parameters, devices) = (inner.parameters.clone(), self.devices().clone());
        let joined = World::join(Seat { modex: exchange.clone(), parameters, devices });
        joined.map_err(|error| {
            exchange.give_up();
            exchange.failure.lock().take().unwrap_or(error)
        })
    }
}

/// In place of the length of its values, from a rank that cannot make its worker.
const GAVE_UP: u64 = u64::MAX;

/// Exchanges the addresses of workers over the world that makes them. Its messages progress meanwhile, and the launcher is not
/// asked, which would make the other threads of this process wait.
struct Exchange {
    job: Job,
    parent: Arc<dyn Modex>,
    /// Dropped by the fence, because the worker may outlive it.
    carrier: Mutex<Option<Communicator>>,
    own: Mutex<Values>,
    /// The values of all ranks.
    all: OnceLock<Vec<Values>>,
    /// The failure of a message, which says more than the error of a fence can.
    failure: Mutex<Option<Error>>,
}

impl Modex for Exchange {
    fn job(&self) -> &Job {
        &self.job
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        self.own.lock().insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&self) -> Result<(), ModexError> {
        let failed = |reason: String| ModexError { what: "exchanging the addresses of workers".into(), reason };
        let carrier = self.carrier.lock().take();
        let carrier = carrier.ok_or_else(|| failed("they have been exchanged before".into()))?;
        let mine = published::encode(&self.own.lock());
        let noted = |error: Error| {
            let reason = error.to_string();
            *self.failure.lock() = Some(error);
            failed(reason)
        };
        let lens = lengths(&carrier, mine.len() as u64).map_err(noted)?;
        if let Some(rank) = lens.iter().position(|len| *len == GAVE_UP) {
            return Err(failed(format!("rank {rank} cannot make its worker; its error says why")));
        }
        let lens: Vec<usize> = lens.into_iter().map(|len| len as usize).collect();
        let mut bytes = vec![0_u8; lens.iter().sum()];
        carrier.allgatherv(&mine, &mut bytes, Parts::new(&lens)).map_err(noted)?;
        let mut rest = &bytes[..];
        let each = lens.into_iter().map(|len| {
            let (own, others) = rest.split_at_checked(len)?;
            rest = others;
            published::decode(own)
        });
        let all = each.collect::<Option<Vec<_>>>().ok_or_else(|| failed("a rank sent malformed values".into()))?;
        // Set once: the carrier was here.
        self.all.get_or_init(|| all);
        Ok(())
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        let values = self.all.get().and_then(|all| all.get(peer as usize));
        let values = values.ok_or_else(|| ModexError {
            what: format!("reading '{key}' of rank {peer}"),
            reason: format!("this worker knows {} ranks", self.all.get().map_or(0, Vec::len)),
        })?;
        Ok(values.get(key).cloned())
    }

    fn refusal(&self, peer: Rank) -> Result<Option<String>, ModexError> {
        self.parent.refusal(peer)
    }
}

impl Exchange {
    /// Tells the other ranks that this one cannot make its worker, unless addresses have been exchanged. They wait for it.
    fn give_up(&self) {
        if let Some(carrier) = self.carrier.lock().take()
            && let Err(error) = lengths(&carrier, GAVE_UP)
        {
            log::debug!("not every rank knows that this one makes no worker: {error}");
        }
    }
}

/// Gathers the length of what each rank publishes.
fn lengths(on: &Communicator, mine: u64) -> Result<Vec<u64>, Error> {
    let mut lens = vec![0; on.size() as usize];
    on.allgather(&[mine], &mut lens)?;
    Ok(lens)
}
