//! Collective operations in the order of a stream.

use std::ffi::{c_int, c_void};

use cableway_coll::{Group, Operation};
use cableway_pml::{Communicator, Error, Stream, StreamJob, StreamMessage};

use super::{complete_after, report, running};
use crate::boundary::Code;
use crate::collectives::{self, Description};
use crate::guard::guarded;
use crate::state;

/// An operation that starts when its stream gets there.
struct Job {
    operation: Operation,
    ended: bool,
}

// SAFETY: the operation's memory is that of the call, which any thread may access until it is over, and requests that the
// engine accepts from any thread. One thread at a time has the job.
unsafe impl Send for Job {}

impl StreamJob for Job {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        let result = match self.operation.poll() {
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(cableway_coll::Error::Message(error)) => Err(error),
            Err(error) => {
                collectives::report(&error);
                Err(Error::BadRequest { reason: "a collective operation of a stream failed, as the log says" })
            }
        };
        self.ended = true;
        Some(result)
    }
}

impl Drop for Job {
    /// Dropping an operation waits for it. One that has not started, or whose stream no one serves any more, must not wait
    /// for processes that never take part.
    fn drop(&mut self) {
        if !self.ended {
            self.operation.give_up();
        }
    }
}

/// Returns the operations of a communicator that nothing else uses, or null.
///
/// # Safety
/// `communicator` is from `cableway_communicator_add`, and is removed after the group is freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_group_new(communicator: *const Communicator) -> *mut Group {
    guarded(std::ptr::null_mut(), || {
        let Some(shared) = state::engine().and_then(collectives::shared) else { return std::ptr::null_mut() };
        // SAFETY: the caller's promise.
        let on = unsafe { collectives::counted(communicator) };
        // Later a stream may wait.
        if let Some(Ok(streams)) =
            state::engine().and_then(|engine| engine.handle()).map(|engine| running::streams(&engine))
        {
            streams.load_collectives();
        }
        Box::into_raw(Box::new(Group::in_streams(shared.clone(), on)))
    })
}

/// # Safety
/// `group` is from [`cableway_stream_group_new`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_group_free(group: *mut Group) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(group) }));
}

/// Adds a collective operation to a stream, which waits for it. If `message` is set afterwards, `shim_stream_completed` is
/// called with the owner once it is over, also after an error.
///
/// # Safety
/// The stream and the group are live; all calls of a group are on one stream. The description is valid, and its memory is
/// valid until the operation is over.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_collective(
    stream: *const Stream,
    group: *const Group,
    description: *const Description,
    owner: *mut c_void,
    message: *mut *mut StreamMessage,
) -> c_int {
    guarded(Code::Internal as c_int, || {
        if state::engine().is_none() {
            return Code::Internal as c_int;
        }
        // SAFETY: the caller's promise, here and below.
        let mut batch = match unsafe { &*stream }.batch() {
            Ok(batch) => batch,
            Err(error) => return report(&error),
        };
        // The batch locks the stream, so that the operations start in the order of its calls.
        // SAFETY: as above.
        let operation = match unsafe { (*description).call().and_then(|call| (*group).start(&call)) } {
            Ok(operation) => operation,
            Err(error) => return collectives::report(&error),
        };
        // SAFETY: as above.
        let added = unsafe { batch.run(Box::new(Job { operation, ended: false })) };
        complete_after(&added, owner);
        batch.wait(&[&added]);
        // SAFETY: as above.
        unsafe { *message = Box::into_raw(Box::new(added)) };
        batch.post().map_or_else(|error| report(&error), |()| Code::Ok as c_int)
    })
}
