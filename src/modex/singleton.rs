//! A job of one process, which needs no launcher.

use std::collections::HashMap;

use cableway_base::Rank;
use cableway_btl::{Job, Modex, ModexError};
use parking_lot::Mutex;

use super::support::{modex_error, random_job_id, random_secret};

pub(super) struct Singleton {
    job: Job,
    values: Mutex<HashMap<String, Vec<u8>>>,
}

impl Singleton {
    pub(super) fn new() -> Result<Self, ModexError> {
        let failed = |error| modex_error("naming a job of one process", error);
        let job = Job::new(random_job_id().map_err(failed)?, random_secret().map_err(failed)?, 0, 1, 1);
        Ok(Singleton { job, values: Mutex::default() })
    }
}

impl Modex for Singleton {
    fn job(&self) -> &Job {
        &self.job
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        self.values.lock().insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&self) -> Result<(), ModexError> {
        Ok(())
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        if peer != 0 {
            return Err(modex_error(format!("reading '{key}' of rank {peer}"), "this job has one process"));
        }
        Ok(self.values.lock().get(key).cloned())
    }
}
