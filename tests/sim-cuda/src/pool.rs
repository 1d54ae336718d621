//! Memory in stream order: `cuMemAllocAsync`, `cuMemPool*`.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::sys::CUmemPool_attribute as Attribute;

use crate::abi::{Address, In, List, Out, driver_api, numbers};
use crate::capture;
use crate::context::current;
use crate::device::Charge;
use crate::driver::{Driver, Handles, driver, fresh_id};
use crate::error::{Error, Outcome};
use crate::pool_memory::{Importing, InPool, check_free, remove_if_done};
use crate::schedule::Work;
use crate::sharing::{AccessOf, Accesses, Location, NO_HANDLE, PINNED, POSIX, READ_WRITE, descriptor, hand_out};
use crate::space::{Backing, Kind, Range};
use crate::store::{Description, Mapping, PAGE, Piece, PieceName, Purpose, Store};
use crate::stream;

pub(crate) struct Pool {
    device: c_int,
    source: Source,
    is_default: bool,
    /// Of devices other than its own.
    access: Accesses,
    /// Values of the attributes that a program may set: the three kinds of reuse, and the release threshold.
    settings: [AtomicU64; 4],
    used: AtomicU64,
    used_high: AtomicU64,
    /// What there is of its memory, freed or not, until the stream has come to its freeing.
    pub(crate) ranges: AtomicUsize,
    /// It has been exported; before, nothing in it can be.
    is_exported: AtomicBool,
    /// The user has done with it. Its handle names it until nothing is left of its memory.
    pub(crate) is_destroyed: AtomicBool,
}

/// Where a pool's memory comes from.
enum Source {
    /// The device's memory, which cannot be shared.
    Private,
    /// A file of its own.
    Shared(Arc<Store>),
    /// Another process's file.
    Imported(OwnedFd, Description),
}

impl Pool {
    fn new(device: c_int, source: Source, is_default: bool) -> Pool {
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

    fn access_of(&self, device: c_int) -> c_uint {
        if device == self.device { READ_WRITE } else { self.access.get(device).unwrap_or(0) }
    }

    fn is_exportable(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }
}

/// `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    security: usize,
    max_size: usize,
    reserved: [u8; 56],
}

const _: () = assert!(size_of::<Properties>() == size_of::<cudarc::driver::sys::CUmemPoolProps_st>());

/// `CUmemPoolPtrExportData`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PointerExport {
    piece: PieceName,
    len: u64,
    reserved: [u64; 3],
}

const _: () = assert!(size_of::<PointerExport>() == size_of::<cudarc::driver::sys::CUmemPoolPtrExportData_st>());

/// A device's default pool, and the one that it uses now.
pub(crate) struct DevicePools {
    default: usize,
    now: AtomicUsize,
}

impl DevicePools {
    pub(crate) fn create(pools: &mut Handles<Pool>, device: usize) -> DevicePools {
        let default = pools.insert(Arc::new(Pool::new(device as c_int, Source::Private, true)));
        DevicePools { default, now: AtomicUsize::new(default) }
    }
}

impl Driver {
    fn pools_of(&self, device: c_int) -> Outcome<&DevicePools> {
        usize::try_from(device).ok().and_then(|device| self.device_pools.get(device)).ok_or(Error::INVALID_DEVICE)
    }

    fn pool(&self, handle: usize) -> Outcome<Arc<Pool>> {
        let pool = self.pools.lock().get(handle);
        pool.filter(|pool| !pool.is_destroyed.load(Ordering::SeqCst)).ok_or(Error::INVALID_VALUE)
    }

    /// `CUmemAccess_flags` of a device for a pool's memory; of a pool that is gone, as if nothing had been granted.
    pub(crate) fn pool_access(&self, handle: usize, device: c_int) -> c_uint {
        self.pools.lock().get(handle).map_or(0, |pool| pool.access_of(device))
    }
}

/// The pool of which `cuMemAllocAsync` takes memory.
fn current_pool(device: c_int) -> Outcome<usize> {
    Ok(driver()?.pools_of(device)?.now.load(Ordering::Relaxed))
}

fn insert(pool_handle: usize, pool: &Arc<Pool>, len: usize, piece: Piece, charge: Option<Charge>) -> Outcome<Address> {
    let addresses = Mapping::reserved(len, PAGE)?;
    let (base, alias, piece) = (addresses.address(), piece.alias(), Arc::new(piece));
    let import = matches!(pool.source, Source::Imported(..)).then(|| Importing::new(piece.clone()));
    let backing = Backing {
        _addresses: Some(addresses),
        piece: Some(piece),
        _charge: charge,
        _pool: Some(InPool::new(pool_handle, pool.clone())),
        _import: import,
        ..Backing::default()
    };
    driver()?.space.write().insert(Range {
        base,
        len,
        kind: Kind::Pool { pool: pool_handle, exportable: pool.is_exportable() },
        device: pool.device,
        context: None,
        id: fresh_id(),
        alias,
        synchronous: AtomicBool::new(false),
        mapping: None,
        backing,
    });
    Ok(base)
}

