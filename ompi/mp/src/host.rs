//! Messages that the host starts and waits for, and registrations.

use std::ffi::{c_int, c_void};

use libc::iovec;

use crate::call::{FAILURE, array, call, given};
use crate::component::{checked, kind};
use crate::job::lock;
use crate::request::{Registration, Request, hand_out, live, note_started, release};

/// Starts a described message on the host.
///
/// # Safety
/// `out` is null or valid. The message's memory stays valid until the request is over.
unsafe fn start(
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
        let mut operations = [request.described()];
        job.start(&mut operations)?;
        hand_out(job, request, out);
        // SAFETY: it was just handed out.
        unsafe { note_started(job, out, operations[0].message) };
        Ok(())
    })
}

/// # Safety
/// As `mp_query_param`, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_register(address: *mut c_void, len: usize, out: *mut *mut Registration) -> c_int {
    call("mp_register", || {
        // SAFETY: the caller's promise.
        let out = unsafe { given(out, "reg") }?;
        let mut locked = lock();
        let job = locked.job()?;
        if address.is_null() && len > 0 {
            return Err(format!("the memory of {len} bytes is NULL"));
        }
        // SAFETY: the program keeps the memory until it deregisters it.
        let pinned = unsafe { (job.component.memory_register)(address, len as u64) };
        job.registered |= !pinned.is_null();
        let registration = Registration { address: address.expose_provenance(), len: len as u64, pinned };
        *out = Box::into_raw(Box::new(registration));
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_deregister(registration: *mut *mut Registration) -> c_int {
    call("mp_deregister", || {
        // SAFETY: the caller's promise.
        let out = unsafe { given(registration, "reg") }?;
        if out.is_null() {
            return Err("the registration is NULL, or was deregistered".to_owned());
        }
        let mut locked = lock();
        let job = locked.job()?;
        // SAFETY: the caller's promise.
        let registration = unsafe { Box::from_raw(std::mem::replace(out, std::ptr::null_mut())) };
        if !registration.pinned.is_null() {
            // SAFETY: from the component, and released once.
            unsafe { (job.component.memory_release)(registration.pinned) };
        }
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_isend(
    buffer: *mut c_void,
    size: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let describe = || unsafe { Request::message(kind::SEND, (buffer, size), peer, registration) };
    // SAFETY: as above.
    unsafe { start("mp_isend", describe, peer, out) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_irecv(
    buffer: *mut c_void,
    size: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::message(kind::RECEIVE, (buffer, size), peer, registration) };
    // SAFETY: as above.
    unsafe { start("mp_irecv", describe, peer, out) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_isendv(
    blocks: *mut iovec,
    count: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::blocks(kind::SEND, (blocks, count), peer, registration) };
    // SAFETY: as above.
    unsafe { start("mp_isendv", describe, peer, out) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_irecvv(
    blocks: *mut iovec,
    count: c_int,
    peer: c_int,
    registration: *mut *mut Registration,
    out: *mut *mut Request,
) -> c_int {
    // SAFETY: as above.
    let describe = || unsafe { Request::blocks(kind::RECEIVE, (blocks, count), peer, registration) };
    // SAFETY: as above.
    unsafe { start("mp_irecvv", describe, peer, out) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_wait(request: *mut *mut Request) -> c_int {
    // SAFETY: the caller's promise.
    call("mp_wait", || unsafe { wait(request) })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_wait_all(count: u32, requests: *mut *mut Request) -> c_int {
    call("mp_wait_all", || {
        // SAFETY: the caller's promise.
        let requests = unsafe { array(requests, count, "reqs") }?;
        // All are waited for, also after an error.
        // SAFETY: as above.
        let results: Vec<_> = requests.iter_mut().map(|request| unsafe { wait(request) }).collect();
        let numbered = results.into_iter().enumerate();
        let errors: Vec<String> =
            numbered.filter_map(|(at, result)| Some(format!("request {at}: {}", result.err()?))).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    })
}

/// Waits for a request on the calling thread, and releases it.
///
/// # Safety
/// As above.
unsafe fn wait(request: *mut *mut Request) -> Result<(), String> {
    // SAFETY: the caller's promise.
    let live = unsafe { live(request) }?;
    let (message, words) = (live.started()?, live.kernel_waits());
    let component = lock().job()?.component;
    // SAFETY: the request owns the message. No lock is held, so that other threads go on.
    let ended = checked(|why, room| unsafe { (component.wait)(message, why, room) });
    // A kernel that learns of an error may end at once.
    if let (Ok(()), Some(words)) = (&ended, words) {
        // SAFETY: the request owns the words.
        component.wait_until(|| unsafe { (component.words_seen)(words) });
    }
    // SAFETY: the caller's promise.
    unsafe { release(lock().job()?, given(request, "req")?) };
    ended
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_progress_all(count: u32, requests: *mut *mut Request) -> c_int {
    let mut over = 0;
    let code = call("mp_progress_all", || {
        // SAFETY: the caller's promise.
        let requests = unsafe { array(requests, count, "reqs") }?;
        let mut locked = lock();
        let job = locked.job()?;
        // SAFETY: as above.
        let started = requests.iter().filter_map(|request| unsafe { request.as_ref() }?.started().ok());
        // SAFETY: the requests own the messages.
        over = started.filter(|message| unsafe { (job.component.is_over)(*message) }).count() as c_int;
        Ok(())
    });
    if code == FAILURE { -1 } else { over }
}
