//! Open MPI as the engine's host: its modex and its names of processes.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString};
use std::sync::{Arc, OnceLock};

use cableway_base::warn_once;
use cableway_btl::{Job, Modex, ModexError, Names, Rank};
use parking_lot::Mutex;

use crate::boundary::{JobDescription, shim_modex_get, shim_modex_put};

/// The number of processes of other jobs that a process can communicate with in its lifetime.
const MAX_FOREIGN_PROCESSES: u32 = 1 << 16;
/// The architecture of a process (`opal_local_arch`).
const ARCHITECTURE_KEY: &str = "architecture";
/// The secret that all processes of a job share. Rank 0 creates it.
const JOB_SECRET_KEY: &str = "secret";
/// The secret by which processes of other jobs prove to a process that they belong to the same user.
const OWN_SECRET_KEY: &str = "own_secret";

/// Open MPI's modex. Open MPI performs the fence between the start of the components and their first use.
pub(crate) struct HostModex {
    job: Job,
    architecture: u32,
}

impl HostModex {
    /// Publishes the architecture and the secrets of this process.
    pub(crate) fn new(description: &JobDescription) -> Result<Self, ModexError> {
        // SAFETY: the shim passes a string that is valid during the call.
        let id = unsafe { CStr::from_ptr(description.id) }.to_string_lossy().into_owned();
        put(ARCHITECTURE_KEY, &description.architecture.to_ne_bytes())?;
        let names = Arc::new(HostNames::publish(description)?);
        let &JobDescription { rank, size, local_size, architecture, .. } = description;
        let mut job = Job::of_host(id, names, rank, size, local_size);
        job.foreign_processes = MAX_FOREIGN_PROCESSES;
        Ok(HostModex { job, architecture })
    }
}

impl Modex for HostModex {
    fn job(&self) -> &Job {
        &self.job
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        put(key, value)
    }

    fn fence(&self) -> Result<(), ModexError> {
        Ok(())
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        let Some(name) = self.job.name_of(peer) else { return Ok(None) };
        get(name, key)
    }

    /// Refuses peers of another architecture, because data is not converted.
    fn refusal(&self, peer: Rank) -> Result<Option<String>, ModexError> {
        let Some(name) = self.job.name_of(peer) else { return Ok(None) };
        let theirs = get(name, ARCHITECTURE_KEY)?;
        let alike = theirs.as_deref().is_none_or(|theirs| theirs == self.architecture.to_ne_bytes());
        let why = "its machine has another byte order or word size, and data is not converted; use another pml";
        Ok((!alike).then(|| why.to_owned()))
    }
}

/// Maps Open MPI's process names, which consist of the jobid and the rank in the job, to the engine's ranks. Processes
/// of this job keep their ranks. Those of other jobs get the following ranks in the order of first contact.
struct HostNames {
    number: u32,
    size: u32,
    /// Published by rank 0, and read at first use, because the modex is not complete before.
    job_secret: OnceLock<[u8; 32]>,
    /// Published by this process. Only processes of the same user can read it.
    own_secret: [u8; 32],
    foreign: Mutex<ForeignProcesses>,
}

#[derive(Default)]
struct ForeignProcesses {
    names: Vec<u64>,
    ranks: HashMap<u64, Rank>,
}

impl HostNames {
    /// Publishes the secrets. Only processes of the same user can read them.
    fn publish(&JobDescription { number, rank, size, .. }: &JobDescription) -> Result<Self, ModexError> {
        let (job_secret, own_secret) = (OnceLock::new(), random()?);
        put(OWN_SECRET_KEY, &own_secret)?;
        if rank == 0 {
            let secret = random()?;
            put(JOB_SECRET_KEY, &secret)?;
            let _ = job_secret.set(secret);
        }
        Ok(HostNames { number, size, job_secret, own_secret, foreign: Mutex::default() })
    }
}

impl Names for HostNames {
    fn name(&self, peer: Rank) -> Option<u64> {
        match peer.checked_sub(self.size) {
            None => Some(u64::from(self.number) << 32 | u64::from(peer)),
            Some(index) => self.foreign.lock().names.get(index as usize).copied(),
        }
    }

    fn rank(&self, name: u64) -> Option<Rank> {
        if self.is_member(name) {
            return Some(name as u32).filter(|&rank| rank < self.size);
        }
        let foreign = &mut *self.foreign.lock();
        if let Some(&rank) = foreign.ranks.get(&name) {
            return Some(rank);
        }
        let index = u32::try_from(foreign.names.len()).ok().filter(|&index| index < MAX_FOREIGN_PROCESSES)?;
        foreign.names.push(name);
        foreign.ranks.insert(name, self.size + index);
        Some(self.size + index)
    }

