//! How processes of a job find each other.

use cableway_base::Rank;

/// Who this process is within its job. Every BTL is given it at creation.
#[derive(Clone)]
#[non_exhaustive]
pub struct Job {
    /// Names the job among those of its user; equal in all its processes.
    pub id: String,
    /// Known to the job's processes alone.
    pub secret: [u8; 32],
    /// This process.
    pub rank: Rank,
    /// Processes of the job.
    pub size: u32,
    /// How many of them are on this node, this one included.
    pub local_size: u32,
}

impl Job {
    /// See the fields.
    pub fn new(id: String, secret: [u8; 32], rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, secret, rank, size, local_size }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({}, rank {} of {}, {} here)", self.id, self.rank, self.size, self.local_size)
    }
}

/// Why the exchange of addresses failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("modex: {what}: {reason}")]
pub struct ModexError {
    /// What was being done.
    pub what: String,
    /// What went wrong.
    pub reason: String,
}

/// Publishes a process's addresses and reads those of others: the built-in launcher, PMIx, or a host MPI's own.
pub trait Modex: Send + Sync {
    /// Who this process is.
    fn job(&self) -> &Job;

    /// Publishes a value of this process; seen by others after the next fence.
    ///
    /// # Errors
    /// The launcher cannot be reached.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError>;

    /// Waits until every process of the job has come here; what they published before can be read after.
    ///
    /// # Errors
    /// The launcher cannot be reached, or a process died before it came.
    fn fence(&self) -> Result<(), ModexError>;

    /// What `peer` published; none if it published no such key.
    ///
    /// # Errors
    /// The launcher cannot be reached.
    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError>;
}
