//! How a stream, or the host, gets what was described.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::answer::{Failure, answer, no_flags};
use super::descriptor::{Descriptor, OfRequest, SEND_MARK, WAIT_MARK, argument, tag};
use crate::CudaStream;
use crate::call::given;
use crate::component::{Operation, checked, kind};
use crate::job::lock;
use crate::queue::{Entry, Queue};
use crate::request::{Request, live, note_started};
use crate::word::{self, Condition};

/// Returns the request of a descriptor.
///
/// # Safety
/// The pointer is null or valid.
unsafe fn request(of: *const OfRequest, mark: u64) -> Result<*mut *mut Request, Failure> {
    // SAFETY: the caller's promise.
    unsafe { argument(of.cast_mut(), "the request of a descriptor") }?.of(mark)
}

/// Returns the operation of a descriptor that has no request.
fn operation(descriptor: &Descriptor) -> Result<Operation, Failure> {
    // SAFETY: the tag says which it is, and each is valid with any bytes.
    unsafe {
        match descriptor.tag {
            tag::WAIT_VALUE32 => descriptor.what.wait.operation(),
            tag::WRITE_VALUE32 => descriptor.what.write.operation(),
            tag::WRITE_MEMORY => descriptor.what.memory.operation(),
            unknown => Err(Failure::Invalid(format!("there is no tag {unknown}: use a GDS_TAG_ constant"))),
        }
    }
}

/// Returns what a stream gets.
///
/// # Safety
/// The requests of the descriptors are live.
unsafe fn queue(descriptors: &[Descriptor]) -> Result<Queue, Failure> {
    let mut queue = Queue::default();
    for descriptor in descriptors {
        // SAFETY: the caller's promise, and the tag says which it is.
        unsafe {
            match descriptor.tag {
                tag::SEND => queue.add_send(request(descriptor.what.request, SEND_MARK)?).map_err(Failure::Invalid)?,
                tag::WAIT => queue.add_wait(request(descriptor.what.request, WAIT_MARK)?).map_err(Failure::Invalid)?,
                _ => queue.add_word(operation(descriptor)?),
            }
        }
    }
    Ok(queue)
}

/// Adds entries to a stream by one call.
///
/// # Safety
/// As [`queue`]. The stream exists until mp_finalize.
unsafe fn post(stream: CudaStream, queue: &Queue) -> Result<(), Failure> {
    sources_are_on_host(queue.entries())?;
    // SAFETY: the caller's promise.
    let Err(text) = (unsafe { queue.post(stream) }) else { return Ok(()) };
    let mut locked = lock();
    let Ok(job) = locked.job() else { return Err(Failure::Failed(text)) };
    let unreached = queue.entries().iter().any(|entry| match entry {
        Entry::Word(Operation { kind: kind::WAIT_WORD | kind::WRITE_WORD, address, .. }) => !job.reaches(*address, 4),
        _ => false,
    });
    Err(if unreached { Failure::Unreached(text) } else { Failure::Failed(text) })
}

/// Checks that the CPU can read what is written, which it does before the call returns.
fn sources_are_on_host(entries: &[Entry]) -> Result<(), Failure> {
    for entry in entries {
        if let Entry::Word(Operation { kind: kind::WRITE_BYTES, source, len, .. }) = *entry {
            let component = lock().job().map_err(Failure::Failed)?.component;
            // SAFETY: it takes any address.
            if !unsafe { (component.on_host)(source, len) } {
                return Err(Failure::Invalid(format!("src at {source:p} is device memory: give host memory")));
            }
        }
    }
    Ok(())
}

/// Returns the program's descriptors.
///
/// # Safety
/// There are `count`, or the pointer is null.
unsafe fn given_descriptors<'d>(descriptors: *const Descriptor, count: usize) -> Result<&'d [Descriptor], Failure> {
    match (descriptors.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::Invalid(format!("descs is NULL, but n_descs is {count}"))),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(descriptors, count) }),
    }
}

/// # Safety
/// As `mp_query_param`, here and below. The stream exists until mp_finalize.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_stream_post_descriptors(
    stream: CudaStream,
    count: usize,
    descriptors: *mut Descriptor,
    flags: c_int,
) -> c_int {
    answer("gds_stream_post_descriptors", || {
        no_flags(flags)?;
        // SAFETY: the caller's promise, here and below.
        let descriptors = unsafe { given_descriptors(descriptors, count) }?;
        // SAFETY: as above.
        unsafe { post(stream, &queue(descriptors)?) }
    })
}

