//! Pools of stream-ordered memory, and the pools that devices use.

use std::ffi::{c_int, c_uint};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::driver::{AfterInit, Handles};
use crate::error::{Error, Outcome};
use crate::settings::Settings;
use crate::sharing::{Accesses, READ_WRITE};
use crate::store::{Description, Store};

pub(crate) struct Pool {
    pub(crate) device: c_int,
    pub(crate) source: Source,
    pub(crate) is_default: bool,
    /// Access of devices other than its own.
    pub(crate) access: Accesses,
    /// Values of the attributes that a program may set: three kinds of reuse, and the release threshold.
    pub(crate) settings: [AtomicU64; 4],
    pub(crate) used: AtomicU64,
    pub(crate) used_high: AtomicU64,
    /// The number of its allocations whose free the stream has not reached.
    pub(crate) ranges: AtomicUsize,
    /// True if it has been exported. Its allocations can be exported only afterwards.
    pub(crate) is_exported: AtomicBool,
    /// True if the user has destroyed it. Its handle stays valid until all of its memory is freed.
    pub(crate) is_destroyed: AtomicBool,
}

/// The source of a pool's memory.
pub(crate) enum Source {
    /// The device's memory, which cannot be shared.
    Private,
    /// A file of its own.
    Shared(Arc<Store>),
    /// Another process's file.
    Imported(OwnedFd, Description),
}

impl Pool {
    pub(crate) fn new(device: c_int, source: Source, is_default: bool) -> Pool {
        let settings = [1, 1, 1, 0].map(AtomicU64::new);
        Pool {
            device,
            source,
            is_default,
            access: Accesses::default(),
            settings,
            used: AtomicU64::new(0),
            used_high: AtomicU64::new(0),
            ranges: AtomicUsize::new(0),
            is_exported: AtomicBool::new(false),
            is_destroyed: AtomicBool::new(false),
        }
    }

    pub(crate) fn access_of(&self, device: c_int) -> c_uint {
        if device == self.device { READ_WRITE } else { self.access.get(device).unwrap_or(0) }
    }

    pub(crate) fn is_exportable(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }
}

/// A device's default pool, and the one that it uses now.
pub(crate) struct DevicePools {
    pub(crate) default: usize,
    pub(crate) now: AtomicUsize,
}

impl DevicePools {
    fn create(pools: &mut Handles<Pool>, device: usize) -> DevicePools {
        let default = pools.insert(Arc::new(Pool::new(device as c_int, Source::Private, true)));
        DevicePools { default, now: AtomicUsize::new(default) }
    }
}

/// All pools, and the ones that devices use.
pub(crate) struct Pools {
    pub(crate) handles: Mutex<Handles<Pool>>,
    pub(crate) of_devices: Vec<DevicePools>,
}

pub(crate) static POOLS: AfterInit<Pools> = AfterInit::new(|| {
    let mut handles = Handles::new(0x5300_0000_0000);
    let devices = 0..Settings::get().visible.len();
    let of_devices = devices.map(|device| DevicePools::create(&mut handles, device)).collect();
    Pools { handles: Mutex::new(handles), of_devices }
});

/// The pools of a device.
pub(crate) fn of_device(device: c_int) -> Outcome<&'static DevicePools> {
    let pools = &POOLS.get()?.of_devices;
    usize::try_from(device).ok().and_then(|device| pools.get(device)).ok_or(Error::INVALID_DEVICE)
}

/// Returns the pool of a handle, unless it is destroyed.
pub(crate) fn get(handle: usize) -> Outcome<Arc<Pool>> {
    let pool = POOLS.get()?.handles.lock().get(handle);
    pool.filter(|pool| !pool.is_destroyed.load(Ordering::SeqCst)).ok_or(Error::INVALID_VALUE)
}

/// Returns the `CUmemAccess_flags` of a device for a pool's memory. A destroyed pool grants no access.
pub(crate) fn access(handle: usize, device: c_int) -> Outcome<c_uint> {
    Ok(POOLS.get()?.handles.lock().get(handle).map_or(0, |pool| pool.access_of(device)))
}
