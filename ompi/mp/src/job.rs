//! What `mp_init` begins: a communicator, and the streams of the program that were used on it.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cableway_ompi_find::is_initialized;

use crate::call::{array, call, given};
use crate::component::{Component, Operation, RawJob, checked, component};
use crate::{CudaStream, Handle};

/// `enum cableway_stream_kind`
const CUDA: c_int = 0;
/// `MP_API_VERSION`
const VERSION: c_int = 2 << 16;
/// `MP_PARAM_VERSION`
const PARAM_VERSION: c_int = 0;
/// Handles up to this one mean the default stream of the current context or thread: CUDA's 0, 1 and 2.
const LAST_DEFAULT: usize = 2;

static JOB: Mutex<Option<Job>> = Mutex::new(None);

/// See the module.
pub(crate) struct Job {
    pub(crate) component: &'static Component,
    raw: RawJob,
    /// The component's streams by the program's handles.
    streams: HashMap<usize, *mut c_void>,
    /// Host memory was registered, which the driver learns when a stream is opened.
    pub(crate) registered: bool,
    /// Windows that are not destroyed.
    pub(crate) windows: usize,
    /// Requests that are not released.
    pub(crate) requests: usize,
}

// SAFETY: the component's handles may be used from any thread.
unsafe impl Send for Job {}

/// The job, locked for a call. Calls of other threads wait, so only `mp_init` and `mp_finalize` wait for peers meanwhile.
pub(crate) struct Locked(MutexGuard<'static, Option<Job>>);

impl Locked {
    pub(crate) fn job(&mut self) -> Result<&mut Job, String> {
        self.0.as_mut().ok_or_else(|| "mp_init was not called, or mp_finalize was".to_owned())
    }
}

/// Locks the job, if there is one.
pub(crate) fn lock() -> Locked {
    Locked(JOB.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the component, or why there is none.
pub(crate) fn used_component() -> Result<&'static Component, String> {
    component().ok_or_else(|| {
        if is_initialized() {
            "Open MPI does not use Cableway's component as its pml, or one of another version: run `cableway ompi \
             status`"
        } else {
            "MPI is not initialized, or finalized"
        }
        .to_owned()
    })
}

impl Job {
    pub(crate) fn raw(&self) -> &RawJob {
        &self.raw
    }

    pub(crate) fn check_peer(&self, peer: c_int) -> Result<(), String> {
        match (0..self.raw.size).contains(&peer) {
            true => Ok(()),
            false => Err(format!("there is no rank {peer}: the communicator has {}", self.raw.size)),
        }
    }

    /// Starts operations on the host.
    pub(crate) fn start(&mut self, operations: &mut [Operation]) -> Result<(), String> {
        self.post(std::ptr::null(), operations)
    }

    /// Adds operations to a stream of the program.
    pub(crate) fn enqueue(&mut self, stream: CudaStream, operations: &mut [Operation]) -> Result<(), String> {
        let handle = stream.expose_provenance();
        let known = self.streams.get(&handle).copied();
        if let (Some(known), false) = (known, self.registered) {
            return self.post(known, operations);
        }
        let opened = self.open_stream(handle)?;
        self.registered = false;
        if known.is_none() && handle > LAST_DEFAULT {
            self.streams.insert(handle, opened);
            return self.post(opened, operations);
        }
        // A known stream keeps its own description, so that its messages start in their order. Of a default stream the next
        // call may mean another.
        let posted = self.post(known.unwrap_or(opened), operations);
        // SAFETY: opened above. Its calls stay on the stream.
        unsafe { (self.component.stream_close)(opened) };
        posted
    }

    /// Returns whether devices reach memory of the program.
    pub(crate) fn reaches(&mut self, address: *const c_void, len: u64) -> bool {
        if self.registered
            && let Ok(opened) = self.open_stream(0)
        {
            self.registered = false;
            // SAFETY: opened above.
            unsafe { (self.component.stream_close)(opened) };
        }
        // SAFETY: it takes any address.
        unsafe { (self.component.reaches)(address, len) }
    }

    fn open_stream(&self, handle: usize) -> Result<*mut c_void, String> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the program keeps the stream until mp_finalize.
        checked(|why, room| unsafe { (self.component.stream_open)(CUDA, handle, &raw mut stream, why, room) })?;
        Ok(stream)
    }

    fn post(&self, stream: *const c_void, operations: &mut [Operation]) -> Result<(), String> {
        if operations.is_empty() {
            return Ok(());
        }
        let (first, count) = (operations.as_mut_ptr(), operations.len());
        // SAFETY: the job and the stream are open, and the program keeps the memory until the requests are over.
        checked(|why, room| unsafe { (self.component.post)(&raw const self.raw, stream, first, count, why, room) })
    }
}

/// # Safety
/// As MPI asks of the program, here and in all functions of this library: pointers are null or valid, arrays have as many
/// entries as their counts say, and the memory of messages stays valid until their requests are over.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_query_param(parameter: c_int, value: *mut c_int) -> c_int {
    call("mp_query_param", || {
        // SAFETY: the caller's promise.
        let value = unsafe { given(value, "value") }?;
        if parameter != PARAM_VERSION {
            return Err(format!("there is no parameter {parameter}"));
        }
        *value = VERSION;
        Ok(())
    })
}

