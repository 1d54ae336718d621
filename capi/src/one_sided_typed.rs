//! Puts and gets of elements of datatypes.

use std::ffi::{c_int, c_void};

use cableway::{Layout, Signal, Target};

use crate::code::Failure;
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::one_sided::SignalWord;
use crate::outcome::guard;
use crate::registration::RemoteKey;
use crate::request::Request;

/// The memory of the target, and the signal, as a function's arguments describe them.
struct Remote {
    key: cableway::RemoteKey,
    offset: u64,
    count: u64,
    layout: Layout,
    signal: Option<SignalWord>,
}

/// The arguments that name a signal. There is none if the key is null.
struct Word {
    key: *const RemoteKey,
    offset: u64,
    update: c_int,
    value: u64,
}

/// The arguments that name elements of registered memory. They are bytes if the datatype is null.
struct Elements {
    key: *const RemoteKey,
    offset: u64,
    count: usize,
    datatype: *const Handle<Datatype>,
}

impl Remote {
    /// # Safety
    /// The keys and the datatype are valid or null.
    unsafe fn read(elements: Elements, word: Word) -> Result<Remote, Failure> {
        let Elements { key, offset, count, datatype } = elements;
        // SAFETY: the caller's promise.
        unsafe {
            let key = RemoteKey::read(key, "the key")?;
            let (count, layout) = match datatype.is_null() {
                // Bytes are one element.
                true => (1, Layout::rows(1, count as u64, 0).map_err(cableway::Error::from)?),
                false => (count as u64, Handle::get(datatype)?.layout().clone()),
            };
            let signal = match word.key.is_null() {
                true => None,
                false => Some(SignalWord::read(word.key, word.offset, word.update, word.value)?),
            };
            Ok(Remote { key, offset, count, layout, signal })
        }
    }

    fn target(&self) -> Target<'_> {
        self.key.at(self.offset).typed(self.count, &self.layout)
    }

    fn signal(&self) -> Option<Signal<'_>> {
        self.signal.as_ref().map(SignalWord::signal)
    }
}

/// Copies elements to registered memory, and then changes a word if there is a signal.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_put_typed(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    key: *const RemoteKey,
    offset: u64,
    target_count: usize,
    target_datatype: *const Handle<Datatype>,
    signal_key: *const RemoteKey,
    signal_offset: u64,
    update: c_int,
    value: u64,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let word = Word { key: signal_key, offset: signal_offset, update, value };
        let elements = Elements { key, offset, count: target_count, datatype: target_datatype };
        let remote = Remote::read(elements, word)?;
        let (data, on) = (Memory { address: buffer, count, datatype }.buffer()?, named(communicator)?);
        match remote.signal() {
            Some(signal) => on.put_signal(&data, remote.target(), signal)?,
            None => on.put(&data, remote.target())?,
        }
        Ok(())
    })
}

/// Copies elements from registered memory, and then changes a word if there is a signal.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_get_typed(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    key: *const RemoteKey,
    offset: u64,
    target_count: usize,
    target_datatype: *const Handle<Datatype>,
    signal_key: *const RemoteKey,
    signal_offset: u64,
    update: c_int,
    value: u64,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let word = Word { key: signal_key, offset: signal_offset, update, value };
        let elements = Elements { key, offset, count: target_count, datatype: target_datatype };
        let remote = Remote::read(elements, word)?;
        let (mut room, on) = (Memory { address: buffer, count, datatype }.buffer()?, named(communicator)?);
        match remote.signal() {
            Some(signal) => on.get_signal(&mut room, remote.target(), signal)?,
            None => on.get(&mut room, remote.target())?,
        }
        Ok(())
    })
}

/// Starts a put of elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iput_typed(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    key: *const RemoteKey,
    offset: u64,
    target_count: usize,
    target_datatype: *const Handle<Datatype>,
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
            let word = Word { key: signal_key, offset: signal_offset, update, value };
            let elements = Elements { key, offset, count: target_count, datatype: target_datatype };
            let remote = Remote::read(elements, word)?;
            let data = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(named(communicator)?.put_raw(&data, remote.target(), remote.signal())?)
        })
    }
}

/// Starts a get of elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iget_typed(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    key: *const RemoteKey,
    offset: u64,
    target_count: usize,
    target_datatype: *const Handle<Datatype>,
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
            let word = Word { key: signal_key, offset: signal_offset, update, value };
            let elements = Elements { key, offset, count: target_count, datatype: target_datatype };
            let remote = Remote::read(elements, word)?;
            let mut room = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(named(communicator)?.get_raw(&mut room, remote.target(), remote.signal())?)
        })
    }
}
