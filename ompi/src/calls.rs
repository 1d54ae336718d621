//! The functions that the shim calls.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use cableway_btl::{Btl, Job};
use cableway_btl_self::SelfLoop;
use cableway_btl_sm::SharedMemory;
use cableway_btl_tcp::Tcp;
use cableway_common_cuda::Devices;
use cableway_pml::{Communicator, Config, Engine, Error, Message, Outcome, Request, SendMode, Status};

use crate::boundary::{
    BufferDescription, Code, JobDescription, StatusReport, guarded, shim_completed, shim_host_progress,
};
use crate::buffer::{buffer_of, create_layout, free_layout, pack};
use crate::host::HostModex;
use crate::state;

/// Polls of our own between two chances for the rest of Open MPI, in a call that waits.
const POLLS_PER_HOST_PROGRESS: u32 = 64;

/// How long finalize waits for what was sent to leave.
const FINALIZE_LIMIT: Duration = Duration::from_secs(10);

/// # Safety
/// `job` is valid for the call. Called once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_start(job: *const JobDescription) -> c_int {
    guarded(Code::Internal.refused(), || {
        state::start_log();
        // SAFETY: the caller's promise.
        let description = unsafe { &*job };
        match start(description) {
            Ok(engine) => {
                state::install(engine);
                0
            }
            Err(error) => {
                log::error!("{error}");
                Code::Internal.refused()
            }
        }
    })
}

fn start(description: &JobDescription) -> Result<Arc<Engine>, Box<dyn std::error::Error>> {
    // SAFETY: the shim passes a string that is valid for the call.
    let id = unsafe { CStr::from_ptr(description.id) }.to_string_lossy().into_owned();
    let job = Job::new(id, description.secret, description.rank, description.size, description.local_size);
    let parameters = Arc::new(state::parameters()?);
    let devices = Devices::open(&parameters);
    let wanted = |name: &str| parameters.btl.is_empty() || parameters.btl.split(',').any(|btl| btl.trim() == name);

    let mut btls: Vec<Arc<dyn Btl>> = vec![SelfLoop::new(&job, &parameters, &devices)];
    if wanted("sm") {
        btls.push(SharedMemory::new(&job, &parameters, &devices)?);
    }
    if wanted("tcp") && (description.local_size < description.size || !wanted("sm")) {
        btls.push(Tcp::new(&job, &parameters, &devices)?);
    }
    let config = Config { modex: Arc::new(HostModex::new(job)), parameters, devices, btls };
    if description.threads {
        Ok(Engine::new(config)?)
    } else {
        // SAFETY: Open MPI serialises its calls unless MPI_THREAD_MULTIPLE was granted.
        Ok(unsafe { Engine::new_serialized(config)? })
    }
}

#[unsafe(no_mangle)]
extern "C" fn cableway_stop() -> bool {
    guarded(false, || state::engine().is_some_and(|engine| engine.finalize(FINALIZE_LIMIT)))
}

#[unsafe(no_mangle)]
extern "C" fn cableway_progress() -> c_int {
    guarded(0, || state::engine().map_or(0, |engine| engine.progress() as c_int))
}

/// # Safety
/// Two valid strings.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_set_parameter(name: *const c_char, value: *const c_char) -> c_int {
    guarded(Code::Internal.refused(), || {
        state::start_log();
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(value)) };
        match state::set_parameter(&name.to_string_lossy(), &value.to_string_lossy()) {
            Ok(()) => 0,
            Err(error) => {
                log::error!("{error}");
                Code::BadArgument.refused()
            }
        }
    })
}

/// # Safety
/// The out-pointers are valid; what they are set to lives as long as the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_parameter_row(
    index: usize,
    name: *mut *const c_char,
    value: *mut *const c_char,
    help: *mut *const c_char,
) -> bool {
    guarded(false, || {
        let Some([row_name, row_value, row_help]) = state::rows().get(index) else { return false };
        // SAFETY: the caller's promise.
        unsafe {
            *name = row_name.as_ptr();
            *value = row_value.as_ptr();
            *help = row_help.as_ptr();
        }
        true
    })
}

/// # Safety
/// `group` holds `size` ranks.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_add(
    context: u32,
    group: *const u32,
    size: usize,
    rank: u32,
) -> *const Communicator {
    guarded(std::ptr::null(), || {
        let Some(engine) = state::engine() else { return std::ptr::null() };
        let group = if size == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(group, size) }.to_vec()
        };
        engine.add_communicator(context, group, rank).map_or_else(
            |error| {
                state::report(&error);
                std::ptr::null()
            },
            Arc::into_raw,
        )
    })
}

