//! Stream-ordered memory: `cuMemAllocAsync`, `cuMemPool*`.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUmemPool_attribute as Attribute;

use crate::abi::{Address, In, List, Out, driver_api, numbers};
use crate::context::current;
use crate::device::Charge;
use crate::driver::{check_initialised, fresh_id};
use crate::error::{Error, Outcome};
use crate::pool::{POOLS, Pool, Source};
use crate::pool_memory::{Importing, InPool, remove_if_done};
use crate::schedule::Work;
use crate::sharing::{AccessOf, Location, NO_HANDLE, PINNED, POSIX, READ_WRITE, descriptor, hand_out};
use crate::space::{Backing, Kind, Range, SPACE};
use crate::store::{Description, Mapping, PAGE, Piece, PieceName, Purpose, Store};
use crate::{capture, device, pool, stream};

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

/// Returns the pool from which `cuMemAllocAsync` allocates.
fn current_pool(device: c_int) -> Outcome<usize> {
    Ok(pool::of_device(device)?.now.load(Ordering::Relaxed))
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
    SPACE.get()?.write().insert(Range {
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
    let pool = pool::get(handle)?;
    let device = device::get(pool.device)?;
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

/// Keeps a range until the stream reaches its free.
struct Release {
    range: Arc<Range>,
}

impl Work for Release {
    fn step(&mut self) -> bool {
        self.range.check_free();
        true
    }
}

fn free(address: Address, stream: usize) -> Outcome {
    let stream = stream::get(stream)?;
    if address == 0 {
        return Ok(());
    }
    let mut space = SPACE.get()?.write();
    let range = space.find(address).filter(|range| range.base == address).cloned().ok_or(Error::INVALID_VALUE)?;
    match range.kind {
        Kind::Pool { pool, .. } => {
            if let Ok(pool) = pool::get(pool) {
                let less = |used: u64| Some(used.saturating_sub(range.len as u64));
                let _ = pool.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
        Kind::Device => {}
        _ => return Err(Error::INVALID_VALUE),
    }
    // The driver forgets the address at once, even if the stream still uses the memory.
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
    check_initialised()?;
    let source = match properties.handle_types {
        NO_HANDLE => Source::Private,
        POSIX => Source::Shared(Store::create(Purpose::Pool, device::get(device)?.physical())?),
        _ => return Err(Error::INVALID_VALUE),
    };
    Ok(POOLS.get()?.handles.lock().insert(Arc::new(Pool::new(device, source, false))))
}

fn import(handle: usize) -> Outcome<usize> {
    check_initialised()?;
    let file = descriptor(handle)?;
    let description = Description::read(file.as_fd())?;
    if description.purpose != Purpose::Pool as u64 {
        return Err(Error::INVALID_VALUE);
    }
    let device = device::ordinal(description.device)?;
    let pool = Pool::new(device, Source::Imported(file, description), false);
    Ok(POOLS.get()?.handles.lock().insert(Arc::new(pool)))
}

fn export_pointer(address: Address) -> Outcome<PointerExport> {
    capture::unsafe_call()?;
    let range = SPACE.get()?.read().find(address).cloned().ok_or(Error::INVALID_VALUE)?;
    match (&range.kind, &range.backing.piece) {
        // As in a real driver.
        (Kind::Pool { exportable: true, pool }, Some(piece))
            if pool::get(*pool)?.is_exported.load(Ordering::Relaxed) =>
        {
            Ok(PointerExport { piece: piece.name(), len: range.len as u64, reserved: [0; 3] })
        }
        _ => Err(Error::INVALID_VALUE),
    }
}

fn import_pointer(handle: usize, export: PointerExport) -> Outcome<Address> {
    let pool = pool::get(handle)?;
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
        pool.set(pool::of_device(device)?.default)
    }

    11020 cuDeviceGetMemPool: fn cuDeviceGetMemPool(pool: Out<usize>, device: c_int) {
        pool.set(current_pool(device)?)
    }

    11020 cuDeviceSetMemPool: fn cuDeviceSetMemPool(device: c_int, pool: usize) {
        if pool::get(pool)?.device != device {
            return Err(Error::INVALID_VALUE);
        }
        pool::of_device(device)?.now.store(pool, Ordering::Relaxed);
        Ok(())
    }

    11020 cuMemPoolCreate: fn cuMemPoolCreate(pool: Out<usize>, properties: In<Properties>) {
        pool.set(create(properties.get()?)?)
    }

    11020 cuMemPoolDestroy: fn cuMemPoolDestroy(pool: usize) {
        if pool::get(pool)?.is_default {
            return Err(Error::INVALID_VALUE);
        }
        for pools in &POOLS.get()?.of_devices {
            let _ = pools.now.compare_exchange(pool, pools.default, Ordering::Relaxed, Ordering::Relaxed);
        }
        // Allocated memory stays until it is freed, and keeps the pool.
        let destroyed = pool::get(pool)?;
        destroyed.is_destroyed.store(true, Ordering::SeqCst);
        remove_if_done(pool, &destroyed);
        Ok(())
    }

    11020 cuMemPoolTrimTo: fn cuMemPoolTrimTo(pool: usize, _keep: usize) {
        pool::get(pool).map(drop)
    }

    11020 cuMemPoolSetAttribute: fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: In<u64>) {
        let pool = pool::get(pool)?;
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
        let pool = pool::get(pool)?;
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
        let pool = pool::get(pool)?;
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
        flags.set(pool::get(pool)?.access_of(location.get()?.device()?))
    }

    11020 cuMemPoolExportToShareableHandle: fn cuMemPoolExportToShareableHandle(handle: Out<c_int>, pool: usize, kind: c_int, flags: u64) {
        let pool = pool::get(pool)?;
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
