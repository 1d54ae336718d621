//! Queues of descriptors, which a stream gets together.

use std::collections::HashMap;
use std::ffi::c_int;

use crate::CudaStream;
use crate::call::{call, given};
use crate::component::{Operation, kind};
use crate::job::lock;
use crate::request::{Request, live, note_started};
use crate::word::{wait_operation, word_operation};

/// `struct mp_desc_queue`: what a stream gets.
#[derive(Default)]
pub(crate) struct Queue {
    entries: Vec<Entry>,
    /// The places of the sends.
    sends: HashMap<*mut Request, usize>,
}

#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// The program's request, which the post may set to null.
    Send(*mut *mut Request),
    /// For a request that has started, or the send at a place before.
    Wait(*mut Request, Option<usize>),
    Word(Operation),
}

impl Queue {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Adds a prepared send.
    ///
    /// # Safety
    /// The pointer is null, or points to null or to a live request. That stays live until the queue is posted or dropped.
    pub(crate) unsafe fn add_send(&mut self, request: *mut *mut Request) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { live(request) }?.to_start()?;
        // SAFETY: it points to a request.
        let prepared = unsafe { *request };
        if self.sends.contains_key(&prepared) {
            return Err("the request is in the queue already".to_owned());
        }
        self.sends.insert(prepared, self.entries.len());
        self.entries.push(Entry::Send(request));
        Ok(())
    }

    /// Adds a wait for a request, which has started or is in the queue.
    ///
    /// # Safety
    /// As [`add_send`](Self::add_send).
    pub(crate) unsafe fn add_wait(&mut self, request: *mut *mut Request) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let awaited = unsafe { live(request) }?;
        awaited.check_waited()?;
        // SAFETY: it points to a request.
        let sent = self.sends.get(unsafe { &*request }).copied();
        if sent.is_none() {
            awaited.started()?;
        }
        // SAFETY: as above.
        self.entries.push(Entry::Wait(unsafe { *request }, sent));
        Ok(())
    }

    pub(crate) fn add_word(&mut self, operation: Operation) {
        self.entries.push(Entry::Word(operation));
    }

    /// Adds the entries to a stream by one call.
    ///
    /// # Safety
    /// The requests are live. The stream exists until mp_finalize.
    pub(crate) unsafe fn post(&self, stream: CudaStream) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let mut operations = unsafe { self.operations() }?;
        let mut locked = lock();
        let job = locked.job()?;
        job.enqueue(stream, &mut operations)?;
        for (entry, operation) in self.entries.iter().zip(&operations) {
            if let Entry::Send(request) = *entry {
                // SAFETY: as above.
                unsafe { note_started(job, given(request, "req")?, operation.message) };
            }
        }
        Ok(())
    }

    /// Describes the operations.
    ///
    /// # Safety
    /// The requests are live.
    unsafe fn operations(&self) -> Result<Vec<Operation>, String> {
        let describe = |entry: &Entry| match *entry {
            // SAFETY: the caller's promise.
            Entry::Send(request) => unsafe { live(request) }?.to_start(),
            Entry::Word(operation) => Ok(operation),
            Entry::Wait(_, Some(sent)) => Ok(Operation { earlier: sent + 1, ..Operation::new(kind::WAIT) }),
            Entry::Wait(request, None) => {
                // SAFETY: as above.
                let message = unsafe { &*request }.started()?;
                Ok(Operation { message, ..Operation::new(kind::WAIT) })
            }
        };
        self.entries.iter().map(describe).collect()
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.sends.clear();
    }
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
        let queue = unsafe { queue(pointer) }?;
        // SAFETY: as above.
        unsafe { queue.add_send(request) }
    })
}

/// # Safety
/// As above.
unsafe fn add_wait(name: &str, pointer: *mut *mut Queue, request: *mut *mut Request) -> c_int {
    call(name, || {
        // SAFETY: the caller's promise.
        let queue = unsafe { queue(pointer) }?;
        // SAFETY: as above.
        unsafe { queue.add_wait(request) }
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
        unsafe { queue(pointer) }?.add_word(wait_operation(word, value, flags)?);
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_add_write_value32(pointer: *mut *mut Queue, word: *mut u32, value: u32) -> c_int {
    call("mp_desc_queue_add_write_value32", || {
        // SAFETY: the caller's promise.
        unsafe { queue(pointer) }?.add_word(word_operation(kind::WRITE_WORD, word, value)?);
        Ok(())
    })
}

/// # Safety
/// As above. The stream exists until mp_finalize.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_desc_queue_post_on_stream(stream: CudaStream, pointer: *mut *mut Queue, flags: c_int) -> c_int {
    call("mp_desc_queue_post_on_stream", || {
        // SAFETY: the caller's promise.
        let queue = unsafe { queue(pointer) }?;
        if flags != 0 {
            return Err(format!("flags are {flags}: they must be 0"));
        }
        // SAFETY: the requests of the queue are live.
        unsafe { queue.post(stream) }?;
        queue.clear();
        Ok(())
    })
}