/// # Safety
/// From [`cableway_communicator_add`], once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_remove(communicator: *const Communicator) {
    guarded((), || {
        // SAFETY: the caller's promise.
        let communicator = unsafe { Arc::from_raw(communicator) };
        if let Some(engine) = state::engine() {
            engine.remove_communicator(&communicator);
        }
    });
}

/// # Safety
/// Both arrays hold `blocks` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_create(
    offsets: *const i64,
    lengths: *const u64,
    blocks: usize,
    lower_bound: i64,
    extent: i64,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        let pairs: Vec<(i64, u64)> = (0..blocks)
            // SAFETY: the caller's promise.
            .map(|index| unsafe { (*offsets.add(index), *lengths.add(index)) })
            .collect();
        create_layout(&pairs, lower_bound, extent)
    })
}

/// # Safety
/// From [`cableway_layout_create`], once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_free(layout: *mut c_void) {
    // SAFETY: the caller's promise.
    guarded((), || unsafe { free_layout(layout) });
}

/// # Safety
/// The buffer is valid, and `len` bytes at `to`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_pack(from: *const BufferDescription, to: *mut u8, len: u64) -> c_int {
    guarded(Code::Internal as c_int, || {
        let Some(engine) = state::engine() else { return Code::Internal as c_int };
        // SAFETY: the caller's promise.
        match unsafe { pack(&*from, engine.devices(), to, len) } {
            Ok(()) => Code::Ok as c_int,
            Err(error) => {
                log::warn!("packing {len} bytes: {error}");
                Code::Device as c_int
            }
        }
    })
}

/// # Safety
/// A live communicator, a valid buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_now(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise.
        match unsafe { engine.send_now(&*communicator, dest, tag, buffer_of(buffer)) } {
            Ok(sent) => c_int::from(sent),
            Err(error) => refusal(&error).refused(),
        }
    })
}

/// # Safety
/// A live communicator; buffer and request stay valid until the request completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_isend(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    mode: c_int,
    request: *mut Request,
    owner: *mut c_void,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise; the request is not active before this.
        let outcome = unsafe {
            (*request).set_hook(Some((completed, owner)));
            engine.isend(&*communicator, dest, tag, buffer_of(buffer), &mode_of(mode), request)
        };
        match outcome {
            Ok(Outcome::Complete) => 1,
            Ok(Outcome::Started) => 0,
            Err(error) => refusal(&error).refused(),
        }
    })
}

/// # Safety
/// A live communicator, a valid buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    mode: c_int,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        let request = Request::new();
        // SAFETY: the caller's promise; the request lives until it is complete.
        let outcome =
            unsafe { engine.isend(&*communicator, dest, tag, buffer_of(buffer), &mode_of(mode), &raw const request) };
        let result = match outcome {
            Ok(Outcome::Complete) => Ok(Status::EMPTY),
            Ok(Outcome::Started) => wait(engine, &request),
            Err(error) => Err(error),
        };
        result.map_or_else(|error| refusal(&error).refused(), |_| 0)
    })
}

/// # Safety
/// A live communicator; buffer and request stay valid until the request completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_irecv(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    request: *mut Request,
    owner: *mut c_void,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise; the request is not active before this.
        let started = unsafe {
            (*request).set_hook(Some((completed, owner)));
            engine.irecv(&*communicator, source, tag, buffer_of(buffer), request)
        };
        started.map_or_else(|error| refusal(&error).refused(), |()| 0)
    })
}

/// # Safety
/// A live communicator, a valid buffer and status.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_recv(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    status: *mut StatusReport,
) {
    // SAFETY: the caller's promise, here and below.
    unsafe { *status = StatusReport::new(Status::EMPTY, Code::Internal) };
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        let request = Request::new();
        // SAFETY: the request lives until it is complete.
        let started = unsafe { engine.irecv(&*communicator, source, tag, buffer_of(buffer), &raw const request) };
        let result = started.and_then(|()| wait(engine, &request));
        // SAFETY: as above.
        unsafe { *status = StatusReport::of(result) };
    });
}

/// # Safety
/// A request that was started.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_cancel(request: *mut Request) {
    guarded((), || {
        if let Some(engine) = state::engine() {
            // SAFETY: the caller's promise.
            unsafe { engine.cancel(request) };
        }
    });
}