/// # Safety
/// As [`mp_query_param`].
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_init(
    communicator: Handle,
    peers: *mut c_int,
    count: c_int,
    _flags: c_int,
    _device: c_int,
) -> c_int {
    call("mp_init", || {
        let count = u32::try_from(count).map_err(|_| format!("count is {count}: it must not be negative"))?;
        // SAFETY: the caller's promise.
        let peers = unsafe { array(peers, count, "peers") }?;
        let component = used_component()?;
        let mut locked = lock();
        if locked.0.is_some() {
            return Err("it was called before: call mp_finalize first".to_owned());
        }
        let mut raw = RawJob { communicator, handle: std::ptr::null_mut(), rank: 0, size: 0 };
        // SAFETY: the caller's promise.
        checked(|why, room| unsafe { (component.open)(communicator, &raw mut raw, why, room) })?;
        let job = Job { component, raw, streams: HashMap::new(), registered: false, windows: 0, requests: 0 };
        let wrong = peers.iter().find_map(|peer| job.check_peer(*peer).err());
        *locked.0 = Some(job);
        // The others have made the call, so it is made here, too, before it fails.
        wrong.map_or(Ok(()), |error| end(&mut locked).and(Err(error)))
    })
}

/// # Safety
/// As [`mp_query_param`].
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_finalize() {
    call("mp_finalize", || {
        let mut locked = lock();
        let Job { windows, requests, .. } = locked.job()?;
        let (windows, requests) = (*windows, *requests);
        end(&mut locked)?;
        match (windows, requests) {
            (0, 0) => Ok(()),
            _ => Err(format!("{requests} requests were not waited for, and {windows} windows not destroyed")),
        }
    });
}

/// Ends the job.
fn end(locked: &mut Locked) -> Result<(), String> {
    used_component()?;
    let Some(mut job) = locked.0.take() else { return Ok(()) };
    for stream in job.streams.values() {
        // SAFETY: open, and not used afterwards.
        unsafe { (job.component.stream_close)(*stream) };
    }
    // SAFETY: as above.
    unsafe { (job.component.close)(&raw mut job.raw) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_mpi_nothing_begins() {
        // SAFETY: valid arguments.
        unsafe {
            assert_eq!(mp_init(std::ptr::null_mut(), std::ptr::null_mut(), 0, 0, 0), crate::call::FAILURE);
            mp_finalize();
        }
        assert!(lock().job().is_err_and(|error| error.contains("mp_init was not called")));
        assert!(used_component().is_err_and(|error| error.contains("MPI is not initialized")));
    }

    #[test]
    fn the_version_is_libmps() {
        let mut value = 0;
        // SAFETY: valid arguments.
        unsafe {
            assert_eq!(mp_query_param(PARAM_VERSION, &raw mut value), crate::call::SUCCESS);
            assert_eq!(value, 0x2_0000);
            assert_eq!(mp_query_param(1, &raw mut value), crate::call::FAILURE);
            assert_eq!(mp_query_param(PARAM_VERSION, std::ptr::null_mut()), crate::call::FAILURE);
        }
    }
}
