//! The exchange of addresses between the processes of a job.

use std::sync::Arc;

use cableway_base::Rank;

/// This process and its job. Every BTL gets it at creation.
#[derive(Clone)]
#[non_exhaustive]
pub struct Job {
    /// The name of the job among those of its user. Equal in all its processes.
    pub id: String,
    /// This process.
    pub rank: Rank,
    /// The number of processes in the job.
    pub size: u32,
    /// The number of these processes on this node, including this one.
    pub local_size: u32,
    /// The limit of foreign processes, from other jobs, that may connect. Their numbers begin at `size`.
    pub foreign_processes: u32,
    peers: Peers,
}

/// The processes to which this one can connect.
#[derive(Clone)]
enum Peers {
    /// Processes of the job, named by rank. Only they know this secret.
    OfJob { secret: [u8; 32] },
    /// Processes that the host MPI names.
    NamedByHost(Arc<dyn Names>),
}

/// A host's names for processes, for connections between jobs. Each process assigns its own numbers to peers. Processes
/// identify each other by name.
pub trait Names: Send + Sync {
    /// Returns the name of a process, which is the same in all processes.
    fn name(&self, peer: Rank) -> Option<u64>;

    /// Returns the local number of a process, and assigns one if needed. Returns `None` if it cannot connect. Numbers
    /// for foreign processes are limited, so do not look up an unproven name.
    fn rank(&self, name: u64) -> Option<Rank>;

    /// Returns whether the name belongs to a process of this job.
    fn is_member(&self, name: u64) -> bool;

    /// Returns the secret that only the processes of this job share. May ask the modex, once. Returns `None` if there
    /// is none, so that nothing can be proved.
    fn job_secret(&self) -> Option<[u8; 32]>;

    /// Returns the secret with which processes of other jobs prove to this one that they belong to its user. Each
    /// process makes its own, and publishes it where only processes of its user can read it.
    fn own_secret(&self) -> [u8; 32];

    /// Returns the secret of `peer`, a foreign process. May ask the modex. Returns `None` if it published none.
    fn secret_of(&self, peer: Rank) -> Option<[u8; 32]>;
}

impl Job {
    /// Describes a process that connects only to its own job, whose processes share `secret`.
    pub fn new(id: String, secret: [u8; 32], rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, rank, size, local_size, foreign_processes: 0, peers: Peers::OfJob { secret } }
    }

    /// Describes a process of a host with its own names for processes, and their secrets.
    pub fn of_host(id: String, names: Arc<dyn Names>, rank: Rank, size: u32, local_size: u32) -> Self {
        Job { id, rank, size, local_size, foreign_processes: 0, peers: Peers::NamedByHost(names) }
    }

    /// Describes a part of the job that has the same processes, and connects only to the same part of these.
    pub fn part(&self, name: &str) -> Self {
        Job { id: format!("{}/{name}", self.id), ..self.clone() }
    }

    /// Returns the name of this process.
    pub fn own_name(&self) -> u64 {
        self.name_of(self.rank).unwrap_or(self.rank.into())
    }

    /// Returns the name of a process.
    pub fn name_of(&self, peer: Rank) -> Option<u64> {
        match &self.peers {
            Peers::OfJob { .. } => Some(peer.into()),
            Peers::NamedByHost(names) => names.name(peer),
        }
    }

    /// Returns the process with that name.
    pub fn rank_of(&self, name: u64) -> Option<Rank> {
        match &self.peers {
            Peers::OfJob { .. } => Rank::try_from(name).ok().filter(|&rank| rank < self.size),
            Peers::NamedByHost(names) => names.rank(name),
        }
    }

    /// Returns whether the name belongs to a process of this job.
    pub fn is_member(&self, name: u64) -> bool {
        match &self.peers {
            Peers::OfJob { .. } => true,
            Peers::NamedByHost(names) => names.is_member(name),
        }
    }

    /// Returns the secret with which this process proves itself to `peer`. Returns `None` if it is unavailable, so that
    /// nothing can be proved.
    pub fn secret_for(&self, peer: Rank) -> Option<[u8; 32]> {
        match &self.peers {
            Peers::OfJob { secret } => Some(*secret),
            Peers::NamedByHost(names) if peer < self.size => names.job_secret(),
            Peers::NamedByHost(names) => names.secret_of(peer),
        }
    }

    /// Returns the secret that the process with that name must prove to know. It looks nothing up, so a claim can be
    /// checked before it has any effect. Returns `None` if there is none.
    pub fn secret_from(&self, name: u64) -> Option<[u8; 32]> {
        match &self.peers {
            Peers::OfJob { secret } => Some(*secret),
            Peers::NamedByHost(names) if names.is_member(name) => names.job_secret(),
            Peers::NamedByHost(names) => Some(names.own_secret()),
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({}, rank {} of {}, {} here)", self.id, self.rank, self.size, self.local_size)
    }
}

/// The reason why the exchange of addresses failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("modex: {what}: {reason}")]
pub struct ModexError {
    /// The failed action.
    pub what: String,
    /// The fault.
    pub reason: String,
}

/// Publishes a process's addresses and reads those of others: the built-in launcher, PMIx, or a host MPI's own.
pub trait Modex: Send + Sync {
    /// Returns this process and its job.
    fn job(&self) -> &Job;

    /// Publishes a value of this process. Others see it after the next fence.
    ///
    /// # Errors
    /// The launcher cannot be reached.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError>;

    /// Waits until every process of the job has entered the fence. Values published before are then readable.
    ///
    /// # Errors
    /// The launcher cannot be reached, or a process died before it entered.
    fn fence(&self) -> Result<(), ModexError>;

    /// Returns the value that `peer` published under `key`, if any.
    ///
    /// # Errors
    /// The launcher cannot be reached.
    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError>;

    /// Returns the reason why this process and `peer` cannot communicate over any transport, or `None` if they can.
    ///
    /// # Errors
    /// The launcher cannot be reached.
    fn refusal(&self, peer: Rank) -> Result<Option<String>, ModexError> {
        let _ = peer;
        Ok(None)
    }
}
