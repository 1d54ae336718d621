//! What programs describe before they post it: `gds_descriptor_t` and its parts.

use std::ffi::c_int;

use super::answer::{Failure, answer, no_flags};
use crate::call::given;
use crate::component::{Operation, kind};
use crate::request::{Request, live};
use crate::word::{Condition, word_operation};

/// `gds_memory_type_t`
pub(super) mod memory {
    use std::ffi::c_int;

    pub(crate) const GPU: c_int = 1;
    pub(crate) const HOST: c_int = 2;
    pub(super) const IO: c_int = 4;
    pub(super) const MASK: c_int = 7;
}

/// `GDS_WAIT_POST_FLUSH`
const WAIT_FLAGS: c_int = 1 << 3;
/// `GDS_WRITE_PRE_BARRIER`
const WRITE_FLAGS: c_int = 1 << 4;
/// `GDS_WRITE_MEMORY_POST_BARRIER_SYS` and `GDS_WRITE_MEMORY_PRE_BARRIER_SYS`
const MEMORY_FLAGS: c_int = 1 << 4 | 1 << 5;

/// `gds_tag_t`
pub(super) mod tag {
    use std::ffi::c_int;

    pub(crate) const SEND: c_int = 0;
    pub(crate) const WAIT: c_int = 1;
    pub(crate) const WAIT_VALUE32: c_int = 2;
    pub(crate) const WRITE_VALUE32: c_int = 3;
    pub(crate) const WRITE_MEMORY: c_int = 4;
}

/// `gds_wait_value32_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct WaitValue {
    word: *mut u32,
    value: u32,
    condition: c_int,
    flags: c_int,
}

/// `gds_write_value32_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct WriteValue {
    word: *mut u32,
    value: u32,
    flags: c_int,
}

/// `gds_write_memory_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct WriteMemory {
    to: *mut u8,
    from: *const u8,
    count: usize,
    flags: c_int,
}

/// `gds_send_request_t` or `gds_wait_request_t`
#[repr(C)]
pub(super) struct OfRequest {
    /// Tells requests that were prepared here from others.
    mark: u64,
    request: *mut *mut Request,
}

/// What the mark of a send request is, and of a wait request.
pub(super) const SEND_MARK: u64 = 0x6361_626c_6573_6e64;
pub(super) const WAIT_MARK: u64 = 0x6361_626c_6577_6169;

/// `gds_descriptor_t`
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) tag: c_int,
    pub(super) what: What,
}

#[repr(C)]
pub(super) union What {
    pub(super) request: *const OfRequest,
    pub(super) wait: WaitValue,
    pub(super) write: WriteValue,
    pub(super) memory: WriteMemory,
}

const _: () = assert!(size_of::<Descriptor>() == 40 && size_of::<OfRequest>() == 16);
const _: () = assert!(size_of::<WaitValue>() == 24 && size_of::<WriteValue>() == 16);

/// Checks flags: one type of memory, and others of these.
fn check_flags(flags: c_int, others: c_int) -> Result<(), Failure> {
    if flags & !(memory::MASK | others) != 0 {
        return Err(Failure::Invalid(format!("flags are {flags:#x}: the call does not have all of them")));
    }
    match flags & memory::MASK {
        memory::GPU | memory::HOST => Ok(()),
        memory::IO => Err(Failure::Unsupported(
            "GDS_MEMORY_IO is memory of LibGDSync's network card: use GDS_MEMORY_GPU or GDS_MEMORY_HOST".to_owned(),
        )),
        _ => Err(Failure::Invalid(format!("flags are {flags:#x}: give one of GDS_MEMORY_GPU and GDS_MEMORY_HOST"))),
    }
}

impl WaitValue {
    pub(super) fn condition(&self) -> Result<Condition, Failure> {
        Condition::numbered(self.condition).ok_or_else(|| {
            Failure::Invalid(format!(
                "the condition is {}: use one of GDS_WAIT_COND_GEQ, EQ, AND and NOR",
                self.condition
            ))
        })
    }

    pub(super) fn operation(&self) -> Result<Operation, Failure> {
        let condition = self.condition()? as c_int;
        check_flags(self.flags, WAIT_FLAGS)?;
        let word = word_operation(kind::WAIT_WORD, self.word, self.value).map_err(Failure::Invalid)?;
        Ok(Operation { condition, ..word })
    }
}

impl WriteValue {
    pub(super) fn operation(&self) -> Result<Operation, Failure> {
        check_flags(self.flags, WRITE_FLAGS)?;
        word_operation(kind::WRITE_WORD, self.word, self.value).map_err(Failure::Invalid)
    }
}

impl WriteMemory {
    pub(super) fn operation(&self) -> Result<Operation, Failure> {
        check_flags(self.flags, MEMORY_FLAGS)?;
        if self.count != 0 && (self.to.is_null() || self.from.is_null()) {
            return Err(Failure::Invalid(format!("dest or src of {} bytes is NULL", self.count)));
        }
        let (address, len, source) = (self.to.cast(), self.count as u64, self.from.cast());
        Ok(Operation { address, len, source, ..Operation::new(kind::WRITE_BYTES) })
    }
}

