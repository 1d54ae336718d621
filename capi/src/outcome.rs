//! The end of every function: its code, the thread's last error, and panics.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::code::{Code, Failure};

/// Whether a call has panicked. The state behind it may be wrong, so no later call reaches it.
static POISONED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function and returns its code. Keeps the text of a failure as the thread's last error.
#[inline]
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guard_with(&POISONED, call)
}

#[inline]
fn guard_with(poisoned: &AtomicBool, call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    if poisoned.load(Ordering::Acquire) {
        return keep(Failure::new(
            Code::ErrInternal,
            "an earlier call panicked, so the library cannot be used any more",
        ));
    }
    // After a panic nothing of the library is used any more, so broken invariants are not seen.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Code::Success as c_int,
        Ok(Err(failure)) => keep(failure),
        Err(panic) => {
            poisoned.store(true, Ordering::Release);
            let text = format!("a call panicked: {}", described(&*panic));
            // Dropping the panic's payload may panic, too.
            std::mem::forget(panic);
            keep(Failure::new(Code::ErrInternal, text))
        }
    }
}

fn described(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

#[cold]
fn keep(failure: Failure) -> c_int {
    let mut text = failure.text.into_bytes();
    // C ends the text at the first null byte.
    text.retain(|&byte| byte != 0);
    // A thread that is ending has no last error.
    let _ = LAST_ERROR.try_with(|last| last.replace(CString::new(text).unwrap_or_default()));
    failure.code as c_int
}

/// Returns the text of this thread's last failure. It is valid until the next failure on this thread.
#[unsafe(no_mangle)]
extern "C" fn cableway_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: the text is valid until the next failure on this thread.
        unsafe { CStr::from_ptr(cableway_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn after_a_panic_every_call_fails() {
        let poisoned = AtomicBool::new(false);
        assert_eq!(guard_with(&poisoned, || Ok(())), Code::Success as c_int);
        assert_eq!(guard_with(&poisoned, || panic!("slot {} is empty", 3)), Code::ErrInternal as c_int);
        assert_eq!(last(), "a call panicked: slot 3 is empty");
        let mut reached = false;
        let code = guard_with(&poisoned, || {
            reached = true;
            Ok(())
        });
        assert_eq!((code, reached), (Code::ErrInternal as c_int, false));
    }

    #[test]
    fn the_last_error_is_the_threads_own() {
        let poisoned = AtomicBool::new(false);
        let fail = |text: &str| guard_with(&poisoned, || Err(Failure::argument(text)));
        assert_eq!(fail("count\0 is 3"), Code::ErrArgument as c_int);
        assert_eq!(last(), "count is 3", "without the null byte");
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(last(), "")).join().unwrap());
        assert_eq!(guard_with(&poisoned, || Ok(())), Code::Success as c_int);
        assert_eq!(last(), "count is 3", "a success keeps it");
    }
}
