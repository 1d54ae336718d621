//! Nonblocking messages. A request belongs to the C program, which waits for it or frees it.

use std::ffi::{c_int, c_void};

use cableway::RawRequest;

use crate::arguments::{self, Out, rank, sender, tag as any_tag};
use crate::code::Failure;
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::{Handle, Named, free};
use crate::memory::Memory;
use crate::outcome::guard;
use crate::status::Status;

/// An operation under way, or complete and not waited for.
pub(crate) struct Request(RawRequest);

impl Named for Request {
    const TAG: u64 = 0x7b4f_c1d6_4e90_e570;
    const NAME: &'static str = "request";
}

/// A place that holds a handle of the C program, or null.
type Place = *mut *mut Handle<Request>;

impl Request {
    /// Starts an operation, and stores its request at the place. Nothing is started if the place is null.
    ///
    /// # Safety
    /// The place is null or valid for a write.
    pub(crate) unsafe fn start(place: Place, begin: impl FnOnce() -> Result<RawRequest, Failure>) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let place = unsafe { Out::new(place, "the place for the request")? };
            place.set(Box::into_raw(Handle::new(Request(begin()?))));
            Ok(())
        })
    }

    /// Waits, and returns the status for the C program and the outcome.
    fn wait(self) -> (Status, Result<(), Failure>) {
        match self.0.wait() {
            Ok(status) => (status.map_or(Status::CANCELLED, Status::from), Ok(())),
            Err(error) => {
                let failure = Failure::from(error);
                let unknown = Status { error: failure.code as c_int, ..Status::EMPTY };
                (failure.truncated.unwrap_or(unknown), Err(failure))
            }
        }
    }
}

/// Waits for the request at a place, and stores null there.
///
/// # Safety
/// The place holds a request or null, and nobody else uses it.
unsafe fn wait_at(place: &Out<*mut Handle<Request>>) -> Result<(Status, Result<(), Failure>), Failure> {
    // SAFETY: the caller's promise.
    let request = unsafe {
        match place.get() {
            handle if handle.is_null() => return Ok((Status::EMPTY, Ok(()))),
            handle => Handle::take(handle)?,
        }
    };
    place.set(std::ptr::null_mut());
    Ok(request.wait())
}

/// Starts a send.
///
/// # Safety
/// The promises of the C program, as those of `cableway_isend`.
unsafe fn start_send(memory: Memory, to: c_int, tag: c_int, on: Handled, request: Place, synchronous: bool) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        Request::start(request, || {
            let buffer = memory.buffer()?;
            Ok(named(on)?.isend_raw(&buffer, rank(to)?, tag, synchronous)?)
        })
    }
}

/// Starts to send.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_isend(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    to: c_int,
    tag: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe { start_send(Memory { address: buffer, count, datatype }, to, tag, communicator, request, false) }
}

/// Starts to send; complete after a receive has matched the message.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_issend(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    to: c_int,
    tag: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe { start_send(Memory { address: buffer, count, datatype }, to, tag, communicator, request, true) }
}

/// Starts to receive.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_irecv(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    source: c_int,
    tag: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let mut buffer = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(named(communicator)?.irecv_raw(&mut buffer, sender(source)?, any_tag(tag))?)
        })
    }
}

/// Waits for a request.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_wait(request: *mut *mut Handle<Request>, status: *mut Status) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(request, "the place of the request")?;
        let (ended, result) = wait_at(&place)?;
        ended.store(status);
        result
    })
}

/// Asks whether a request is complete, and ends it if so.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_test(request: *mut *mut Handle<Request>, done: *mut c_int, status: *mut Status) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(request, "the place of the request")?;
        let done = Out::new(done, "the place for the answer")?;
        let handle = place.get();
        if !handle.is_null() && !Handle::get(handle)?.0.is_complete() {
            done.set(0);
            return Ok(());
        }
        let (ended, result) = wait_at(&place)?;
        done.set(1);
        ended.store(status);
        result
    })
}

/// Returns the requests of an array that are not null, with their indices, or why a handle is wrong.
///
/// # Safety
/// The array holds so many requests or nulls during `'a`, and nobody else uses them.
unsafe fn requests_of<'a>(
    requests: Place,
    count: usize,
) -> Result<impl Iterator<Item = Result<(usize, &'a RawRequest), Failure>>, Failure> {
    // SAFETY: the caller's promise.
    let handles = unsafe { arguments::array(requests, count, "the array of requests")? };
    let some = handles.iter().enumerate().filter(|(_, handle)| !handle.is_null());
    // SAFETY: the caller's promise.
    Ok(some.map(|(at, &handle)| Ok((at, &unsafe { Handle::get(handle)? }.0))))
}

/// Waits for all requests of an array.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_waitall(
    count: usize,
    requests: *mut *mut Handle<Request>,
    statuses: *mut Status,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        // A wrong handle is found before any request has ended.
        requests_of(requests, count)?.try_for_each(|request| request.map(drop))?;
        let mut first = Ok(());
        for at in 0..count {
            let place = Out::new(requests.wrapping_add(at), "the array of requests")?;
            let (ended, result) = wait_at(&place)?;
            if !statuses.is_null() {
                ended.store(statuses.wrapping_add(at));
            }
            first = first.and(result);
        }
        first
    })
}

/// Calls `wait` with the requests of an array that are not null, and ends them without waiting if it succeeds.
///
/// # Safety
/// The array holds so many requests or nulls, and nobody else uses them.
pub(crate) unsafe fn leave_all(
    requests: Place,
    count: usize,
    wait: impl FnOnce(&[&RawRequest]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let (indices, under_way): (Vec<_>, Vec<_>) =
            requests_of(requests, count)?.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        wait(&under_way)?;
        for at in indices {
            let place = Out::new(requests.wrapping_add(at), "the array of requests")?;
            Handle::take(place.get())?.0.leave_to_stream();
            place.set(std::ptr::null_mut());
        }
    }
    Ok(())
}

/// Waits until one request of an array is complete, and ends it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_waitany(
    count: usize,
    requests: *mut *mut Handle<Request>,
    index: *mut usize,
    status: *mut Status,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(index, "the place for the index")?;
        let (indices, under_way): (Vec<_>, Vec<_>) =
            requests_of(requests, count)?.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let Some(found) = RawRequest::wait_any(&under_way) else {
            place.set(count);
            Status::EMPTY.store(status);
            return Ok(());
        };
        let at = indices[found];
        let (ended, result) = wait_at(&Out::new(requests.wrapping_add(at), "the array of requests")?)?;
        place.set(at);
        ended.store(status);
        result
    })
}

/// Cancels a receive that no message has matched.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_cancel(request: *mut Handle<Request>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        Handle::get(request)?.0.cancel();
        Ok(())
    })
}

/// Cancels an operation that can be cancelled, waits for any other, and frees the request.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_request_free(request: *mut *mut Handle<Request>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let mut result = Ok(());
        free(request, |request: Request| {
            request.0.cancel();
            result = request.wait().1;
        })?;
        result
    })
}
