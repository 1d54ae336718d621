//! Windows, puts and gets.

use std::ffi::{c_int, c_void};

use crate::CudaStream;
use crate::call::{call, given};
use crate::component::{Operation, checked, kind};
use crate::job::{Job, lock};
use crate::request::{Access, Registration, Request, hand_out, note_started};
use crate::stream::post;

/// `struct mp_window` is the component's window.
type Window = c_void;

/// # Safety
/// As `mp_query_param`, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_window_create(address: *mut c_void, size: usize, out: *mut *mut Window) -> c_int {
    call("mp_window_create", || {
        // SAFETY: the caller's promise.
        let out = unsafe { given(out, "window") }?;
        // Not locked while this process waits for the others.
        let (component, raw) = {
            let mut locked = lock();
            let job = locked.job()?;
            (job.component, *job.raw())
        };
        let open = component.window_open;
        // SAFETY: the caller's promise; the job is open.
        checked(|why, room| unsafe { open(&raw const raw, address, size as u64, &raw mut *out, why, room) })?;
        lock().job()?.windows += 1;
        Ok(())
    })
}

/// # Safety
/// As above. The program has waited for its puts and gets.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_window_destroy(window: *mut *mut Window) -> c_int {
    call("mp_window_destroy", || {
        // SAFETY: the caller's promise.
        let window = unsafe { given(window, "window") }?;
        if window.is_null() {
            return Err("the window is NULL, or was destroyed".to_owned());
        }
        let component = lock().job()?.component;
        // SAFETY: the window is open, and not used afterwards.
        unsafe { (component.window_close)(std::mem::replace(window, std::ptr::null_mut())) };
        let mut locked = lock();
        let job = locked.job()?;
        job.windows = job.windows.saturating_sub(1);
        Ok(())
    })
}

/// The arguments that puts and gets share.
struct Arguments {
    kind: c_int,
    buffer: *mut c_void,
    size: c_int,
    registration: *mut *mut Registration,
    peer: c_int,
    displacement: usize,
    window: *mut *mut Window,
    flags: c_int,
}

impl Arguments {
    /// # Safety
    /// As above.
    unsafe fn describe(&self, job: &Job) -> Result<Request, String> {
        job.check_peer(self.peer)?;
        // SAFETY: the caller's promise.
        let window = *unsafe { given(self.window, "window") }?;
        if window.is_null() {
            return Err("the window is NULL, or was destroyed".to_owned());
        }
        let access = Access { window, displacement: self.displacement as u64, flags: self.flags };
        let buffer = (self.buffer, self.size);
        // SAFETY: the caller's promise.
        unsafe { Request::access(job, self.kind, buffer, self.peer, self.registration, &access) }
    }
}

/// When a put or get starts.
enum When {
    Now,
    OnStream(CudaStream),
    /// When it is posted.
    Posted,
}

/// # Safety
/// As above.
unsafe fn start(name: &str, arguments: &Arguments, out: *mut *mut Request, when: &When) -> c_int {
    call(name, || {
        // SAFETY: the caller's promise.
        let out = unsafe { given(out, "req") }?;
        let mut locked = lock();
        let job = locked.job()?;
        // SAFETY: the caller's promise.
        let request = unsafe { arguments.describe(job) }?;
        let mut operations: [Operation; 1] = [request.described()];
        match when {
            When::Now => job.start(&mut operations)?,
            When::OnStream(stream) => job.enqueue(*stream, &mut operations)?,
            When::Posted => {
                hand_out(job, request, out);
                return Ok(());
            }
        }
        hand_out(job, request, out);
        // SAFETY: it was just handed out.
        unsafe { note_started(job, out, operations[0].message) };
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_iput(
    buffer: *mut c_void,
    size: c_int,
    registration: *mut *mut Registration,
    peer: c_int,
    displacement: usize,
    window: *mut *mut Window,
    out: *mut *mut Request,
    flags: c_int,
) -> c_int {
    let put = Arguments { kind: kind::PUT, buffer, size, registration, peer, displacement, window, flags };
    // SAFETY: the caller's promise.
    unsafe { start("mp_iput", &put, out, &When::Now) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_iget(
    buffer: *mut c_void,
    size: c_int,
    registration: *mut *mut Registration,
    peer: c_int,
    displacement: usize,
    window: *mut *mut Window,
    out: *mut *mut Request,
) -> c_int {
    let get = Arguments { kind: kind::GET, buffer, size, registration, peer, displacement, window, flags: 0 };
    // SAFETY: the caller's promise.
    unsafe { start("mp_iget", &get, out, &When::Now) }
}

/// # Safety
/// As above. The stream exists until mp_finalize.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_iput_on_stream(
    buffer: *mut c_void,
    size: c_int,
    registration: *mut *mut Registration,
    peer: c_int,
    displacement: usize,
    window: *mut *mut Window,
    out: *mut *mut Request,
    flags: c_int,
    stream: CudaStream,
) -> c_int {
    let put = Arguments { kind: kind::PUT, buffer, size, registration, peer, displacement, window, flags };
    // SAFETY: the caller's promise.
    unsafe { start("mp_iput_on_stream", &put, out, &When::OnStream(stream)) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_put_prepare(
    buffer: *mut c_void,
    size: c_int,
    registration: *mut *mut Registration,
    peer: c_int,
    displacement: usize,
    window: *mut *mut Window,
    out: *mut *mut Request,
    flags: c_int,
) -> c_int {
    let put = Arguments { kind: kind::PUT, buffer, size, registration, peer, displacement, window, flags };
    // SAFETY: the caller's promise.
    unsafe { start("mp_put_prepare", &put, out, &When::Posted) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_iput_post_on_stream(request: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post("mp_iput_post_on_stream", (1, request), (true, false), stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_iput_post_all_on_stream(count: u32, requests: *mut *mut Request, stream: CudaStream) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post("mp_iput_post_all_on_stream", (count, requests), (true, false), stream) }
}
