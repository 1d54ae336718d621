//! Joins jobs of other launchers through PMIx.
//!
//! PMIx has no secret of a job. Rank 0 makes one and publishes it like an address. The secret is as safe as the
//! launcher's own channels: PMIx servers accept only processes of the job's user, and traffic between nodes is as private
//! as the launcher keeps it.

mod ffi;

pub(super) use ffi::library;

use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, Ordering};

use cableway_base::Rank;
use cableway_btl::{Job, Modex, ModexError};

use super::support::{modex_error, random_secret};
use ffi::{Data, Functions, Info, Proc, Taken, Value};

const SECRET_KEY: &str = "cableway.secret";

pub(super) struct Pmix {
    client: Client,
    job: Job,
}

impl Pmix {
    pub(super) fn join() -> Result<Self, ModexError> {
        Self::begin().map_err(|reason| modex_error("joining the job through PMIx", reason))
    }

    fn begin() -> Result<Self, String> {
        static JOINED: AtomicBool = AtomicBool::new(false);
        if JOINED.swap(true, Ordering::AcqRel) {
            return Err("this process has joined its job before; a process joins once".to_owned());
        }
        let client = Client::init()?;
        let rank = client.me.rank;
        let size = client.number(ffi::JOB_SIZE)?;
        let local_size = client.number(ffi::LOCAL_SIZE)?;
        if rank >= size {
            return Err(format!("PMIx names rank {rank} in a job of {size}"));
        }
        if rank == 0 {
            client.put(SECRET_KEY, &random_secret().map_err(|error| error.to_string())?)?;
        }
        client.fence()?;
        let secret = client.get(0, SECRET_KEY)?.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let secret = secret.ok_or("rank 0 published no secret; do all ranks run the same version of cableway?")?;
        let job = Job::new(client.namespace(), secret, rank, size, local_size);
        Ok(Pmix { client, job })
    }
}

impl Modex for Pmix {
    fn job(&self) -> &Job {
        &self.job
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        self.client.put(key, value).map_err(|reason| modex_error(format!("publishing '{key}'"), reason))
    }

    fn fence(&self) -> Result<(), ModexError> {
        self.client.fence().map_err(|reason| modex_error("waiting for all ranks", reason))
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        self.client.get(peer, key).map_err(|reason| modex_error(format!("reading '{key}' of rank {peer}"), reason))
    }
}

/// An initialised PMIx client. PMIx's calls may come from any thread.
struct Client {
    functions: Functions,
    me: Proc,
}

impl Client {
    fn init() -> Result<Self, String> {
        let functions = Functions::load()?;
        let mut me = Proc { nspace: [0; 256], rank: 0 };
        // SAFETY: `me` is written by the call, which takes no attributes.
        let status = unsafe { (functions.init)(&raw mut me, std::ptr::null_mut(), 0) };
        functions.check("PMIx_Init", status)?;
        Ok(Client { functions, me })
    }

    fn namespace(&self) -> String {
        let bytes = self.me.nspace.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<_>>();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), String> {
        let key = CString::new(key).map_err(|error| error.to_string())?;
        let mut value = Value { kind: ffi::TYPE_BYTE_OBJECT, data: Data::ZERO };
        value.data.bytes = ffi::ByteObject { bytes: bytes.as_ptr().cast_mut().cast::<c_char>(), size: bytes.len() };
        // SAFETY: key and value live through the call, which copies both and does not write to the bytes.
        let status = unsafe { (self.functions.put)(ffi::SCOPE_GLOBAL, key.as_ptr(), &raw mut value) };
        self.functions.check("PMIx_Put", status)
    }

    /// Commits published values and exchanges them with all ranks.
    fn fence(&self) -> Result<(), String> {
        // SAFETY: no arguments.
        self.functions.check("PMIx_Commit", unsafe { (self.functions.commit)() })?;
        let collect = Info::flag(ffi::COLLECT_DATA);
        let everyone = Proc { nspace: self.me.nspace, rank: ffi::RANK_WILDCARD };
        // SAFETY: one process description and one attribute, both alive through the blocking call.
        let status = unsafe { (self.functions.fence)(&raw const everyone, 1, &raw const collect, 1) };
        self.functions.check("PMIx_Fence", status)
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, String> {
        let key = CString::new(key).map_err(|error| error.to_string())?;
        match self.fetch(peer, &key)? {
            None => Ok(None),
            Some(Taken::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Taken::Number(_)) => Err("a number was published, not bytes".to_owned()),
            Some(Taken::Other(kind)) => Err(format!("a value of PMIx type {kind} was published, not bytes")),
        }
    }

    /// Reads a number that describes the job.
    fn number(&self, key: &std::ffi::CStr) -> Result<u32, String> {
        match self.fetch(ffi::RANK_WILDCARD, key)? {
            Some(Taken::Number(number)) => Ok(number),
            _ => Err(format!("the launcher does not provide {}", key.to_string_lossy())),
        }
    }

    fn fetch(&self, rank: u32, key: &std::ffi::CStr) -> Result<Option<Taken>, String> {
        let of = Proc { nspace: self.me.nspace, rank };
        let mut value = std::ptr::null_mut();
        // A fence collects all values at the node's server. IMMEDIATE asks that server only; without it a missing key
        // costs a timeout. The process's own cache is not enough: since PMIx 5 the server knows more.
        let known_here = Info::flag(ffi::IMMEDIATE);
        // SAFETY: process, key and attribute live through the call, which stores a value that it allocated in `value`.
        let status =
            unsafe { (self.functions.get)(&raw const of, key.as_ptr(), &raw const known_here, 1, &raw mut value) };
        if status == ffi::ERR_NOT_FOUND {
            return Ok(None);
        }
        self.functions.check("PMIx_Get", status)?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: PMIx_Get succeeded and handed the value over.
        Ok(Some(unsafe { ffi::take(value) }))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: initialised once, and nobody uses the client after its drop.
        let status = unsafe { (self.functions.finalize)(std::ptr::null(), 0) };
        if let Err(reason) = self.functions.check("PMIx_Finalize", status) {
            log::info!("leaving the job: {reason}");
        }
    }
}
