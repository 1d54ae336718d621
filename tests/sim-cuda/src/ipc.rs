//! Memory and events of other processes: `cuIpc*`.
//!
//! A handle contains the process, its descriptor of the file that holds the device's memory, and the piece. The file is
//! opened through `/proc`. So a process without access to the owner (another user, another pid namespace) cannot open
//! its handles, as with a real driver.
//!
//! The following behaviour was observed on driver 580: a handle of at most 2 MiB that its owner has freed still opens
//! and shows other bytes (here: zeroes). A larger freed handle is not permitted. All handles of one process and device
//! must be opened in one context.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, open};

use crate::abi::{Address, Out, driver_api};
use crate::capture;
use crate::context::{Context, current};
use crate::device;
use crate::driver::{AfterInit, check_initialised, fresh_id};
use crate::error::{Error, Outcome};
use crate::event::{self, DISABLE_TIMING, EVENTS, Event, INTERPROCESS, SharedState};
use crate::space::{Backing, Kind, Range, SPACE};
use crate::store::{Description, Mapping, PAGE, Piece, PieceName, Purpose};
use crate::stream;

/// The size of blocks that the driver keeps after their allocations are freed.
const KEPT: usize = 2 << 20;

const MEMORY: u64 = u64::from_be_bytes(*b"simIPCm\0");
const EVENT: u64 = u64::from_be_bytes(*b"simIPCe\0");

/// `CUipcMemHandle` and `CUipcEventHandle`, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Handle {
    magic: u64,
    process: u32,
    descriptor: u32,
    piece: PieceName,
    /// The requested bytes.
    len: u64,
    reserved: u64,
}

const _: () = assert!(size_of::<Handle>() == size_of::<cudarc::driver::sys::CUipcMemHandle_st>());
const _: () = assert!(size_of::<Handle>() == size_of::<cudarc::driver::sys::CUipcEventHandle_st>());

impl Handle {
    fn new(magic: u64, piece: &Piece, len: usize) -> Outcome<Handle> {
        let store = piece.store().ok_or(Error::INVALID_VALUE)?;
        let descriptor = store.file().as_raw_fd() as u32;
        Ok(Handle { magic, process: std::process::id(), descriptor, piece: piece.name(), len: len as u64, reserved: 0 })
    }

    /// Opens the file that holds the piece.
    fn file(&self, magic: u64) -> Outcome<OwnedFd> {
        if self.magic != magic {
            return Err(Error::INVALID_VALUE);
        }
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|_| Error::INVALID_HANDLE)?;
        let description = Description::read(file.as_fd()).map_err(|_| Error::INVALID_HANDLE)?;
        // By now the number may belong to another file, or another process.
        if description.purpose != Purpose::Device as u64 || description.cookie != self.piece.cookie {
            return Err(Error::INVALID_HANDLE);
        }
        Ok(file)
    }

    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }
}

/// Open handles with their counts: a context that opens a handle again gets the same address.
#[derive(Default)]
pub(crate) struct Imports {
    open: HashMap<(u64, PieceName), (Address, usize)>,
}

pub(crate) static IMPORTS: AfterInit<Mutex<Imports>> = AfterInit::new(Mutex::default);

impl Imports {
    pub(crate) fn forget_context(&mut self, id: u64) {
        self.open.retain(|(context, _), _| *context != id);
    }

    /// Checks whether another context has opened memory of the same process and device.
    fn is_elsewhere(&self, context: u64, cookie: u64) -> bool {
        self.open.keys().any(|(other, piece)| *other != context && piece.cookie == cookie)
    }

    /// Undoes one opening of `address`. Returns true if it was the last one.
    fn close(&mut self, address: Address) -> Outcome<bool> {
        let (key, count) = self
            .open
            .iter_mut()
            .find(|(_, (at, _))| *at == address)
            .map(|(key, (_, count))| (*key, count))
            .ok_or(Error::INVALID_VALUE)?;
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.open.remove(&key);
        }
        Ok(is_last)
    }
}

