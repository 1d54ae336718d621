//! The exchange of addresses over MPI, when members of a communicator change to Cableway.

use std::collections::HashMap;

use cableway_btl::published::{self, Values};
use cableway_btl::{Job, Modex, ModexError, Rank};
use parking_lot::Mutex;

/// The addresses of this process, and of those that it has met.
pub(crate) struct MpiModex {
    job: Job,
    own: Mutex<Values>,
    met: Mutex<HashMap<Rank, Values>>,
}

impl MpiModex {
    pub(crate) fn new(job: Job) -> Self {
        MpiModex { job, own: Mutex::default(), met: Mutex::default() }
    }

    /// Returns what this process tells others.
    pub(crate) fn card(&self) -> Vec<u8> {
        published::encode(&self.own.lock())
    }

    /// Takes what another process told. Returns whether it is well formed.
    pub(crate) fn meet(&self, process: Rank, bytes: &[u8]) -> bool {
        let Some(values) = published::decode(bytes) else {
            log::warn!("the addresses of process {process} are malformed: {} bytes", bytes.len());
            return false;
        };
        // A process tells the same in each communicator.
        self.met.lock().entry(process).or_insert(values);
        process < self.job.size
    }
}

impl Modex for MpiModex {
    fn job(&self) -> &Job {
        &self.job
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        self.own.lock().insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Does nothing: members exchange what they have published before they send messages.
    fn fence(&self) -> Result<(), ModexError> {
        Ok(())
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        if peer == self.job.rank {
            return Ok(self.own.lock().get(key).cloned());
        }
        Ok(self.met.lock().get(&peer).and_then(|values| values.get(key).cloned()))
    }
}
