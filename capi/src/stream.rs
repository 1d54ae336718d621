//! Messages in the order of a stream of the program.

use std::ffi::{c_int, c_void};

use cableway::{PutPath, RawStream, StreamWord, Vendor, WaitCondition};

use crate::arguments::{Out, rank, sender, tag as any_tag};
use crate::code::Failure;
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::{Handle, Named, free};
use crate::memory::Memory;
use crate::one_sided::{SignalWord, bytes_at};
use crate::outcome::guard;
use crate::registration::{Registration, RemoteKey};
use crate::request::{self, Request};
use crate::world::World;

/// A stream that the C program has described.
pub(crate) struct Stream(RawStream);

impl Named for Stream {
    const TAG: u64 = 0x7b4f_c1d6_57e4_a000;
    const NAME: &'static str = "stream";
}

/// Returns the stream that a handle names.
///
/// # Safety
/// The same as that of [`Handle::get`].
pub(crate) unsafe fn described<'a>(stream: *mut Handle<Stream>) -> Result<&'a RawStream, Failure> {
    // SAFETY: the caller's promise.
    Ok(&unsafe { Handle::get(stream)? }.0)
}

fn vendor(number: c_int) -> Result<Vendor, Failure> {
    match number {
        1 => Ok(Vendor::Nvidia),
        2 => Ok(Vendor::Amd),
        _ => Err(Failure::argument(format!("there is no vendor {number}: use a cableway_vendor"))),
    }
}

fn condition(number: c_int) -> Result<WaitCondition, Failure> {
    match number {
        1 => Ok(WaitCondition::GreaterOrEqual),
        2 => Ok(WaitCondition::Equal),
        3 => Ok(WaitCondition::And),
        4 => Ok(WaitCondition::Nor),
        _ => Err(Failure::argument(format!("there is no condition {number}: use a cableway_wait_condition"))),
    }
}

/// Describes a stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_create(
    world: *mut Handle<World>,
    vendor: c_int,
    stream: *mut c_void,
    made: *mut *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(made, "the place for the stream")?;
        let described = RawStream::new(Handle::get(world)?.world(), self::vendor(vendor)?, stream)?;
        place.set(Box::into_raw(Handle::new(Stream(described))));
        Ok(())
    })
}

/// Ends the description of a stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_free(stream: *mut *mut Handle<Stream>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let mut result = Ok(());
        free(stream, |stream: Stream| result = stream.0.finish())?;
        Ok(result?)
    })
}

/// Waits for a stream and its messages.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_finish(stream: *mut Handle<Stream>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(described(stream)?.finish()?) })
}

/// Tells an error that no one was told.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_check(stream: *mut Handle<Stream>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(described(stream)?.stream().check()?) })
}

/// Adds a send, for which the stream waits.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_send(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    to: c_int,
    tag: c_int,
    communicator: Handled,
    stream: *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let buffer = Memory { address: buffer, count, datatype }.buffer()?;
        Ok(described(stream)?.send(&buffer, rank(to)?, tag, named(communicator)?)?)
    })
}

/// Adds a receive, for which the stream waits.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_recv(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    source: c_int,
    tag: c_int,
    communicator: Handled,
    stream: *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let mut buffer = Memory { address: buffer, count, datatype }.buffer()?;
        Ok(described(stream)?.recv(&mut buffer, sender(source)?, any_tag(tag), named(communicator)?)?)
    })
}

/// Adds a send.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_isend(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    to: c_int,
    tag: c_int,
    communicator: Handled,
    stream: *mut Handle<Stream>,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let buffer = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(described(stream)?.isend(&buffer, rank(to)?, tag, named(communicator)?)?)
        })
    }
}

/// Adds a receive.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_irecv(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    source: c_int,
    tag: c_int,
    communicator: Handled,
    stream: *mut Handle<Stream>,
    request: *mut *mut Handle<Request>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let mut buffer = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(described(stream)?.irecv(&mut buffer, sender(source)?, any_tag(tag), named(communicator)?)?)
        })
    }
}

/// Makes a stream wait for messages.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_waitall(
    count: usize,
    requests: *mut *mut Handle<Request>,
    stream: *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let stream = described(stream)?;
        request::leave_all(requests, count, |requests| Ok(stream.wait(requests)?))
    })
}

/// Maps memory for puts of a stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_map(
    key: *const RemoteKey,
    stream: *mut Handle<Stream>,
    alone: *mut c_int,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(alone, "the place for the answer")?;
        let path = described(stream)?.stream().map_for_puts(&RemoteKey::read(key, "the key")?)?;
        place.set(c_int::from(path == PutPath::Stream));
        Ok(())
    })
}

/// Adds a put.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_put(
    buffer: *const c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    stream: *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let key = RemoteKey::read(key, "the key")?;
        Ok(described(stream)?.put(&bytes_at(buffer, bytes)?, key.at(offset), None)?)
    })
}

/// Adds a put with a signal.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_put_signal(
    buffer: *const c_void,
    bytes: usize,
    key: *const RemoteKey,
    offset: u64,
    signal_key: *const RemoteKey,
    signal_offset: u64,
    update: c_int,
    value: u64,
    stream: *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let key = RemoteKey::read(key, "the key")?;
        let word = SignalWord::read(signal_key, signal_offset, update, value)?;
        Ok(described(stream)?.put(&bytes_at(buffer, bytes)?, key.at(offset), Some(word.signal()))?)
    })
}

/// Makes a stream wait for a signal.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_wait_signal(
    registration: *mut Handle<Registration>,
    offset: u64,
    value: u64,
    from: c_int,
    stream: *mut Handle<Stream>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let memory = Handle::get(registration)?.memory();
        Ok(described(stream)?.wait_signal(memory, offset, value, rank(from)?)?)
    })
}

/// Makes a stream write a word of 4 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_write_value32(
    address: *mut c_void,
    value: u32,
    stream: *mut Handle<Stream>,
) -> c_int {
    let word = StreamWord::Bits32(address.expose_provenance() as u64);
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(described(stream)?.stream().write_value(word, value.into())?) })
}

/// Makes a stream write a word of 8 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_write_value64(
    address: *mut c_void,
    value: u64,
    stream: *mut Handle<Stream>,
) -> c_int {
    let word = StreamWord::Bits64(address.expose_provenance() as u64);
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(described(stream)?.stream().write_value(word, value)?) })
}

/// Makes a stream wait for a word of 4 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_wait_value32(
    address: *mut c_void,
    value: u32,
    condition: c_int,
    stream: *mut Handle<Stream>,
) -> c_int {
    let word = StreamWord::Bits32(address.expose_provenance() as u64);
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(described(stream)?.stream().wait_value(word, value.into(), self::condition(condition)?)?) })
}

/// Makes a stream wait for a word of 8 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stream_wait_value64(
    address: *mut c_void,
    value: u64,
    condition: c_int,
    stream: *mut Handle<Stream>,
) -> c_int {
    let word = StreamWord::Bits64(address.expose_provenance() as u64);
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(described(stream)?.stream().wait_value(word, value, self::condition(condition)?)?) })
}
