//! Waits for words of 32 bits.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::CudaStream;
use crate::call::call;
use crate::component::{Component, Operation, kind};
use crate::job::lock;

/// When a word satisfies a wait: `enum mp_wait_flags`, and `gds_wait_cond_flag_t`, which has one more. The component's
/// conditions have the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    GreaterOrEqual = 0,
    Equal = 1,
    And = 2,
    Nor = 3,
}

impl Condition {
    pub(crate) fn of(flags: c_int) -> Result<Condition, String> {
        match flags {
            0 => Ok(Condition::GreaterOrEqual),
            1 => Ok(Condition::Equal),
            2 => Ok(Condition::And),
            _ => Err(format!("flags are {flags}: use MP_WAIT_GEQ, MP_WAIT_EQ or MP_WAIT_AND")),
        }
    }

    /// Returns the condition with one of LibGDSync's numbers.
    pub(crate) fn numbered(number: c_int) -> Option<Condition> {
        match number {
            3 => Some(Condition::Nor),
            other => Condition::of(other).ok(),
        }
    }

    fn holds(self, word: u32, value: u32) -> bool {
        match self {
            Condition::GreaterOrEqual => word.wrapping_sub(value) as i32 >= 0,
            Condition::Equal => word == value,
            Condition::And => word & value != 0,
            Condition::Nor => !(word | value) != 0,
        }
    }
}

/// Describes a wait of a stream for a word.
pub(crate) fn wait_operation(word: *mut u32, value: u32, flags: c_int) -> Result<Operation, String> {
    let condition = Condition::of(flags)? as c_int;
    Ok(Operation { condition, ..word_operation(kind::WAIT_WORD, word, value)? })
}

/// Describes an operation of a stream on a word.
pub(crate) fn word_operation(kind: c_int, word: *mut u32, value: u32) -> Result<Operation, String> {
    if word.is_null() || !word.is_aligned() {
        return Err(format!("the word at {word:p} is NULL or misaligned: its address must be a multiple of 4"));
    }
    Ok(Operation { address: word.cast(), value, ..Operation::new(kind) })
}

/// # Safety
/// As `mp_query_param`. Others access the word atomically.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_wait32(word: *mut u32, value: u32, flags: c_int) -> c_int {
    call("mp_wait32", || {
        let condition = Condition::of(flags)?;
        word_operation(kind::WAIT_WORD, word, value)?;
        let component = lock().job()?.component;
        // SAFETY: it takes any address.
        if !unsafe { (component.on_host)(word.cast(), 4) } {
            return Err(format!("the word at {word:p} is in device memory: use mp_wait32_on_stream"));
        }
        // SAFETY: the caller's promise; it is aligned.
        unsafe { wait(component, word, value, condition) };
        Ok(())
    })
}

/// Waits on the calling thread for a word of host memory. Makes progress meanwhile: a peer may put the word.
///
/// # Safety
/// The word is valid and aligned, and others access it atomically.
pub(crate) unsafe fn wait(component: &Component, word: *mut u32, value: u32, condition: Condition) {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU32::from_ptr(word) };
    component.wait_until(|| condition.holds(word.load(Ordering::Acquire), value));
}

/// # Safety
/// As above. The stream exists until mp_finalize, and the word until the stream has passed the wait.
#[unsafe(no_mangle)]
unsafe extern "C" fn mp_wait32_on_stream(word: *mut u32, value: u32, flags: c_int, stream: CudaStream) -> c_int {
    call("mp_wait32_on_stream", || {
        let wait = wait_operation(word, value, flags)?;
        lock().job()?.enqueue(stream, &mut [wait])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_and_and_are_what_they_say() {
        use Condition::{And, Equal, GreaterOrEqual, Nor};
        for (condition, word, value, holds) in [
            (GreaterOrEqual, 5, 5, true),
            (GreaterOrEqual, 4, 5, false),
            (GreaterOrEqual, 0, u32::MAX, true),
            (Equal, 5, 5, true),
            (Equal, 6, 5, false),
            (And, 6, 4, true),
            (And, 8, 4, false),
            (And, 7, 0, false),
            (Nor, 0xffff_0000, 0x0000_ffff, false),
            (Nor, 0xfffe_0000, 0x0000_ffff, true),
            (Nor, u32::MAX, 0, false),
        ] {
            assert_eq!(condition.holds(word, value), holds, "{condition:?} {word} {value}");
        }
    }

    #[test]
    fn unknown_conditions_and_bad_words_are_refused() {
        let mut word = 0;
        assert!(Condition::of(3).is_err() && Condition::of(-1).is_err());
        assert_eq!(Condition::numbered(1), Some(Condition::Equal));
        assert_eq!(Condition::numbered(3), Some(Condition::Nor));
        assert!(Condition::numbered(4).is_none() && Condition::numbered(-1).is_none());
        assert_eq!(wait_operation(&raw mut word, 7, 1).unwrap().condition, 1);
        assert!(wait_operation(std::ptr::null_mut(), 7, 1).is_err());
        assert!(wait_operation((&raw mut word).wrapping_byte_add(1), 7, 1).is_err());
    }
}