fn allocate(len: usize, handle: usize, stream: usize) -> Outcome<Address> {
    capture::unsafe_call()?;
    stream::get(stream)?;
    if len == 0 {
        return Ok(0);
    }
    let driver = driver()?;
    let pool = driver.pool(handle)?;
    let device = driver.device(pool.device)?;
    let store = match &pool.source {
        Source::Private => device.store()?,
        Source::Shared(store) => store.clone(),
        Source::Imported(..) => return Err(Error::INVALID_VALUE),
    };
    let charge = device.charge(len as u64)?;
    let base = insert(handle, &pool, len, store.piece(len)?, Some(charge))?;
    let used = pool.used.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
    pool.used_high.fetch_max(used, Ordering::Relaxed);
    Ok(base)
}

/// Keeps a range until the stream comes to its freeing.
struct Release {
    range: Arc<Range>,
}

impl Work for Release {
    fn step(&mut self) -> bool {
        check_free(&self.range);
        true
    }
}

fn free(address: Address, stream: usize) -> Outcome {
    let stream = stream::get(stream)?;
    if address == 0 {
        return Ok(());
    }
    let driver = driver()?;
    let mut space = driver.space.write();
    let range = space.find(address).filter(|range| range.base == address).cloned().ok_or(Error::INVALID_VALUE)?;
    match range.kind {
        Kind::Pool { pool, .. } => {
            if let Ok(pool) = driver.pool(pool) {
                let less = |used: u64| Some(used.saturating_sub(range.len as u64));
                let _ = pool.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
        Kind::Device => {}
        _ => return Err(Error::INVALID_VALUE),
    }
    // The driver forgets the address at once, whatever the stream still does with the memory.
    space.remove(address);
    drop(space);
    stream.submit(Box::new(Release { range }))
}

fn create(properties: Properties) -> Outcome<usize> {
    capture::unsafe_call()?;
    let device = properties.location.device()?;
    if properties.kind != PINNED {
        return Err(Error::INVALID_VALUE);
    }
    let driver = driver()?;
    let source = match properties.handle_types {
        NO_HANDLE => Source::Private,
        POSIX => Source::Shared(Store::create(Purpose::Pool, driver.device(device)?.physical())?),
        _ => return Err(Error::INVALID_VALUE),
    };
    Ok(driver.pools.lock().insert(Arc::new(Pool::new(device, source, false))))
}

fn import(handle: usize) -> Outcome<usize> {
    let driver = driver()?;
    let file = descriptor(handle)?;
    let description = Description::read(file.as_fd())?;
    if description.purpose != Purpose::Pool as u64 {
        return Err(Error::INVALID_VALUE);
    }
    let device = driver.ordinal(description.device)?;
    let pool = Pool::new(device, Source::Imported(file, description), false);
    Ok(driver.pools.lock().insert(Arc::new(pool)))
}

fn export_pointer(address: Address) -> Outcome<PointerExport> {
    capture::unsafe_call()?;
    let range = driver()?.space.read().find(address).cloned().ok_or(Error::INVALID_VALUE)?;
    match (&range.kind, &range.backing.piece) {
        // As a real driver has it.
        (Kind::Pool { exportable: true, pool }, Some(piece))
            if driver()?.pool(*pool)?.is_exported.load(Ordering::Relaxed) =>
        {
            Ok(PointerExport { piece: piece.name(), len: range.len as u64, reserved: [0; 3] })
        }
        _ => Err(Error::INVALID_VALUE),
    }
}

fn import_pointer(handle: usize, export: PointerExport) -> Outcome<Address> {
    let pool = driver()?.pool(handle)?;
    let Source::Imported(file, description) = &pool.source else { return Err(Error::INVALID_VALUE) };
    if export.piece.cookie != description.cookie {
        return Err(Error::INVALID_VALUE);
    }
    let piece = Piece::import(file.as_fd(), export.piece)?;
    let len = usize::try_from(export.len).ok().filter(|len| *len > 0 && *len <= piece.len());
    insert(handle, &pool, len.ok_or(Error::INVALID_VALUE)?, piece, None)
}

numbers! { Attribute:
    FOLLOW_EVENTS = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
    INTERNAL = CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
    THRESHOLD = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    RESERVED = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    RESERVED_HIGH = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
    USED = CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    USED_HIGH = CU_MEMPOOL_ATTR_USED_MEM_HIGH
}

driver_api! {
    11020 cuMemAllocAsync: fn cuMemAllocAsync(address: Out<Address>, len: usize, stream: usize) {
        let device = current()?.device;
        address.set(allocate(len, current_pool(device)?, stream)?)
    }

    11020 cuMemAllocFromPoolAsync: fn cuMemAllocFromPoolAsync(address: Out<Address>, len: usize, pool: usize, stream: usize) {
        address.set(allocate(len, pool, stream)?)
    }

    11020 cuMemFreeAsync: fn cuMemFreeAsync(address: Address, stream: usize) {
        free(address, stream)
    }

    11020 cuDeviceGetDefaultMemPool: fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: c_int) {
        pool.set(driver()?.pools_of(device)?.default)
    }

    11020 cuDeviceGetMemPool: fn cuDeviceGetMemPool(pool: Out<usize>, device: c_int) {
        pool.set(current_pool(device)?)
    }

    11020 cuDeviceSetMemPool: fn cuDeviceSetMemPool(device: c_int, pool: usize) {
        let driver = driver()?;
        if driver.pool(pool)?.device != device {
            return Err(Error::INVALID_VALUE);
        }
        driver.pools_of(device)?.now.store(pool, Ordering::Relaxed);
        Ok(())
    }

    11020 cuMemPoolCreate: fn cuMemPoolCreate(pool: Out<usize>, properties: In<Properties>) {
        pool.set(create(properties.get()?)?)
    }

    11020 cuMemPoolDestroy: fn cuMemPoolDestroy(pool: usize) {
        let driver = driver()?;
        if driver.pool(pool)?.is_default {
            return Err(Error::INVALID_VALUE);
        }
        for pools in &driver.device_pools {
            let _ = pools.now.compare_exchange(pool, pools.default, Ordering::Relaxed, Ordering::Relaxed);
        }
        // What was allocated from it stays until it is freed, and the pool with it.
        let destroyed = driver.pool(pool)?;
        destroyed.is_destroyed.store(true, Ordering::SeqCst);
        remove_if_done(pool, &destroyed);
        Ok(())
    }

    11020 cuMemPoolTrimTo: fn cuMemPoolTrimTo(pool: usize, _keep: usize) {
        driver()?.pool(pool).map(drop)
    }

    11020 cuMemPoolSetAttribute: fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: In<u64>) {
        let pool = driver()?.pool(pool)?;
        match attribute {
            FOLLOW_EVENTS..=INTERNAL => {
                let value = value.cast::<c_int>().get()?;
                pool.settings[(attribute - FOLLOW_EVENTS) as usize].store(value as u64, Ordering::Relaxed);
            }
            THRESHOLD => pool.settings[3].store(value.get()?, Ordering::Relaxed),
            RESERVED_HIGH | USED_HIGH if value.get()? == 0 => pool.used_high.store(0, Ordering::Relaxed),
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }

    11020 cuMemPoolGetAttribute: fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: Out<u64>) {
        let pool = driver()?.pool(pool)?;
        match attribute {
            FOLLOW_EVENTS..=INTERNAL => {
                let setting = &pool.settings[(attribute - FOLLOW_EVENTS) as usize];
                value.cast::<c_int>().set(setting.load(Ordering::Relaxed) as c_int)
            }
            THRESHOLD => value.set(pool.settings[3].load(Ordering::Relaxed)),
            RESERVED | USED => value.set(pool.used.load(Ordering::Relaxed)),
            RESERVED_HIGH | USED_HIGH => value.set(pool.used_high.load(Ordering::Relaxed)),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    11020 cuMemPoolSetAccess: fn cuMemPoolSetAccess(pool: usize, access: List<AccessOf>, count: usize) {
        let pool = driver()?.pool(pool)?;
        for AccessOf { location, flags } in access.get(count)? {
            let device = location.device()?;
            if device == pool.device && flags != READ_WRITE {
                return Err(Error::INVALID_DEVICE);
            }
            pool.access.set(device, flags);
        }
        Ok(())
    }

    11020 cuMemPoolGetAccess: fn cuMemPoolGetAccess(flags: Out<c_uint>, pool: usize, location: In<Location>) {
        flags.set(driver()?.pool(pool)?.access_of(location.get()?.device()?))
    }

    11020 cuMemPoolExportToShareableHandle: fn cuMemPoolExportToShareableHandle(handle: Out<c_int>, pool: usize, kind: c_int, flags: u64) {
        let pool = driver()?.pool(pool)?;
        match &pool.source {
            Source::Shared(store) if kind == POSIX && flags == 0 => {
                pool.is_exported.store(true, Ordering::Relaxed);
                hand_out(store.file(), handle)
            }
            _ => Err(Error::INVALID_VALUE),
        }
    }

    11020 cuMemPoolImportFromShareableHandle: fn cuMemPoolImportFromShareableHandle(pool: Out<usize>, handle: *mut c_void, kind: c_int, flags: u64) {
        if kind != POSIX || flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        pool.set(import(handle as usize)?)
    }

    11020 cuMemPoolExportPointer: fn cuMemPoolExportPointer(export: Out<PointerExport>, address: Address) {
        export.set(export_pointer(address)?)
    }

    11020 cuMemPoolImportPointer: fn cuMemPoolImportPointer(address: Out<Address>, pool: usize, export: In<PointerExport>) {
        address.set(import_pointer(pool, export.get()?)?)
    }
}
