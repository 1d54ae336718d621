//! What kernels need to start requests and to wait for them: `include/mp/kernel.h`.

use std::ffi::c_int;

use crate::call::{call, given};
use crate::component::{Operation, kind};
use crate::job::lock;
use crate::request::{Request, live, note_started};
use crate::word::word_operation;

/// What a kernel stores, and what it waits for.
const SET: u32 = 1;

/// `struct mp_kernel_send`
#[repr(C)]
struct Send {
    start: *mut u32,
    value: u32,
}

/// `struct mp_kernel_wait`
#[repr(C)]
struct Wait {
    over: *mut u32,
    value: u32,
    seen: *mut u32,
    seen_value: u32,
}

/// Returns the lower half of a word of 64 bits, which comes first.
fn half(address: u64) -> *mut u32 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// # Safety
/// As `mp_query_param`, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_kernel_send_descriptor(request: *mut *mut Request, out: *mut Send) -> c_int {
    call("mp_kernel_send_descriptor", || {
        // SAFETY: the caller's promise.
        let (prepared, out) = unsafe { (live(request)?, given(out, "descriptor")?) };
        let operation = prepared.to_start()?;
        if prepared.is_unwaited() {
            return Err("a put with MP_PUT_NOWAIT has no request for a kernel: leave the flag out".to_owned());
        }
        let mut locked = lock();
        let job = locked.job()?;
        let words = prepared.words(job)?;
        let mut operations = [Operation { words: words.handle, ..operation }];
        job.start(&mut operations)?;
        // SAFETY: as above.
        unsafe { note_started(job, given(request, "req")?, operations[0].message) };
        *out = Send { start: half(words.start), value: SET };
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_kernel_wait_descriptor(request: *mut *mut Request, out: *mut Wait) -> c_int {
    call("mp_kernel_wait_descriptor", || {
        // SAFETY: the caller's promise.
        let (awaited, out) = unsafe { (live(request)?, given(out, "descriptor")?) };
        let mut locked = lock();
        let words = awaited.follow(locked.job()?)?;
        *out = Wait { over: half(words.over), value: SET, seen: half(words.seen), seen_value: SET };
        Ok(())
    })
}

/// # Safety
/// As above. The word stays registered while kernels use it.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_kernel_word(word: *mut u32, out: *mut *mut u32) -> c_int {
    call("mp_kernel_word", || {
        // SAFETY: the caller's promise.
        let out = unsafe { given(out, "out") }?;
        word_operation(kind::WAIT_WORD, word, 0)?;
        if !lock().job()?.reaches(word.cast(), 4) {
            return Err(format!(
                "no device reaches the word at {word:p}: register its memory by mp_register, or allocate it with the driver"
            ));
        }
        *out = word;
        Ok(())
    })
}
