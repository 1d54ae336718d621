//! Writes of bytes in the order of a stream.

use std::ffi::c_void;
use std::sync::Arc;

use cableway_common_cuda::WordOperation;
use cableway_pml::{Engine, Error, StreamBatch, StreamJob};

/// The stream itself writes so many bytes, as words. More of them take longer than a thread.
const MOST: usize = 1024;

/// Adds a write to a stream, which passes it when the bytes are there.
///
/// # Safety
/// The destination is valid, and free of other accesses, until the stream has passed the write.
pub(super) unsafe fn write(batch: &mut StreamBatch<'_>, engine: &Arc<Engine>, to: *mut c_void, bytes: &[u8]) {
    let address = to.expose_provenance();
    let aligned = address.is_multiple_of(4) && bytes.len().is_multiple_of(4);
    if aligned && bytes.len() <= MOST && engine.devices().reaches(to.cast(), bytes.len()) {
        // SAFETY: the caller's promise.
        unsafe { batch.operate(&WordOperation::writes(address as u64, bytes)) };
        return;
    }
    let job = Box::new(Write { engine: engine.clone(), to: address, bytes: bytes.into() });
    // SAFETY: the caller's promise; the bytes are the job's own.
    let message = unsafe { batch.run(job) };
    batch.wait(&[&message]);
}

/// A write that the thread makes.
struct Write {
    engine: Arc<Engine>,
    to: usize,
    bytes: Box<[u8]>,
}

impl StreamJob for Write {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        let to = std::ptr::with_exposed_provenance_mut(self.to);
        // SAFETY: the caller of `write` keeps the destination until the job is over.
        let copied = unsafe { self.engine.devices().copy_now(to, self.bytes.as_ptr(), self.bytes.len()) };
        Some(copied.map_err(Error::Stream))
    }
}
