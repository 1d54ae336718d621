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
    /// The limit of foreign processes, those of other jobs, that may be met. They are numbered from `size` on.
    pub foreign_processes: u32,
    peers: Peers,
}

/// The processes that this one can connect to.
#[derive(Clone)]
enum Peers {
    /// Processes of the job, named by rank. Only they know this secret.
    OfJob { secret: [u8; 32] },
    /// Processes that the host names.
    OfHost(Arc<dyn Names>),
}

/// How a host names processes when several jobs may connect. Each process numbers peers in its own way; between
/// processes they go by name.
pub trait Names: Send + Sync {
    /// The name of a process, the same for everybody.
    fn name(&self, peer: Rank) -> Option<u64>;

    /// Returns the local number of a process, assigning one if needed. None: it cannot be met. Numbers for foreign
    /// processes are limited, so do not look up an unproven name.
    fn rank(&self, name: u64) -> Option<Rank>;

    /// Whether that is the name of a process of this job.
    fn is_member(&self, name: u64) -> bool;

    /// Returns the secret that only the processes of this job share. May ask the modex, once. None: there is none, so
    /// nothing can be proved.
    fn job_secret(&self) -> Option<[u8; 32]>;

    /// The secret that processes of other jobs use to prove to this one that they are its user's. Each process makes its
    /// own, and publishes it where only processes of its user can read it.
    fn own_secret(&self) -> [u8; 32];

    /// Returns the secret of `peer`, a foreign process. May ask the modex. None: it published none.
    fn secret_of(&self, peer: Rank) -> Option<[u8; 32]>;
}

impl Job {
    /// Describes a process that connects only to its own job, whose processes share `secret`. See the fields.
    pub fn new(id: String, secret: [u8; 32], rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, rank, size, local_size, foreign_processes: 0, peers: Peers::OfJob { secret } }
    }

    /// Describes a process of a host that has its own names for processes, and the secrets that they share.
    pub fn of_host(id: String, names: Arc<dyn Names>, rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, rank, size, local_size, foreign_processes: 0, peers: Peers::OfHost(names) }
    }

    /// Returns the name of this process.
    pub fn own_name(&self) -> u64 {
        self.name_of(self.rank).unwrap_or(self.rank.into())
    }

    /// Returns the name of a process.
    pub fn name_of(&self, peer: Rank) -> Option<u64> {
        match &self.peers {
            Peers::OfJob { .. } => Some(peer.into()),
            Peers::OfHost(names) => names.name(peer),
        }
    }

    /// Returns the process of that name.
    pub fn rank_of(&self, name: u64) -> Option<Rank> {
        match &self.peers {
            Peers::OfJob { .. } => Rank::try_from(name).ok().filter(|&rank| rank < self.size),
            Peers::OfHost(names) => names.rank(name),
        }
    }

    /// Whether the name belongs to a process of this job.
    pub fn is_member(&self, name: u64) -> bool {
        match &self.peers {
            Peers::OfJob { .. } => true,
            Peers::OfHost(names) => names.is_member(name),
        }
    }

    /// Returns the secret that this process uses to prove itself to `peer`. None: it is unavailable, so nothing can be
    /// proved.
    pub fn secret_for(&self, peer: Rank) -> Option<[u8; 32]> {
        match &self.peers {
            Peers::OfJob { secret } => Some(*secret),
            Peers::OfHost(names) if peer < self.size => names.job_secret(),
            Peers::OfHost(names) => names.secret_of(peer),
        }
    }

    /// Returns the secret that the process of that name must prove to know. It looks nothing up, so a claim can be
    /// checked before it has any effect. None: there is none.
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
