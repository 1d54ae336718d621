//! One-sided operations on registered memory of other processes.

use std::ffi::{c_int, c_void};

use cableway::{Atomic, RawBuffer, Signal, SignalUpdate, Word};

use crate::arguments::rank;
use crate::code::Failure;
use crate::communicator::{Handled, named};
use crate::handle::Handle;
use crate::memory::Memory;
use crate::outcome::guard;
use crate::registration::RemoteKey;
use crate::request::Request;

/// The target that stands for all.
pub(crate) const ALL_TARGETS: c_int = -1;

/// # Safety
/// The same as that of [`Memory::buffer`].
pub(crate) unsafe fn bytes_at<'a>(address: *const c_void, bytes: usize) -> Result<RawBuffer<'a>, Failure> {
    // SAFETY: the caller's promise.
    unsafe { Memory { address, count: bytes, datatype: std::ptr::null() }.buffer() }
}

/// The word that a signal changes, and how.
pub(crate) struct SignalWord {
    key: cableway::RemoteKey,
    offset: u64,
    update: SignalUpdate,
}

impl SignalWord {
    /// # Safety
    /// The same as that of [`RemoteKey::read`].
    pub(crate) unsafe fn read(
        key: *const RemoteKey,
        offset: u64,
        update: c_int,
        value: u64,
    ) -> Result<SignalWord, Failure> {
        // SAFETY: the caller's promise.
        let key = unsafe { RemoteKey::read(key, "the key of the signal")? };
        Ok(SignalWord { key, offset, update: self::update(update, value)? })
    }

    pub(crate) fn signal(&self) -> Signal<'_> {
        Signal { at: self.key.at(self.offset), update: self.update }
    }
}

fn update(number: c_int, value: u64) -> Result<SignalUpdate, Failure> {
    match number {
        1 => Ok(SignalUpdate::Set(value)),
        2 => Ok(SignalUpdate::Add(value)),
        _ => Err(Failure::argument(format!("there is no update of signals {number}: use a cableway_signal_update"))),
    }
}

fn operation<T: Word>(number: c_int, value: T, expected: T) -> Result<Atomic<T>, Failure> {
    Ok(match number {
        1 => Atomic::Add(value),
        2 => Atomic::Swap(value),
        3 => Atomic::CompareSwap { expected, new: value },
        4 => Atomic::And(value),
        5 => Atomic::Or(value),
        6 => Atomic::Xor(value),
        _ => return Err(Failure::argument(format!("there is no atomic operation {number}: use a cableway_atomic"))),
    })
}

/// Copies data to registered memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_put(
    buffer: *const c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let key = RemoteKey::read(key, "the key")?;
        Ok(named(communicator)?.put(&bytes_at(buffer, bytes)?, key.at(offset))?)
    })
}

/// Copies data to registered memory, and then changes a word.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_put_signal(
    buffer: *const c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    signal_key: *const RemoteKey,
    signal_offset: u64,
    update: c_int,
    value: u64,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let key = RemoteKey::read(key, "the key")?;
        let word = SignalWord::read(signal_key, signal_offset, update, value)?;
        Ok(named(communicator)?.put_signal(&bytes_at(buffer, bytes)?, key.at(offset), word.signal())?)
    })
}

/// Copies data from registered memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_get(
    buffer: *mut c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let key = RemoteKey::read(key, "the key")?;
        Ok(named(communicator)?.get(&mut bytes_at(buffer, bytes)?, key.at(offset))?)
    })
}

/// Copies data from registered memory, and then changes a word.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_get_signal(
    buffer: *mut c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    signal_key: *const RemoteKey,
    signal_offset: u64,
    update: c_int,
    value: u64,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let key = RemoteKey::read(key, "the key")?;
        let word = SignalWord::read(signal_key, signal_offset, update, value)?;
        Ok(named(communicator)?.get_signal(&mut bytes_at(buffer, bytes)?, key.at(offset), word.signal())?)
    })
}

/// Starts a put.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iput(
    buffer: *const c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let key = RemoteKey::read(key, "the key")?;
            Ok(named(communicator)?.put_raw(&bytes_at(buffer, bytes)?, key.at(offset), None)?)
        })
    }
}

/// Starts a put with a signal.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iput_signal(
    buffer: *const c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    signal_key: *const RemoteKey,
    signal_offset: u64,
    update: c_int,
    value: u64,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let key = RemoteKey::read(key, "the key")?;
            let word = SignalWord::read(signal_key, signal_offset, update, value)?;
            Ok(named(communicator)?.put_raw(&bytes_at(buffer, bytes)?, key.at(offset), Some(word.signal()))?)
        })
    }
}

/// Starts a get.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iget(
    buffer: *mut c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let key = RemoteKey::read(key, "the key")?;
            Ok(named(communicator)?.get_raw(&mut bytes_at(buffer, bytes)?, key.at(offset), None)?)
        })
    }
}

/// Starts a get with a signal.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iget_signal(
    buffer: *mut c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    signal_key: *const RemoteKey,
    signal_offset: u64,
    update: c_int,
    value: u64,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let key = RemoteKey::read(key, "the key")?;
            let word = SignalWord::read(signal_key, signal_offset, update, value)?;
            Ok(named(communicator)?.get_raw(&mut bytes_at(buffer, bytes)?, key.at(offset), Some(word.signal()))?)
        })
    }
}

/// Changes a word of 4 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_atomic32(
    operation: c_int,
    value: u32,
    expected: u32,
    key: *const RemoteKey,
    offset: u64,
    communicator: Handled,
    before: *mut u32,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let (key, operation) = (RemoteKey::read(key, "the key")?, self::operation(operation, value, expected)?);
        let found = named(communicator)?.atomic(operation, key.at(offset))?;
        if !before.is_null() {
            before.write(found);
        }
        Ok(())
    })
}

/// Changes a word of 8 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_atomic64(
    operation: c_int,
    value: u64,
    expected: u64,
    key: *const RemoteKey,
    offset: u64,
    communicator: Handled,
    before: *mut u64,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let (key, operation) = (RemoteKey::read(key, "the key")?, self::operation(operation, value, expected)?);
        let found = named(communicator)?.atomic(operation, key.at(offset))?;
        if !before.is_null() {
            before.write(found);
        }
        Ok(())
    })
}

/// Orders later operations after earlier ones.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_fence(target: c_int, communicator: Handled) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let on = named(communicator)?;
        match target {
            ALL_TARGETS => on.fence_all(),
            target => on.fence(rank(target)?)?,
        }
        Ok(())
    })
}

/// Waits for operations.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_flush(target: c_int, communicator: Handled) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let on = named(communicator)?;
        match target {
            ALL_TARGETS => on.flush_all(),
            target => on.flush(rank(target)?)?,
        }
        Ok(())
    })
}
