//! Queues of descriptors, which a stream gets together.

use std::ffi::c_int;

use crate::CudaStream;
use crate::call::{call, given};
use crate::component::{Operation, kind};
use crate::job::lock;
use crate::request::{Request, live, note_started};
use crate::word::{wait_operation, word_operation};

/// `struct mp_desc_queue`
#[derive(Default)]
pub(crate) struct Queue(Vec<Entry>);

/// What a stream gets.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// The program's request, which the post may set to null.
    Send(*mut *mut Request),
    Wait(*mut Request),
    Word(Operation),
}

/// Returns an entry for a prepared send.
///
/// # Safety
/// The pointer is null, or points to null or to a live request, and the requests of the entries are live.
pub(crate) unsafe fn send_entry(entries: &[Entry], request: *mut *mut Request) -> Result<Entry, String> {
    // SAFETY: the caller's promise.
    unsafe { live(request) }?.to_start()?;
    // SAFETY: the request is live.
    if entries.iter().any(|entry| matches!(entry, Entry::Send(other) if unsafe { **other == *request })) {
        return Err("the request is in the queue already".to_owned());
    }
    Ok(Entry::Send(request))
}

/// Returns an entry for a wait for a request, which has started or is among the entries.
///
/// # Safety
/// As [`send_entry`].
pub(crate) unsafe fn wait_entry(entries: &[Entry], request: *mut *mut Request) -> Result<Entry, String> {
    // SAFETY: the caller's promise.
    let awaited = unsafe { live(request) }?;
    awaited.check_waited()?;
    // SAFETY: the requests are live.
    let earlier = entries.iter().any(|entry| matches!(entry, Entry::Send(other) if unsafe { **other == *request }));
    if !earlier {
        awaited.started()?;
    }
    Ok(Entry::Wait(awaited))
}

/// Adds entries to a stream by one call.
///
/// # Safety
/// As [`send_entry`]. The stream exists until mp_finalize.
pub(crate) unsafe fn post_entries(stream: CudaStream, entries: &[Entry]) -> Result<(), String> {
    // SAFETY: the caller's promise.
    let mut operations = unsafe { operations(entries) }?;
    let mut locked = lock();
    let job = locked.job()?;
    job.enqueue(stream, &mut operations)?;
    for (entry, operation) in entries.iter().zip(&operations) {
        if let Entry::Send(request) = *entry {
            // SAFETY: as above.
            unsafe { note_started(job, given(request, "req")?, operation.message) };
        }
    }
    Ok(())
}

/// # Safety
/// As `mp_query_param`, here and below: the pointer is null, or points to null or to a queue that is not freed.
unsafe fn queue<'q>(pointer: *mut *mut Queue) -> Result<&'q mut Queue, String> {
    // SAFETY: the caller's promise, twice.
    let queue = unsafe { given(pointer, "dq") }?;
    // SAFETY: as above.
    unsafe { queue.as_mut() }.ok_or_else(|| "the queue is NULL, or was freed".to_owned())
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_alloc(out: *mut *mut Queue) -> c_int {
    call("mp_desc_queue_alloc", || {
        // SAFETY: the caller's promise.
        *unsafe { given(out, "dq") }? = Box::into_raw(Box::default());
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_free(pointer: *mut *mut Queue) -> c_int {
    call("mp_desc_queue_free", || {
        // SAFETY: the caller's promise, here and below.
        unsafe { queue(pointer) }?;
        // SAFETY: as above.
        let freed = std::mem::replace(unsafe { given(pointer, "dq") }?, std::ptr::null_mut());
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(freed) });
        Ok(())
    })
}

/// # Safety
/// As above. The program's request stays where it is until the queue is posted.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_add_send(pointer: *mut *mut Queue, request: *mut *mut Request) -> c_int {
    call("mp_desc_queue_add_send", || {
        // SAFETY: the caller's promise.
        let Queue(entries) = unsafe { queue(pointer) }?;
        // SAFETY: as above.
        entries.push(unsafe { send_entry(entries, request) }?);
        Ok(())
    })
}

/// # Safety
/// As above.
unsafe fn add_wait(name: &str, pointer: *mut *mut Queue, request: *mut *mut Request) -> c_int {
    call(name, || {
        // SAFETY: the caller's promise.
        let Queue(entries) = unsafe { queue(pointer) }?;
        // SAFETY: as above.
        entries.push(unsafe { wait_entry(entries, request) }?);
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_add_wait_send(pointer: *mut *mut Queue, request: *mut *mut Request) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { add_wait("mp_desc_queue_add_wait_send", pointer, request) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_add_wait_recv(pointer: *mut *mut Queue, request: *mut *mut Request) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { add_wait("mp_desc_queue_add_wait_recv", pointer, request) }
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_add_wait_value32(
    pointer: *mut *mut Queue,
    word: *mut u32,
    value: u32,
    flags: c_int,
) -> c_int {
    call("mp_desc_queue_add_wait_value32", || {
        // SAFETY: the caller's promise.
        unsafe { queue(pointer) }?.0.push(Entry::Word(wait_operation(word, value, flags)?));
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_add_write_value32(pointer: *mut *mut Queue, word: *mut u32, value: u32) -> c_int {
    call("mp_desc_queue_add_write_value32", || {
        // SAFETY: the caller's promise.
        unsafe { queue(pointer) }?.0.push(Entry::Word(word_operation(kind::WRITE_WORD, word, value)?));
        Ok(())
    })
}

/// # Safety
/// As above. The stream exists until mp_finalize.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_post_on_stream(stream: CudaStream, pointer: *mut *mut Queue, flags: c_int) -> c_int {
    call("mp_desc_queue_post_on_stream", || {
        // SAFETY: the caller's promise.
        let Queue(entries) = unsafe { queue(pointer) }?;
        if flags != 0 {
            return Err(format!("flags are {flags}: they must be 0"));
        }
        // SAFETY: the requests of the queue are live.
        unsafe { post_entries(stream, entries) }?;
        entries.clear();
        Ok(())
    })
}

/// Describes the operations of a queue.
///
/// # Safety
/// The requests are live.
unsafe fn operations(entries: &[Entry]) -> Result<Vec<Operation>, String> {
    let mut operations = Vec::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        operations.push(match *entry {
            // SAFETY: the caller's promise.
            Entry::Send(request) => unsafe { live(request) }?.to_start()?,
            Entry::Word(operation) => operation,
            Entry::Wait(request) => {
                // SAFETY: the caller's promise.
                let is_it = |entry: &Entry| matches!(entry, Entry::Send(sent) if unsafe { **sent == request });
                match entries[..at].iter().position(is_it) {
                    Some(sent) => Operation { earlier: sent + 1, ..Operation::new(kind::WAIT) },
                    // SAFETY: as above.
                    None => Operation { message: unsafe { &*request }.started()?, ..Operation::new(kind::WAIT) },
                }
            }
        });
    }
    Ok(operations)
}
