//! Messages in the order of a stream, for the shim: `shim/streams/streams.h`.

mod collective;
mod running;
mod slot;

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cableway_common_cuda::Vendor;
use cableway_pml::{Communicator, Error, Stream, StreamMessage};

use crate::boundary::{BufferDescription, Code, StatusReport};
use crate::buffer::buffer_of;
use crate::deferred::{self, Owner};
use crate::guard::guarded;
use crate::state;
use slot::Slot;

pub(crate) use running::{check, stop, streams as of};

/// `enum cableway_stream_kind`
mod kind {
    use std::ffi::c_int;

    pub(super) const CUDA: c_int = 0;
}

unsafe extern "C" {
    fn shim_stream_completed(owner: *mut c_void, report: *const StatusReport);
    fn shim_mpix() -> *const c_void;
}

/// Logs an error, and returns its code.
fn report(error: &Error) -> c_int {
    state::report(error);
    (match error {
        Error::OneConnection | Error::NoThread { .. } => Code::Device,
        other => Code::from(other),
    }) as c_int
}

/// Returns the functions of MPICH's stream extensions: `struct cableway_mpix` of `shim/mpix.h`. `libcableway_mpix.so`
/// looks this symbol up.
#[unsafe(no_mangle)]
extern "C" fn cableway_mpix() -> *const c_void {
    // SAFETY: it returns the address of a constant.
    unsafe { shim_mpix() }
}

/// # Safety
/// `out` is valid. The program's stream exists until [`cableway_stream_retire`] or [`cableway_stream_free`], and until every
/// call on it is done.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_create(kind: c_int, handle: usize, out: *mut *mut Stream) -> c_int {
    guarded(Code::Internal as c_int, || {
        let Some(engine) = state::engine().and_then(|engine| engine.handle()) else { return Code::Internal as c_int };
        let vendor = if kind == kind::CUDA { Vendor::Nvidia } else { Vendor::Amd };
        // SAFETY: the caller's promise.
        let made = running::streams(&engine).and_then(|streams| unsafe { streams.stream(vendor, handle) });
        match made {
            Ok(stream) => {
                // SAFETY: the caller's promise.
                unsafe { *out = Box::into_raw(Box::new(stream)) };
                Code::Ok as c_int
            }
            Err(error) => report(&error),
        }
    })
}

/// # Safety
/// `stream` is from [`cableway_stream_create`]. Only messages that exist already use it later.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_retire(stream: *const Stream) {
    // SAFETY: the caller's promise.
    guarded((), || unsafe { &*stream }.retire());
}

/// # Safety
/// `stream` is from [`cableway_stream_create`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_free(stream: *mut Stream) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(stream) }));
}

/// `struct cableway_stream_call`
#[repr(C)]
struct CallDescription {
    communicator: *const Communicator,
    buffer: BufferDescription,
    peer: i32,
    tag: i32,
    receive: bool,
    wait: bool,
    owner: *mut c_void,
    status: *mut c_void,
    message: *mut StreamMessage,
}

/// Adds a message to a stream. If `call.message` is set afterwards, the message exists, and `shim_stream_completed` is
/// called with the owner on a thread of the program once it is over, also after an error.
///
/// # Safety
/// `stream` is from [`cableway_stream_create`]. The call's buffer, and its status if it is not null, are valid until the
/// message is over; the communicator is live until then.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_start(stream: *const Stream, call: *mut CallDescription) -> c_int {
    guarded(Code::Internal as c_int, || {
        if state::engine().is_none() {
            return Code::Internal as c_int;
        }
        // SAFETY: the caller's promise.
        let started = unsafe { start(&*stream, &mut *call) };
        started.map_or_else(|error| report(&error), |()| Code::Ok as c_int)
    })
}