    fn is_member(&self, name: u64) -> bool {
        (name >> 32) as u32 == self.number
    }

    fn job_secret(&self) -> Option<[u8; 32]> {
        if let Some(secret) = self.job_secret.get() {
            return Some(*secret);
        }
        let secret = published_secret(u64::from(self.number) << 32, JOB_SECRET_KEY)?;
        Some(*self.job_secret.get_or_init(|| secret))
    }

    fn own_secret(&self) -> [u8; 32] {
        self.own_secret
    }

    fn secret_of(&self, peer: Rank) -> Option<[u8; 32]> {
        published_secret(self.name(peer)?, OWN_SECRET_KEY)
    }
}

/// Returns a secret that a process has published. A missing secret is never replaced by another value, which would
/// prove nothing.
fn published_secret(process: u64, key: &'static str) -> Option<[u8; 32]> {
    let error = |reason: String| ModexError { what: format!("reading '{key}' of process {process:#x}"), reason };
    let found = get(process, key).and_then(|bytes| {
        let bytes = bytes.ok_or_else(|| error("the process has not published it".to_owned()))?;
        <[u8; 32]>::try_from(bytes).map_err(|bytes| error(format!("it has {} bytes instead of 32", bytes.len())))
    });
    let warn = |error: &ModexError| {
        warn_once(key, || format!("{error}; connections to this process are refused"));
    };
    found.inspect_err(warn).ok()
}

/// The keys under which this process has published something.
static PUBLISHED: Mutex<BTreeSet<CString>> = Mutex::new(BTreeSet::new());

/// The first byte of each published value. A withdrawn value is empty.
const PRESENT: u8 = 1;

fn put(key: &str, value: &[u8]) -> Result<(), ModexError> {
    let name = c_key(key)?;
    match put_raw(&name, &[&[PRESENT], value].concat()) {
        0 => {
            PUBLISHED.lock().insert(name);
            Ok(())
        }
        code => Err(error(format!("publishing '{key}'"), code)),
    }
}

/// Withdraws all published values. Open MPI cannot remove a key, so an empty value replaces each.
pub(crate) fn withdraw() {
    for name in std::mem::take(&mut *PUBLISHED.lock()) {
        let code = put_raw(&name, &[]);
        if code != 0 {
            log::debug!("withdrawing {name:?}: open mpi returned {code}");
        }
    }
}

fn put_raw(name: &CStr, value: &[u8]) -> i32 {
    // SAFETY: both are valid during the call, which copies them.
    unsafe { shim_modex_put(name.as_ptr(), value.as_ptr(), value.len()) }
}

/// Returns what a process has published and not withdrawn.
fn get(process: u64, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
    let name = c_key(key)?;
    let (mut bytes, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the out-pointers are valid during the call.
    match unsafe { shim_modex_get(process, name.as_ptr(), &mut bytes, &mut len) } {
        0 if bytes.is_null() => Ok(None),
        0 => {
            // SAFETY: the shim returns `len` bytes from malloc.
            let raw = unsafe { std::slice::from_raw_parts(bytes, len) };
            let value = raw.strip_prefix(&[PRESENT]).map(<[u8]>::to_vec);
            // SAFETY: as above; freed once.
            unsafe { libc::free(bytes.cast()) };
            Ok(value)
        }
        1 => Ok(None),
        code => Err(error(format!("reading '{key}' of process {process:#x}"), code)),
    }
}

/// Returns the key with a prefix that sets it apart from the keys of Open MPI's own components.
fn c_key(key: &str) -> Result<CString, ModexError> {
    CString::new(format!("cableway.{key}"))
        .map_err(|reason| ModexError { what: format!("key '{key}'"), reason: reason.to_string() })
}

fn error(what: String, code: i32) -> ModexError {
    ModexError { what, reason: format!("open mpi returned {code}") }
}

fn random() -> Result<[u8; 32], ModexError> {
    let mut bytes = [0; 32];
    // SAFETY: the buffer is valid for its length. So few bytes are returned completely or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize {
        return Ok(bytes);
    }
    Err(ModexError { what: "creating a secret".to_owned(), reason: std::io::Error::last_os_error().to_string() })
}
