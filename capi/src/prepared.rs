//! Operations that are described once and posted on a stream many times.

use std::ffi::{c_int, c_void};

use cableway::{PreparedPath, RawPrepared};

use crate::arguments::{self, Out, rank};
use crate::code::Failure;
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::{Handle, Named, free};
use crate::memory::Memory;
use crate::outcome::guard;
use crate::stream::{Stream, described};

/// An operation that the C program posts.
pub(crate) struct Prepared(RawPrepared);

impl Named for Prepared {
    const TAG: u64 = 0x7b4f_c1d6_94e9_a4ed;
    const NAME: &'static str = "prepared operation";
}

/// Prepares an operation, and stores its handle at the place. Nothing is prepared if the place is null.
///
/// # Safety
/// The place is null or valid for a write.
unsafe fn prepare(place: *mut *mut Handle<Prepared>, begin: impl FnOnce() -> Result<RawPrepared, Failure>) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(place, "the place for the prepared operation")? };
        place.set(Box::into_raw(Handle::new(Prepared(begin()?))));
        Ok(())
    })
}

/// Prepares a send.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_prepare_send(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    to: c_int,
    tag: c_int,
    communicator: Handled,
    stream: *mut Handle<Stream>,
    made: *mut *mut Handle<Prepared>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        prepare(made, || {
            let buffer = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(described(stream)?.prepare_send(&buffer, rank(to)?, tag, named(communicator)?)?)
        })
    }
}

/// Prepares a receive.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_prepare_recv(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    source: c_int,
    tag: c_int,
    communicator: Handled,
    stream: *mut Handle<Stream>,
    made: *mut *mut Handle<Prepared>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        prepare(made, || {
            let mut buffer = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(described(stream)?.prepare_recv(&mut buffer, rank(source)?, tag, named(communicator)?)?)
        })
    }
}

/// Waits for the other process's side.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_prepared_agree(prepared: *mut Handle<Prepared>, alone: *mut c_int) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(alone, "the place for the answer")?;
        let path = Handle::get(prepared)?.0.agree()?;
        place.set(c_int::from(path == PreparedPath::Streams));
        Ok(())
    })
}

/// Posts operations.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_post(
    count: usize,
    prepared: *const *mut Handle<Prepared>,
    stream: *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let handles = arguments::array(prepared, count, "the array of prepared operations")?;
        let named = |&handle: &*mut Handle<Prepared>| Handle::get(handle).map(|prepared| &prepared.0);
        let all = handles.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        Ok(described(stream)?.post(&all)?)
    })
}

/// Ends an operation.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_prepared_free(prepared: *mut *mut Handle<Prepared>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { free(prepared, drop::<Prepared>) })
}
