//! Requests: messages and puts that the program prepares, starts and waits for.

use std::ffi::{c_int, c_void};

use crate::call::{given, length};
use crate::component::{Operation, Words, checked, kind};
use crate::job::Job;

/// `struct mp_request`
pub(crate) struct Request {
    /// What starts, or has started.
    operation: Operation,
    /// The blocks of a message, to which `operation` refers.
    _blocks: Box<[libc::iovec]>,
    /// The bytes of a put that were copied, to which `operation` refers.
    _bytes: Box<[u8]>,
    /// Nobody waits for it.
    is_unwaited: bool,
    /// The component's message once it has started.
    message: *mut c_void,
    /// What a kernel uses.
    words: Option<Words>,
    /// A kernel waits for it, and says that it saw its end.
    kernel_waits: bool,
}

/// `struct mp_reg`
pub(crate) struct Registration {
    pub(crate) address: usize,
    pub(crate) len: u64,
    /// The component's registration of host memory, or null.
    pub(crate) pinned: *mut c_void,
}

/// A put or get, as the program describes it.
pub(crate) struct Access {
    pub(crate) window: *mut c_void,
    pub(crate) displacement: u64,
    pub(crate) flags: c_int,
}

/// `MP_PUT_INLINE`
const INLINE: c_int = 1;
/// `MP_PUT_NOWAIT`
const NOWAIT: c_int = 2;

impl Registration {
    fn check(&self, address: usize, len: u64) -> Result<(), String> {
        let begins = (address as u64).checked_sub(self.address as u64);
        let ends = begins.and_then(|begins| begins.checked_add(len));
        match ends.is_some_and(|end| end <= self.len) {
            true => Ok(()),
            false => Err(format!(
                "{len} bytes at {address:#x} are not within the registration of {} bytes at {:#x}",
                self.len, self.address
            )),
        }
    }
}

/// Checks that bytes lie within a registration, if there is one.
///
/// # Safety
/// `registration` is null, or points to null or to a registration of this library.
unsafe fn check(registration: *mut *mut Registration, address: *mut c_void, len: u64) -> Result<(), String> {
    if len > 0 && address.is_null() {
        return Err(format!("the buffer of {len} bytes is NULL"));
    }
    // SAFETY: the caller's promise, twice.
    match unsafe { registration.as_ref().and_then(|registration| registration.as_ref()) } {
        Some(registration) => registration.check(address.expose_provenance(), len),
        None => Ok(()),
    }
}

impl Request {
    /// Describes a message.
    ///
    /// # Safety
    /// As for [`check`].
    pub(crate) unsafe fn message(
        kind: c_int,
        (buffer, size): (*mut c_void, c_int),
        peer: c_int,
        registration: *mut *mut Registration,
    ) -> Result<Request, String> {
        let len = length(size, "size")?;
        // SAFETY: the caller's promise.
        unsafe { check(registration, buffer, len) }?;
        Ok(Request::of(Operation { peer, address: buffer, len, ..Operation::new(kind) }))
    }

    /// Describes a message in blocks.
    ///
    /// # Safety
    /// As for [`check`]; there are `count` blocks.
    pub(crate) unsafe fn blocks(
        kind: c_int,
        (blocks, count): (*const libc::iovec, c_int),
        peer: c_int,
        registration: *mut *mut Registration,
    ) -> Result<Request, String> {
        let count = usize::try_from(count).map_err(|_| format!("nblocks is {count}: it must not be negative"))?;
        if blocks.is_null() || count == 0 {
            return Err("there are no blocks".to_owned());
        }
        // SAFETY: the caller's promise.
        let blocks: Box<[libc::iovec]> = unsafe { std::slice::from_raw_parts(blocks, count) }.into();
        for block in &blocks {
            // SAFETY: the caller's promise.
            unsafe { check(registration, block.iov_base, block.iov_len as u64) }?;
        }
        let operation = Operation { peer, blocks: blocks.as_ptr(), block_count: count, ..Operation::new(kind) };
        Ok(Request { _blocks: blocks, ..Request::of(operation) })
    }

