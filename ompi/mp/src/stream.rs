//! Messages that streams start, and waits of streams.

use std::ffi::{c_int, c_void};

use libc::iovec;

use crate::CudaStream;
use crate::call::{array, call, given};
use crate::component::{Operation, kind};
use crate::job::lock;
use crate::request::{Registration, Request, hand_out, live, note_started};

/// Returns a wait of the stream for the operation of the call with this number, counted from 1.
fn wait_for(earlier: usize) -> Operation {
    Operation { earlier, ..Operation::new(kind::WAIT) }
}

/// Adds a described message to a stream, which waits for it or not.
///
/// # Safety
/// `out` is null or valid. The message's memory stays valid until the request is over.
unsafe fn enqueue(
    name: &str,
    describe: impl FnOnce() -> Result<Request, String>,
    (peer, blocks): (c_int, bool),
    out: *mut *mut Request,
    stream: CudaStream,
) -> c_int {
    call(name, || {
        // SAFETY: the caller's promise.
        let out = unsafe { given(out, "req") }?;
        let mut locked = lock();
        let job = locked.job()?;
        job.check_peer(peer)?;
        let request = describe()?;
        let mut operations = [request.described(), wait_for(1)];
        job.enqueue(stream, &mut operations[..if blocks { 2 } else { 1 }])?;
        hand_out(job, request, out);
        // SAFETY: it was just handed out.
        unsafe { note_started(job, out, operations[0].message) };
        Ok(())
    })
}

/// # Safety
/// As `mp_query_param`, here and below. The stream exists until mp_finalize.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_send_on_stream(
    buffer: *mut c_void,
    size: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
    stream: CudaStream,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let describe = || unsafe { Request::message(kind::SEND, (buffer, size), peer, registration) };
    // SAFETY: as above.
    unsafe { enqueue("mp_send_on_stream", describe, (peer, true), out, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_isend_on_stream(
    buffer: *mut c_void,
    size: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
    stream: CudaStream,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::message(kind::SEND, (buffer, size), peer, registration) };
    // SAFETY: as above.
    unsafe { enqueue("mp_isend_on_stream", describe, (peer, false), out, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_irecv_on_stream(
    buffer: *mut c_void,
    size: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
    stream: CudaStream,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::message(kind::RECEIVE, (buffer, size), peer, registration) };
    // SAFETY: as above.
    unsafe { enqueue("mp_irecv_on_stream", describe, (peer, false), out, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_isendv_on_stream(
    blocks: *mut iovec,
    count: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
    stream: CudaStream,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::blocks(kind::SEND, (blocks, count), peer, registration) };
    // SAFETY: as above.
    unsafe { enqueue("mp_isendv_on_stream", describe, (peer, false), out, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_wait_on_stream(request: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_all("mp_wait_on_stream", 1, request, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_wait_all_on_stream(count: u32, requests: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_all("mp_wait_all_on_stream", count, requests, stream) }
}

/// # Safety
/// As above.
unsafe fn wait_all(name: &str, count: u32, requests: *mut *mut Request, stream: CudaStream) -> c_int {
    call(name, || {
        // SAFETY: the caller's promise.
        let requests = unsafe { array(requests, count, "reqs") }?;
        let mut operations = Vec::with_capacity(requests.len());
        for request in requests {
            // SAFETY: as above.
            let message = unsafe { live(request) }?.started()?;
            operations.push(Operation { message, ..Operation::new(kind::WAIT) });
        }
        lock().job()?.enqueue(stream, &mut operations)
    })
}

/// Prepares a described message.
///
/// # Safety
/// As [`enqueue`].
unsafe fn prepare(
    name: &str,
    describe: impl FnOnce() -> Result<Request, String>,
    peer: c_int,
    out: *mut *mut Request,
) -> c_int {
    call(name, || {
        // SAFETY: the caller's promise.
        let out = unsafe { given(out, "req") }?;
        let mut locked = lock();
        let job = locked.job()?;
        job.check_peer(peer)?;
        let request = describe()?;
        hand_out(job, request, out);
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_send_prepare(
    buffer: *mut c_void,
    size: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::message(kind::SEND, (buffer, size), peer, registration) };
    // SAFETY: as above.
    unsafe { prepare("mp_send_prepare", describe, peer, out) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_sendv_prepare(
    blocks: *mut iovec,
    count: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::blocks(kind::SEND, (blocks, count), peer, registration) };
    // SAFETY: as above.
    unsafe { prepare("mp_sendv_prepare", describe, peer, out) }
}

/// Posts prepared requests together. The stream waits for them or not.
///
/// # Safety
/// As above.
pub(crate) unsafe fn post(
    name: &str,
    (count, requests): (u32, *mut *mut Request),
    (puts, blocks): (bool, bool),
    stream: CudaStream,
) -> c_int {
    call(name, || {
        // SAFETY: the caller's promise.
        let requests = unsafe { array(requests, count, "reqs") }?;
        let mut operations = Vec::with_capacity(2 * requests.len());
        for (at, request) in requests.iter_mut().enumerate() {
            // SAFETY: as above.
            let prepared = unsafe { live(request) }?;
            if prepared.is_put() != puts {
                let what = if puts { "put" } else { "send" };
                return Err(format!("request {at} is no prepared {what}"));
            }
            operations.push(prepared.to_start()?);
            let twice = operations.len();
            if blocks {
                operations.push(wait_for(twice));
            }
        }
        let mut locked = lock();
        let job = locked.job()?;
        job.enqueue(stream, &mut operations)?;
        let started = operations.iter().filter(|operation| operation.kind != kind::WAIT);
        for (request, operation) in requests.iter_mut().zip(started) {
            // SAFETY: as above.
            unsafe { note_started(job, request, operation.message) };
        }
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_send_post_on_stream(request: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: as above.
    unsafe { post("mp_send_post_on_stream", (1, request), (false, true), stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_isend_post_on_stream(request: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: as above.
    unsafe { post("mp_isend_post_on_stream", (1, request), (false, false), stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_send_post_all_on_stream(count: u32, requests: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: as above.
    unsafe { post("mp_send_post_all_on_stream", (count, requests), (false, true), stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_isend_post_all_on_stream(count: u32, requests: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: as above.
    unsafe { post("mp_isend_post_all_on_stream", (count, requests), (false, false), stream) }
}