impl OfRequest {
    /// Returns the program's request.
    pub(super) fn of(&self, mark: u64) -> Result<*mut *mut Request, Failure> {
        match self.mark == mark {
            true => Ok(self.request),
            false => Err(Failure::invalid(
                "the request was not prepared by gds_prepare_mp_send or gds_prepare_mp_wait: prepare it first",
            )),
        }
    }
}

/// Returns what the program's pointer points to.
///
/// # Safety
/// As `given`.
pub(super) unsafe fn argument<'p, T>(pointer: *mut T, name: &str) -> Result<&'p mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { given(pointer, name) }.map_err(Failure::Invalid)
}

/// # Safety
/// As `mp_query_param`, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_prepare_wait_value32(
    out: *mut WaitValue,
    word: *mut u32,
    value: u32,
    condition: c_int,
    flags: c_int,
) -> c_int {
    answer("gds_prepare_wait_value32", || {
        // SAFETY: the caller's promise.
        let out = unsafe { argument(out, "desc") }?;
        let wait = WaitValue { word, value, condition, flags };
        wait.operation()?;
        *out = wait;
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_prepare_write_value32(
    out: *mut WriteValue,
    word: *mut u32,
    value: u32,
    flags: c_int,
) -> c_int {
    answer("gds_prepare_write_value32", || {
        // SAFETY: the caller's promise.
        let out = unsafe { argument(out, "desc") }?;
        let write = WriteValue { word, value, flags };
        write.operation()?;
        *out = write;
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_prepare_write_memory(
    out: *mut WriteMemory,
    to: *mut u8,
    from: *const u8,
    count: usize,
    flags: c_int,
) -> c_int {
    answer("gds_prepare_write_memory", || {
        // SAFETY: the caller's promise.
        let out = unsafe { argument(out, "desc") }?;
        let write = WriteMemory { to, from, count, flags };
        write.operation()?;
        *out = write;
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_prepare_mp_send(request: *mut *mut Request, out: *mut OfRequest) -> c_int {
    answer("gds_prepare_mp_send", || {
        // SAFETY: the caller's promise.
        let (prepared, out) = unsafe { (live(request).map_err(Failure::Invalid)?, argument(out, "request")?) };
        prepared.to_start().map_err(Failure::Invalid)?;
        *out = OfRequest { mark: SEND_MARK, request };
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_prepare_mp_wait(request: *mut *mut Request, out: *mut OfRequest, flags: c_int) -> c_int {
    answer("gds_prepare_mp_wait", || {
        // SAFETY: the caller's promise.
        let out = unsafe { argument(out, "request") }?;
        // SAFETY: as above.
        unsafe { live(request) }.map_err(Failure::Invalid)?;
        no_flags(flags)?;
        *out = OfRequest { mark: WAIT_MARK, request };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_type_of_memory_is_given() {
        for flags in [1, 2, 1 | 8, 2 | 8] {
            assert!(check_flags(flags, WAIT_FLAGS).is_ok(), "{flags}");
        }
        for flags in [0, 3, 8, 1 | 16, -1] {
            assert!(matches!(check_flags(flags, WAIT_FLAGS), Err(Failure::Invalid(_))), "{flags}");
        }
        assert!(matches!(check_flags(4, WAIT_FLAGS), Err(Failure::Unsupported(_))));
        assert!(check_flags(1 | 16, WRITE_FLAGS).is_ok() && check_flags(1 | 32, WRITE_FLAGS).is_err());
        assert!(check_flags(1 | 16 | 32, MEMORY_FLAGS).is_ok());
    }

    #[test]
    fn descriptions_are_checked() {
        let mut word = 0_u32;
        let good = WaitValue { word: &raw mut word, value: 7, condition: 3, flags: 1 };
        let operation = good.operation().unwrap();
        assert_eq!((operation.kind, operation.value, operation.condition), (kind::WAIT_WORD, 7, 3));
        assert!(WaitValue { condition: 4, ..good }.operation().is_err());
        assert!(WaitValue { word: std::ptr::null_mut(), ..good }.operation().is_err());
        assert!(WriteValue { word: (&raw mut word).wrapping_byte_add(2), value: 0, flags: 1 }.operation().is_err());
        let mut byte = 0_u8;
        let memory = WriteMemory { to: &raw mut byte, from: &raw const byte, count: 1, flags: 2 };
        assert_eq!(memory.operation().unwrap().len, 1);
        assert!(WriteMemory { from: std::ptr::null(), ..memory }.operation().is_err());
        assert!(WriteMemory { to: std::ptr::null_mut(), count: 0, ..memory }.operation().is_ok());
    }

    #[test]
    fn requests_of_others_are_refused() {
        let send = OfRequest { mark: SEND_MARK, request: std::ptr::null_mut() };
        assert!(send.of(SEND_MARK).is_ok() && send.of(WAIT_MARK).is_err());
        assert!(OfRequest { mark: 0, ..send }.of(SEND_MARK).is_err());
    }
}