    /// Describes a put or get.
    ///
    /// # Safety
    /// As for [`check`]; the bytes of a put with `MP_PUT_INLINE` are valid.
    pub(crate) unsafe fn access(
        job: &Job,
        kind: c_int,
        (buffer, size): (*mut c_void, c_int),
        peer: c_int,
        registration: *mut *mut Registration,
        access: &Access,
    ) -> Result<Request, String> {
        let Access { window, displacement, flags } = *access;
        if flags & !(INLINE | NOWAIT) != 0 {
            return Err(format!("flags are {flags:#x}: use MP_PUT_INLINE and MP_PUT_NOWAIT only"));
        }
        let len = length(size, "size")?;
        // SAFETY: the caller's promise.
        unsafe { check(registration, buffer, len) }?;
        let copied = flags & INLINE != 0 && len > 0;
        let operation = Operation { peer, address: buffer, len, window, displacement, ..Operation::new(kind) };
        let mut request = Request { is_unwaited: flags & NOWAIT != 0, ..Request::of(operation) };
        if copied {
            // SAFETY: it takes any address.
            if !unsafe { (job.component.on_host)(buffer, len) } {
                return Err(
                    "the source is device memory, which the call cannot copy: leave MP_PUT_INLINE out".to_owned()
                );
            }
            // SAFETY: the caller's promise; it is host memory.
            request._bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len as usize) }.into();
            request.operation.address = request._bytes.as_mut_ptr().cast();
            // Nobody keeps the request of a put that is not waited for.
            request.operation.copied = true;
        }
        Ok(request)
    }

    fn of(operation: Operation) -> Request {
        let message = std::ptr::null_mut();
        let (_blocks, _bytes) = (Box::default(), Box::default());
        Request { operation, _blocks, _bytes, is_unwaited: false, message, words: None, kernel_waits: false }
    }

    /// Returns the operation of a prepared request that has not started.
    pub(crate) fn to_start(&self) -> Result<Operation, String> {
        match (self.message.is_null(), self.operation.kind) {
            (false, _) => Err("the request has started: prepare another".to_owned()),
            (true, kind::SEND | kind::PUT) => Ok(self.operation),
            (true, _) => Err("the request is no prepared send or put".to_owned()),
        }
    }

    /// Fails if nobody can wait for the request: its start releases it.
    pub(crate) fn check_waited(&self) -> Result<(), String> {
        match self.is_unwaited {
            true => Err("the request was prepared with MP_PUT_NOWAIT: leave that out to wait for it".to_owned()),
            false => Ok(()),
        }
    }

    /// Returns the operation of a request that starts where it is described.
    pub(crate) fn described(&self) -> Operation {
        self.operation
    }

    /// Returns the words for kernels, which are made at the first call.
    pub(crate) fn words(&mut self, job: &Job) -> Result<Words, String> {
        if let Some(words) = self.words {
            return Ok(words);
        }
        let mut words = Words { handle: std::ptr::null_mut(), start: 0, over: 0, seen: 0 };
        // SAFETY: valid memory.
        checked(|why, room| unsafe { (job.component.words_open)(&raw mut words, why, room) })?;
        self.words = Some(words);
        Ok(words)
    }

    /// Has the words follow the started message, for which a kernel waits.
    pub(crate) fn follow(&mut self, job: &Job) -> Result<Words, String> {
        let message = self.started()?;
        let words = self.words(job)?;
        if !std::mem::replace(&mut self.kernel_waits, true) {
            // SAFETY: the request owns both.
            unsafe { (job.component.words_follow)(words.handle, message) };
        }
        Ok(words)
    }

    /// Returns the words of a request for which a kernel waits.
    pub(crate) fn kernel_waits(&self) -> Option<*mut c_void> {
        self.words.filter(|_| self.kernel_waits).map(|words| words.handle)
    }

    /// Returns whether nobody waits for the request.
    pub(crate) fn is_unwaited(&self) -> bool {
        self.is_unwaited
    }

    pub(crate) fn is_put(&self) -> bool {
        self.operation.kind == kind::PUT
    }

    /// Returns the message of a request that has started.
    pub(crate) fn started(&self) -> Result<*mut c_void, String> {
        match self.message.is_null() {
            true => Err("the request was prepared and not posted".to_owned()),
            false => Ok(self.message),
        }
    }
}

/// Hands a request to the program.
pub(crate) fn hand_out(job: &mut Job, request: Request, out: &mut *mut Request) {
    job.requests += 1;
    *out = Box::into_raw(Box::new(request));
}

/// Notes that a request has started. One that nobody waits for becomes null.
///
/// # Safety
/// The request is from [`hand_out`], and not released.
pub(crate) unsafe fn note_started(job: &mut Job, out: &mut *mut Request, message: *mut c_void) {
    // SAFETY: the caller's promise.
    let request = unsafe { &mut **out };
    request.message = message;
    if request.is_unwaited {
        // SAFETY: the caller's promise.
        unsafe { release(job, out) };
    }
}

/// Releases a request, and sets the program's pointer to null.
///
/// # Safety
/// As for [`note_started`].
pub(crate) unsafe fn release(job: &mut Job, out: &mut *mut Request) {
    // SAFETY: the caller's promise.
    let request = unsafe { Box::from_raw(std::mem::replace(out, std::ptr::null_mut())) };
    if !request.message.is_null() {
        // SAFETY: the component's message, which this request owns.
        unsafe { (job.component.message_free)(request.message) };
    }
    if let Some(words) = request.words {
        // SAFETY: the component's words, which this request owns.
        unsafe { (job.component.words_close)(words.handle) };
    }
    job.requests = job.requests.saturating_sub(1);
}

/// Returns a request of the program.
///
/// # Safety
/// The pointer is null, or points to null or to a request that is not released.
pub(crate) unsafe fn live<'r>(pointer: *mut *mut Request) -> Result<&'r mut Request, String> {
    // SAFETY: the caller's promise, twice.
    let request = unsafe { given(pointer, "req") }?;
    // SAFETY: as above.
    unsafe { request.as_mut() }.ok_or_else(|| "the request is NULL, or was waited for".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lies_within_its_registration() {
        let registration = Registration { address: 100, len: 50, pinned: std::ptr::null_mut() };
        assert!(registration.check(100, 50).is_ok() && registration.check(150, 0).is_ok());
        for (address, len) in [(99, 1), (100, 51), (149, 2), (151, 0), (usize::MAX, u64::MAX)] {
            assert!(registration.check(address, len).is_err(), "{address} {len}");
        }
    }

    #[test]
    fn a_prepared_send_starts_once() {
        let mut byte = [0_u8];
        // SAFETY: no registration.
        let request =
            unsafe { Request::message(kind::SEND, (byte.as_mut_ptr().cast(), 1), 0, std::ptr::null_mut()) }.unwrap();
        assert!(request.to_start().is_ok() && request.started().is_err());
        let request = Request { message: byte.as_mut_ptr().cast(), ..request };
        assert!(request.to_start().is_err() && request.started().is_ok());
        // SAFETY: as above.
        let receive = unsafe { Request::message(kind::RECEIVE, (std::ptr::null_mut(), 0), 0, std::ptr::null_mut()) };
        assert!(receive.unwrap().to_start().is_err());
        // SAFETY: as above.
        let bad = unsafe { Request::message(kind::SEND, (std::ptr::null_mut(), 1), 0, std::ptr::null_mut()) };
        assert!(bad.is_err());
    }
}
