//! Words that running kernels and the host exchange: `struct cableway_mp_words` of `shim/mp.h`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use cableway_common_cuda::Vendor;
use cableway_pml::{KernelWords, StreamMessage};

use super::{Why, answer, text};
use crate::guard::guarded;
use crate::state;
use crate::streams;

/// The default stream of the current context.
const DEFAULT: usize = 0;

/// `struct cableway_mp_words`
#[repr(C)]
struct Words {
    handle: *const KernelWords,
    start: u64,
    over: u64,
    seen: u64,
}

/// # Safety
/// `out` is valid, and `why` has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_words_open(out: *mut Words, why: *mut c_char, room: usize) -> c_int {
    let call = || {
        let engine = state::engine().and_then(|engine| engine.handle()).ok_or("the engine has ended")?;
        let streams = streams::of(&engine).map_err(text)?;
        // SAFETY: the default stream exists as long as its context.
        let words = unsafe { streams.kernel_words(Vendor::Nvidia, DEFAULT) }.map_err(text)?;
        let (start, over, seen) = (words.start_address(), words.over_address(), words.seen_address());
        // SAFETY: the caller's promise.
        unsafe { *out = Words { handle: Arc::into_raw(words), start, over, seen } };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { answer(Why { text: why, room }, call) }
}

/// Returns words that [`cableway_mp_words_open`] made.
///
/// # Safety
/// They are not closed.
pub(super) unsafe fn words_of(words: *const KernelWords) -> Arc<KernelWords> {
    // SAFETY: the caller's promise; the pointer is from `Arc::into_raw`.
    unsafe {
        Arc::increment_strong_count(words);
        Arc::from_raw(words)
    }
}

/// # Safety
/// `words` is from [`cableway_mp_words_open`], and closed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_words_close(words: *const KernelWords) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Arc::from_raw(words) }));
}

/// # Safety
/// `words` is from [`cableway_mp_words_open`] and not closed, `message` from `cableway_mp_post` and not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_words_follow(words: *const KernelWords, message: *const StreamMessage) {
    guarded((), || {
        // SAFETY: the caller's promise.
        let (words, message) = unsafe { (words_of(words), &*message) };
        words.follow(message);
    });
}

/// # Safety
/// As [`cableway_mp_words_close`], which was not called.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_words_seen(words: *const KernelWords) -> bool {
    // Nobody waits for a kernel after a panic.
    // SAFETY: the caller's promise.
    guarded(true, || unsafe { &*words }.is_settled())
}

/// Makes progress on the calling thread.
#[unsafe(no_mangle)]
extern "C" fn cableway_mp_progress() {
    guarded((), || {
        if let Some(engine) = state::engine() {
            engine.progress();
        }
    });
}

/// Returns whether devices reach memory. The program has opened a stream since it registered memory.
#[unsafe(no_mangle)]
extern "C" fn cableway_mp_reaches(address: *const c_void, len: u64) -> bool {
    guarded(false, || {
        let (Some(engine), Ok(bytes)) = (state::engine(), usize::try_from(len)) else { return false };
        engine.devices().reaches(address.cast(), bytes)
    })
}
