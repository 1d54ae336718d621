//! How processes of a job find each other.

use std::sync::Arc;

use cableway_base::Rank;

/// Who this process is within its job. Every BTL is given it at creation.
#[derive(Clone)]
#[non_exhaustive]
pub struct Job {
    /// Names the job among those of its user; equal in all its processes.
    pub id: String,
    /// This process.
    pub rank: Rank,
    /// Processes of the job.
    pub size: u32,
    /// How many of them are on this node, this one included.
    pub local_size: u32,
    /// How many processes of other jobs may be met besides. They are numbered here from `size` on.
    pub strangers: u32,
    peers: Peers,
}

/// The processes that can be met.
#[derive(Clone)]
enum Peers {
    /// Those of the job, which go by their ranks. They know this secret, and nobody else does.
    OfJob { secret: [u8; 32] },
    /// Those that the host names.
    OfHost(Arc<dyn Names>),
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

    /// The secret that the processes of this job share, and nobody else knows. May ask the modex, once. None: there is
    /// none, so that nothing can be proved.
    fn job_secret(&self) -> Option<[u8; 32]>;

    /// The secret that processes of other jobs use to prove to this one that they are its user's. Each process makes its
    /// own, and publishes it where only processes of its user can read it.
    fn own_secret(&self) -> [u8; 32];

    /// The same of `peer`, a process of another job. May ask the modex. None: it has published none.
    fn secret_of(&self, peer: Rank) -> Option<[u8; 32]>;
}

impl Job {
    /// Describes a process that meets no others than its job's, which alone know `secret`. See the fields.
    pub fn new(id: String, secret: [u8; 32], rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, rank, size, local_size, strangers: 0, peers: Peers::OfJob { secret } }
    }

    /// Describes a process of a host that has its own names for processes, and the secrets that they share.
    pub fn of_host(id: String, names: Arc<dyn Names>, rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, rank, size, local_size, strangers: 0, peers: Peers::OfHost(names) }
    }

    /// What this process is called by others.
    pub fn own_name(&self) -> u64 {
        self.name_of(self.rank).unwrap_or(self.rank.into())
    }

    /// What a process is called by others.
    pub fn name_of(&self, peer: Rank) -> Option<u64> {
        match &self.peers {
            Peers::OfJob { .. } => Some(peer.into()),
            Peers::OfHost(names) => names.name(peer),
        }
    }

    /// The process that others call so.
    pub fn rank_of(&self, name: u64) -> Option<Rank> {
        match &self.peers {
            Peers::OfJob { .. } => Rank::try_from(name).ok().filter(|&rank| rank < self.size),
            Peers::OfHost(names) => names.rank(name),
        }
    }

    /// Whether a process of this job is called so.
    pub fn is_member(&self, name: u64) -> bool {
        match &self.peers {
            Peers::OfJob { .. } => true,
            Peers::OfHost(names) => names.is_member(name),
        }
    }

    /// The secret that this process uses to prove itself to `peer`. None: it cannot be had, so nothing can be proved.
    pub fn secret_for(&self, peer: Rank) -> Option<[u8; 32]> {
        match &self.peers {
            Peers::OfJob { secret } => Some(*secret),
            Peers::OfHost(names) if peer < self.size => names.job_secret(),
            Peers::OfHost(names) => names.secret_of(peer),
        }
    }

    /// The secret that the process of that name must prove to know. Asks nothing about that process and notes nothing: a
    /// claim is checked by it before anything else is done about the claim. None: there is none.
    pub fn secret_from(&self, name: u64) -> Option<[u8; 32]> {
        match &self.peers {
            Peers::OfJob { secret } => Some(*secret),
            Peers::OfHost(names) if names.is_member(name) => names.job_secret(),
            Peers::OfHost(names) => Some(names.own_secret()),
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