/// Maps the handle's memory. The caller holds the lock of the imports.
fn import(context: Arc<Context>, handle: &Handle) -> Outcome<Address> {
    check_initialised()?;
    let file = handle.file(MEMORY)?;
    // Memory of a device that this process cannot see has no device number here. The driver maps it nevertheless.
    let device = device::ordinal(Description::read(file.as_fd())?.device).unwrap_or(context.device);
    let piece = Piece::import_unchecked(file.as_fd(), handle.piece)?;
    if !piece.is_alive() && piece.len() > KEPT {
        return Err(Error::NOT_PERMITTED);
    }
    let len = usize::try_from(handle.len).ok().filter(|len| *len <= piece.len()).ok_or(Error::INVALID_VALUE)?;
    let addresses = Mapping::reserved(len, PAGE)?;
    let (base, alias) = (addresses.address(), piece.alias());
    SPACE.get()?.write().insert(Range {
        base,
        len,
        kind: Kind::Imported,
        device,
        context: Some(context),
        id: fresh_id(),
        alias,
        synchronous: AtomicBool::new(false),
        mapping: None,
        backing: Backing { _addresses: Some(addresses), piece: Some(Arc::new(piece)), ..Backing::default() },
    });
    Ok(base)
}

driver_api! {
    4010 cuIpcGetMemHandle: fn cuIpcGetMemHandle(handle: Out<Handle>, address: Address) {
        current()?;
        let range = SPACE.get()?.read().find(address).cloned().ok_or(Error::INVALID_VALUE)?;
        match &range.backing.piece {
            Some(piece) if range.kind == Kind::Device => handle.set(Handle::new(MEMORY, piece, range.len)?),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    11000 cuIpcOpenMemHandle: fn cuIpcOpenMemHandle_v2(address: Out<Address>, handle: Handle, flags: c_uint) {
        // `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS` is the only flag, and is required.
        if address.is_null() || flags != 1 {
            return Err(Error::INVALID_VALUE);
        }
        let context = current()?;
        if handle.is_own() {
            return Err(Error::INVALID_CONTEXT);
        }
        // As a real driver does, also for streams that wait for a word.
        let first = !IMPORTS.get()?.lock().open.contains_key(&(context.id, handle.piece));
        if first {
            stream::synchronize_context(&context)?;
        }
        let mut imports = IMPORTS.get()?.lock();
        if imports.is_elsewhere(context.id, handle.piece.cookie) {
            return Err(Error::INVALID_HANDLE);
        }
        let key = (context.id, handle.piece);
        let (base, count) = match imports.open.get(&key) {
            Some((base, count)) => (*base, *count),
            None => (import(context, &handle)?, 0),
        };
        imports.open.insert(key, (base, count + 1));
        address.set(base)
    }

    4010 cuIpcCloseMemHandle: fn cuIpcCloseMemHandle(address: Address) {
        let context = current()?;
        if IMPORTS.get()?.lock().close(address)? {
            stream::synchronize_context(&context)?;
            drop(SPACE.get()?.write().remove(address));
        }
        Ok(())
    }

    4010 cuIpcGetEventHandle: fn cuIpcGetEventHandle(handle: Out<Handle>, event: usize) {
        let event = event::get(event)?;
        let shared = event.shared().filter(|shared| shared.piece().store().is_some()).ok_or(Error::INVALID_HANDLE)?;
        handle.set(Handle::new(EVENT, shared.piece(), 0)?)
    }

    4010 cuIpcOpenEventHandle: fn cuIpcOpenEventHandle(event: Out<usize>, handle: Handle) {
        let context = current()?;
        if handle.is_own() {
            return Err(Error::INVALID_CONTEXT);
        }
        capture::unsafe_call()?;
        let file = handle.file(EVENT)?;
        let shared = SharedState::of(Piece::import(file.as_fd(), handle.piece)?);
        let made = Event::new(context, DISABLE_TIMING | INTERPROCESS, Some(shared));
        event.set(EVENTS.get()?.lock().insert(Arc::new(made)))
    }
}