/// # Safety
/// A live communicator; `status` is valid, `message` is valid or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iprobe(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    status: *mut StatusReport,
    message: *mut *mut Message,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        let found = if message.is_null() {
            // SAFETY: the caller's promise.
            engine.iprobe(unsafe { &*communicator }, source, tag)
        } else {
            // SAFETY: the pointer came from `Arc::into_raw` and its communicator is alive: one more reference.
            let communicator = unsafe {
                Arc::increment_strong_count(communicator);
                Arc::from_raw(communicator)
            };
            engine.improbe(&communicator, source, tag).map(|taken| {
                taken.map(|taken| {
                    let seen = taken.status();
                    // SAFETY: not null, valid by the caller's promise.
                    unsafe { *message = Box::into_raw(Box::new(taken)) };
                    seen
                })
            })
        };
        match found {
            Ok(Some(seen)) => {
                // SAFETY: the caller's promise.
                unsafe { *status = StatusReport::new(seen, Code::Ok) };
                1
            }
            Ok(None) => 0,
            Err(error) => refusal(&error).refused(),
        }
    })
}

/// # Safety
/// A message from [`cableway_iprobe`], once; buffer and request stay valid until the request completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_imrecv(
    message: *mut Message,
    buffer: *const BufferDescription,
    request: *mut Request,
    owner: *mut c_void,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise.
        unsafe {
            (*request).set_hook(Some((completed, owner)));
            engine.imrecv(*Box::from_raw(message), buffer_of(buffer), request);
        }
        0
    })
}

/// # Safety
/// A message from [`cableway_iprobe`], once; a valid buffer and status.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mrecv(
    message: *mut Message,
    buffer: *const BufferDescription,
    status: *mut StatusReport,
) {
    // SAFETY: the caller's promise, here and below.
    unsafe { *status = StatusReport::new(Status::EMPTY, Code::Internal) };
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        let request = Request::new();
        // SAFETY: the request lives until it is complete.
        unsafe { engine.imrecv(*Box::from_raw(message), buffer_of(buffer), &raw const request) };
        let result = wait(engine, &request);
        // SAFETY: as above.
        unsafe { *status = StatusReport::of(result) };
    });
}

/// # Safety
/// `CABLEWAY_REQUEST_BYTES` of memory, aligned to 64.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_request_construct(request: *mut Request) {
    // SAFETY: room and alignment are asserted in `boundary`.
    unsafe { request.write(Request::new()) };
}

/// # Safety
/// Constructed, and not active.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_request_destruct(request: *mut Request) {
    // SAFETY: the caller's promise.
    guarded((), || unsafe { request.drop_in_place() });
}

#[unsafe(no_mangle)]
extern "C" fn cableway_dump(_communicator: *const Communicator) {
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        for (name, help, value) in engine.counters().rows() {
            log::info!("{name} {value} ({help})");
        }
    });
}

/// The hook of every request of the shim's.
///
/// # Safety
/// `owner` is the shim's request that `request` is part of; both may be gone when this returns.
unsafe fn completed(request: *const Request, owner: *mut c_void) {
    // SAFETY: the request is complete, and alive until the shim is told.
    let report = unsafe {
        let status = (*request).status();
        match (*request).error() {
            None => StatusReport::new(status, Code::Ok),
            Some(error @ Error::Truncated { .. }) => StatusReport::new(status, Code::from(error)),
            Some(error) => {
                state::report(error);
                StatusReport::new(status, Code::from(error))
            }
        }
    };
    // SAFETY: `owner` is what the shim gave with the request.
    unsafe { shim_completed(owner, &report) };
}

/// Progresses until `request` is complete: mostly the engine alone, now and then all of Open MPI.
fn wait(engine: &Engine, request: &Request) -> Result<Status, Error> {
    let mut polls = 0;
    while !request.is_complete() {
        if engine.progress() == 0 {
            polls += 1;
            if polls % POLLS_PER_HOST_PROGRESS == 0 {
                // SAFETY: Open MPI is initialised while it calls us.
                unsafe { shim_host_progress() };
            }
        }
    }
    request.result()
}

fn mode_of(mode: c_int) -> SendMode {
    match mode {
        1 => SendMode::Synchronous,
        2 => SendMode::Ready,
        _ => SendMode::Standard,
    }
}

fn refusal(error: &Error) -> Code {
    state::report(error);
    Code::from(error)
}