/// # Safety
/// As [`cableway_stream_start`].
unsafe fn start(stream: &Stream, call: &mut CallDescription) -> Result<(), Error> {
    let mut batch = stream.batch()?;
    // SAFETY: the pointer is from `Arc::into_raw`, and the communicator is live.
    let communicator = unsafe {
        Arc::increment_strong_count(call.communicator);
        Arc::from_raw(call.communicator)
    };
    // SAFETY: the layout is that of a live datatype.
    let buffer = unsafe { buffer_of(&raw const call.buffer) };
    // SAFETY: the caller's promise.
    let message = unsafe {
        match (call.receive, call.wait) {
            (true, true) => batch.recv(&communicator, call.peer, call.tag, buffer),
            (true, false) => batch.irecv(&communicator, call.peer, call.tag, buffer),
            (false, true) => batch.send(&communicator, call.peer, call.tag, buffer),
            (false, false) => batch.isend(&communicator, call.peer, call.tag, buffer),
        }
    }?;
    let slot = (!call.status.is_null()).then(|| Slot::new(call.status));
    if let Some(slot) = &slot {
        slot.fill_after(&message);
    }
    complete_after(&message, call.owner);
    call.message = Box::into_raw(Box::new(message));
    // The program may reuse the status after an error.
    batch.post().inspect_err(|_| slot.iter().for_each(Slot::close))
}

/// Has the shim's owner of a message completed once it is over, on a thread of the program.
fn complete_after(message: &StreamMessage, owner: *mut c_void) {
    let owner = Owner::new(owner);
    message.then(move |result| {
        let report = StatusReport::quietly(result);
        // Never at once: the stream's lock may be held, and completion calls back into Open MPI.
        deferred::defer(Box::new(move || {
            // SAFETY: the owner of a message that is over.
            unsafe { shim_stream_completed(owner.get(), &raw const report) };
        }));
    });
}

/// Makes a stream wait until messages are over. Each of `statuses` is filled before the stream goes on, unless it is
/// null. After an error none is filled any more.
///
/// # Safety
/// `stream` is from [`cableway_stream_create`]. Both arrays have `count` entries; the messages are from
/// [`cableway_stream_start`], and the statuses valid until the messages are over.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_wait(
    stream: *const Stream,
    messages: *const *const StreamMessage,
    statuses: *const *mut c_void,
    count: usize,
) -> c_int {
    guarded(Code::Internal as c_int, || {
        if state::engine().is_none() {
            return Code::Internal as c_int;
        }
        // SAFETY: the caller's promise.
        let messages: Vec<&StreamMessage> = (0..count).map(|at| unsafe { &**messages.add(at) }).collect();
        // SAFETY: the caller's promise.
        let statuses: Vec<*mut c_void> = (0..count).map(|at| unsafe { *statuses.add(at) }).collect();
        // SAFETY: the caller's promise.
        match wait(unsafe { &*stream }, &messages, &statuses) {
            Ok(()) => Code::Ok as c_int,
            Err(error) => report(&error),
        }
    })
}

fn wait(stream: &Stream, messages: &[&StreamMessage], statuses: &[*mut c_void]) -> Result<(), Error> {
    let mut batch = stream.batch()?;
    let filled = messages.iter().zip(statuses).filter(|(_, status)| !status.is_null());
    let slots: Vec<Slot> = filled
        .map(|(message, status)| {
            let slot = Slot::new(*status);
            slot.fill_after(message);
            slot
        })
        .collect();
    batch.wait(messages);
    // The program may reuse the statuses after an error.
    batch.post().inspect_err(|_| slots.iter().for_each(Slot::close))
}

/// Notes that the program has the error of a message, so that no call on the stream tells it again.
///
/// # Safety
/// `message` is from [`cableway_stream_start`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_message_told(message: *const StreamMessage) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { &*message }.result()));
}

/// # Safety
/// As [`cableway_stream_message_told`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_message_cancel(message: *const StreamMessage) {
    guarded((), || {
        if state::engine().is_some() {
            // SAFETY: the caller's promise.
            unsafe { &*message }.cancel();
        }
    });
}

/// # Safety
/// `message` is from [`cableway_stream_start`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_message_free(message: *mut StreamMessage) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(message) }));
}
