//! How processes of a job find each other.

use std::sync::Arc;

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
    /// How many processes of other jobs may be met besides. They are numbered here from `size` on.
    pub strangers: u32,
    names: Option<Arc<dyn Names>>,
}

/// How a host names processes, where those of several jobs may meet: each process counts them in its own way, and
/// between processes they go by their names.
pub trait Names: Send + Sync {
    /// The name of a process, the same for everybody.
    fn name(&self, peer: Rank) -> Option<u64>;

    /// Its number here, which it is given now if it has none. None: it cannot be met. Numbers of other jobs' processes
    /// are few, so a name that a process only claims is not asked for.
    fn rank(&self, name: u64) -> Option<Rank>;

    /// Whether that is the name of a process of this job.
    fn is_member(&self, name: u64) -> bool;

    /// By what processes of other jobs prove to this one that they are its user's. Each process makes its own, and
    /// publishes it where only processes of its user can read it.
    fn own_secret(&self) -> [u8; 32];

    /// The same of `peer`, a process of another job. May ask the modex. None: it has published none.
    fn secret_of(&self, peer: Rank) -> Option<[u8; 32]>;
}

impl Job {
    /// See the fields. No processes but the job's.
    pub fn new(id: String, secret: [u8; 32], rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, secret, rank, size, local_size, strangers: 0, names: None }
    }

    /// The same, where `strangers` processes of other jobs may be met.
    #[must_use]
    pub fn with_names(self, names: Arc<dyn Names>, strangers: u32) -> Self {
        Job { strangers, names: Some(names), ..self }
    }

    /// What this process is called by others.
    pub fn own_name(&self) -> u64 {
        self.name_of(self.rank).unwrap_or(self.rank.into())
    }

    /// What a process is called by others.
    pub fn name_of(&self, peer: Rank) -> Option<u64> {
        match &self.names {
            None => Some(peer.into()),
            Some(names) => names.name(peer),
        }
    }

    /// The process that others call so.
    pub fn rank_of(&self, name: u64) -> Option<Rank> {
        match &self.names {
            None => Rank::try_from(name).ok().filter(|&rank| rank < self.size),
            Some(names) => names.rank(name),
        }
    }

    /// Whether a process of this job is called so.
    pub fn is_member(&self, name: u64) -> bool {
        self.names.as_ref().is_none_or(|names| names.is_member(name))
    }

    /// What this process must know for `peer` to hear it. None: that cannot be had.
    pub fn secret_for(&self, peer: Rank) -> Option<[u8; 32]> {
        match &self.names {
            Some(names) if peer >= self.size => names.secret_of(peer),
            _ => Some(self.secret),
        }
    }

    /// What the process of that name must know for this one to hear it. Asks nobody, and notes nothing: it is what a
    /// claim is checked by before anything else is done about it.
    pub fn secret_from(&self, name: u64) -> [u8; 32] {
        match &self.names {
            Some(names) if !names.is_member(name) => names.own_secret(),
            _ => self.secret,
        }
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

    /// Why this process and `peer` could not understand each other, whatever transports they have; none where they can.
    ///
    /// # Errors
    /// The launcher cannot be reached.
    fn refusal(&self, peer: Rank) -> Result<Option<String>, ModexError> {
        let _ = peer;
        Ok(None)
    }
}
