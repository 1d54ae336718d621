//! Open MPI as the engine's host: its modex.

use std::ffi::CString;

use cableway_btl::{Job, Modex, ModexError, Rank};

use crate::boundary::{shim_modex_get, shim_modex_put};

/// Open MPI's own exchange of addresses. It fences by itself, between the components' start and their first use.
pub(crate) struct HostModex {
    job: Job,
}

impl HostModex {
    pub(crate) fn new(job: Job) -> Self {
        HostModex { job }
    }
}

impl Modex for HostModex {
    fn job(&self) -> &Job {
        &self.job
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        let name = c_key(key)?;
        // SAFETY: both are valid for the call, which copies them.
        match unsafe { shim_modex_put(name.as_ptr(), value.as_ptr(), value.len()) } {
            0 => Ok(()),
            code => Err(error(format!("publishing '{key}'"), code)),
        }
    }

    fn fence(&self) -> Result<(), ModexError> {
        Ok(())
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        let name = c_key(key)?;
        let (mut bytes, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: the out-pointers are valid for the call.
        match unsafe { shim_modex_get(peer, name.as_ptr(), &mut bytes, &mut len) } {
            0 if bytes.is_null() => Ok(Some(Vec::new())),
            0 => {
                // SAFETY: the shim hands over `len` bytes from malloc.
                let value = unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec();
                // SAFETY: as above; freed once.
                unsafe { libc::free(bytes.cast()) };
                Ok(Some(value))
            }
            1 => Ok(None),
            code => Err(error(format!("reading '{key}' of rank {peer}"), code)),
        }
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
