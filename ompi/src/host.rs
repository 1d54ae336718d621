//! Open MPI as the engine's host: its modex, and how it names processes.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;

use cableway_btl::{Job, Modex, ModexError, Names, Rank};
use parking_lot::Mutex;

use crate::boundary::{JobDescription, shim_modex_get, shim_modex_put};

/// Processes of other jobs that one may meet in its life.
const STRANGERS: u32 = 1 << 16;
/// What a process is built for, as Open MPI encodes it.
const ARCHITECTURE_KEY: &str = "architecture";
/// By what processes of other jobs of this user prove to be such.
const SECRET_KEY: &str = "secret";

/// Open MPI's own exchange of addresses. It fences by itself, between the components' start and their first use.
pub(crate) struct HostModex {
    job: Job,
    architecture: u32,
}

impl HostModex {
    /// Publishes what other jobs' processes must know of this one besides its addresses.
    pub(crate) fn new(description: &JobDescription) -> Result<Self, ModexError> {
        // SAFETY: the shim passes a string that is valid for the call.
        let id = unsafe { CStr::from_ptr(description.id) }.to_string_lossy().into_owned();
        let secret = random()?;
        put(SECRET_KEY, &secret)?;
        put(ARCHITECTURE_KEY, &description.architecture.to_ne_bytes())?;
        let names =
            HostNames { number: description.number, size: description.size, secret, strangers: Mutex::default() };
        let job = Job::new(id, description.secret, description.rank, description.size, description.local_size);
        Ok(HostModex { job: job.with_names(Arc::new(names), STRANGERS), architecture: description.architecture })
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

    /// Data is not converted between architectures.
    fn refusal(&self, peer: Rank) -> Result<Option<String>, ModexError> {
        let Some(name) = self.job.name_of(peer) else { return Ok(None) };
        let theirs = get(name, ARCHITECTURE_KEY)?;
        let alike = theirs.as_deref().is_none_or(|theirs| theirs == self.architecture.to_ne_bytes());
        let why = "its machine differs in the order or size of words; data is not converted, use another pml";
        Ok((!alike).then(|| why.to_owned()))
    }
}

/// Open MPI names a process by its job's number and its rank there. This job's processes keep their ranks; those of
/// other jobs are numbered on from there, as they are met.
struct HostNames {
    number: u32,
    size: u32,
    /// Published where only this user's processes can read it.
    secret: [u8; 32],
    strangers: Mutex<Strangers>,
}

#[derive(Default)]
struct Strangers {
    names: Vec<u64>,
    ranks: HashMap<u64, Rank>,
}

impl Names for HostNames {
    fn name(&self, peer: Rank) -> Option<u64> {
        match peer.checked_sub(self.size) {
            None => Some(u64::from(self.number) << 32 | u64::from(peer)),
            Some(index) => self.strangers.lock().names.get(index as usize).copied(),
        }
    }

    fn rank(&self, name: u64) -> Option<Rank> {
        if self.is_member(name) {
            return Some(name as u32).filter(|&rank| rank < self.size);
        }
        let strangers = &mut *self.strangers.lock();
        if let Some(&rank) = strangers.ranks.get(&name) {
            return Some(rank);
        }
        let index = u32::try_from(strangers.names.len()).ok().filter(|&index| index < STRANGERS)?;
        strangers.names.push(name);
        strangers.ranks.insert(name, self.size + index);
        Some(self.size + index)
    }

    fn is_member(&self, name: u64) -> bool {
        (name >> 32) as u32 == self.number
    }

    fn own_secret(&self) -> [u8; 32] {
        self.secret
    }

    fn secret_of(&self, peer: Rank) -> Option<[u8; 32]> {
        match get(self.name(peer)?, SECRET_KEY) {
            Ok(found) => found?.try_into().ok(),
            Err(error) => {
                log::warn!("{error}");
                None
            }
        }
    }
}

fn put(key: &str, value: &[u8]) -> Result<(), ModexError> {
    let name = c_key(key)?;
    // SAFETY: both are valid for the call, which copies them.
    match unsafe { shim_modex_put(name.as_ptr(), value.as_ptr(), value.len()) } {
        0 => Ok(()),
        code => Err(error(format!("publishing '{key}'"), code)),
    }
}

fn get(process: u64, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
    let name = c_key(key)?;
    let (mut bytes, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the out-pointers are valid for the call.
    match unsafe { shim_modex_get(process, name.as_ptr(), &mut bytes, &mut len) } {
        0 if bytes.is_null() => Ok(Some(Vec::new())),
        0 => {
            // SAFETY: the shim hands over `len` bytes from malloc.
            let value = unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec();
            // SAFETY: as above; freed once.
            unsafe { libc::free(bytes.cast()) };
            Ok(Some(value))
        }
        1 => Ok(None),
        code => Err(error(format!("reading '{key}' of process {process:#x}"), code)),
    }
}

/// Keys share a name space with those of Open MPI's own components.
fn c_key(key: &str) -> Result<CString, ModexError> {
    CString::new(format!("cableway.{key}"))
        .map_err(|reason| ModexError { what: format!("key '{key}'"), reason: reason.to_string() })
}

fn error(what: String, code: i32) -> ModexError {
    ModexError { what, reason: format!("open mpi answered {code}") }
}

fn random() -> Result<[u8; 32], ModexError> {
    let mut bytes = [0; 32];
    // SAFETY: the buffer is valid for its length; so few bytes come at once or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize {
        return Ok(bytes);
    }
    Err(ModexError { what: "drawing a secret".to_owned(), reason: std::io::Error::last_os_error().to_string() })
}