/// Posts requests of one kind.
///
/// # Safety
/// As above; there are `count` requests.
unsafe fn post_requests(
    name: &str,
    (count, requests): (c_int, *mut OfRequest),
    mark: u64,
    stream: CudaStream,
) -> c_int {
    answer(name, || {
        let count =
            u32::try_from(count).map_err(|_| Failure::Invalid(format!("count is {count}: it must not be negative")))?;
        let mut queue = Queue::default();
        for at in 0..count as usize {
            // SAFETY: the caller's promise, here and below.
            let request = unsafe { request(requests.wrapping_add(at), mark) }?;
            // SAFETY: as above.
            let added = unsafe { if mark == SEND_MARK { queue.add_send(request) } else { queue.add_wait(request) } };
            added.map_err(Failure::Invalid)?;
        }
        // SAFETY: as above.
        unsafe { post(stream, &queue) }
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_stream_post_send(stream: CudaStream, request: *mut OfRequest) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_requests("gds_stream_post_send", (1, request), SEND_MARK, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_stream_post_send_all(stream: CudaStream, count: c_int, requests: *mut OfRequest) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_requests("gds_stream_post_send_all", (count, requests), SEND_MARK, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_stream_post_wait_cq(stream: CudaStream, request: *mut OfRequest) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_requests("gds_stream_post_wait_cq", (1, request), WAIT_MARK, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_stream_post_wait_cq_all(stream: CudaStream, count: c_int, requests: *mut OfRequest) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { post_requests("gds_stream_post_wait_cq_all", (count, requests), WAIT_MARK, stream) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_post_descriptors(count: usize, descriptors: *mut Descriptor, flags: c_int) -> c_int {
    answer("gds_post_descriptors", || {
        no_flags(flags)?;
        // SAFETY: the caller's promise, here and below.
        let descriptors = unsafe { given_descriptors(descriptors, count) }?;
        // All are checked before one is performed.
        // SAFETY: as above.
        let queue = unsafe { queue(descriptors) }?;
        sources_are_on_host(queue.entries())?;
        words_are_on_host(queue.entries())?;
        for &entry in queue.entries() {
            // SAFETY: as above.
            unsafe {
                match entry {
                    Entry::Send(request) => start(request),
                    Entry::Wait(request, _) => finish(&*request),
                    Entry::Word(operation) => perform(&operation),
                }
            }?;
        }
        Ok(())
    })
}

/// Checks that the CPU reaches all memory.
fn words_are_on_host(entries: &[Entry]) -> Result<(), Failure> {
    for entry in entries {
        if let Entry::Word(Operation { kind, address, len, .. }) = *entry {
            let len = if kind == kind::WRITE_BYTES { len } else { 4 };
            let component = lock().job().map_err(Failure::Failed)?.component;
            // SAFETY: it takes any address.
            if !unsafe { (component.on_host)(address, len) } {
                return Err(Failure::Unreached(format!(
                    "the memory at {address:p} is on a device: use gds_stream_post_descriptors"
                )));
            }
        }
    }
    Ok(())
}

/// Starts a prepared send on the calling thread.
///
/// # Safety
/// The request is live.
unsafe fn start(request: *mut *mut Request) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let mut operations = [unsafe { live(request) }.and_then(|request| request.to_start()).map_err(Failure::Invalid)?];
    let mut locked = lock();
    let job = locked.job().map_err(Failure::Failed)?;
    job.start(&mut operations).map_err(Failure::Failed)?;
    // SAFETY: as above.
    unsafe { note_started(job, given(request, "req").map_err(Failure::Invalid)?, operations[0].message) };
    Ok(())
}

/// Waits on the calling thread until a request is over, which is still to be released.
fn finish(request: &Request) -> Result<(), Failure> {
    let message = request.started().map_err(Failure::Invalid)?;
    let component = lock().job().map_err(Failure::Failed)?.component;
    // SAFETY: the request owns the message. No lock is held, so that other threads go on.
    checked(|why, room| unsafe { (component.wait)(message, why, room) }).map_err(Failure::Failed)
}

/// Performs an operation on host memory.
///
/// # Safety
/// The memory is valid host memory, and others access words atomically.
unsafe fn perform(operation: &Operation) -> Result<(), Failure> {
    let word = operation.address.cast::<u32>();
    match operation.kind {
        kind::WAIT_WORD => {
            let condition = Condition::numbered(operation.condition)
                .ok_or(Failure::invalid("the condition is none of GEQ, EQ, AND and NOR"))?;
            let component = lock().job().map_err(Failure::Failed)?.component;
            // SAFETY: the caller's promise; it is aligned.
            unsafe { word::wait(component, word, operation.value, condition) };
        }
        kind::WRITE_WORD => {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(word) }.store(operation.value, Ordering::Release);
        }
        _ => {
            let (from, to) = (operation.source.cast::<u8>(), operation.address.cast::<u8>());
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy(from, to, operation.len as usize) };
            // A later write of a word is behind the bytes.
            std::sync::atomic::fence(Ordering::Release);
        }
    }
    Ok(())
}
