//! Physical memory and addresses as separate objects: `cuMemCreate`, `cuMemAddressReserve`, `cuMemMap`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use crate::abi::{Address, In, List, Out, driver_api};
use crate::device;
use crate::driver::{AfterInit, check_initialised, fresh_id};
use crate::error::{Error, Outcome};
use crate::physical::Physical;
use crate::sharing::{AccessOf, Accesses, Location, NO_HANDLE, PINNED, POSIX, descriptor, hand_out};
use crate::space::{Backing, Kind, Mapped, Range, SPACE};
use crate::store::{Description, Mapping, PAGE, Piece, Purpose, Store};

/// The granularity of sizes and addresses.
const GRANULARITY: usize = 2 << 20;

/// The memory of each handle, and its number of references. Handles are not reused.
#[derive(Default)]
struct Physicals {
    known: BTreeMap<usize, (Arc<Physical>, usize)>,
}

static PHYSICALS: AfterInit<Mutex<Physicals>> = AfterInit::new(Mutex::default);

const HANDLE_BASE: usize = 0x5500_0000_0000;
const HANDLE_STEP: usize = 64;

impl Physicals {
    fn get(&self, handle: usize) -> Outcome<Arc<Physical>> {
        self.known.get(&handle).map(|known| known.0.clone()).ok_or(Error::INVALID_VALUE)
    }

    /// Returns its handle with one more reference.
    fn retain(&mut self, physical: Arc<Physical>) -> usize {
        let handle = physical.handle;
        self.known.entry(handle).or_insert((physical, 0)).1 += 1;
        handle
    }

    fn release(&mut self, handle: usize) -> Outcome<Option<Arc<Physical>>> {
        let count = &mut self.known.get_mut(&handle).ok_or(Error::INVALID_VALUE)?.1;
        *count -= 1;
        Ok(if *count == 0 { self.known.remove(&handle).map(|known| known.0) } else { None })
    }
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    metadata: usize,
    flags: u64,
}

const _: () = assert!(size_of::<Properties>() == size_of::<cudarc::driver::sys::CUmemAllocationProp_st>());

impl Properties {
    /// The device, and whether the memory can be exported.
    fn check(&self) -> Outcome<(c_int, bool)> {
        let device = self.location.device()?;
        match (self.kind, self.handle_types) {
            (PINNED, NO_HANDLE) => Ok((device, false)),
            (PINNED, POSIX) => Ok((device, true)),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

fn next_handle() -> usize {
    HANDLE_BASE + HANDLE_STEP * fresh_id() as usize
}

fn create(len: usize, properties: &Properties, flags: u64) -> Outcome<usize> {
    let (ordinal, exportable) = properties.check()?;
    if len == 0 || !len.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let device = device::get(ordinal)?;
    let charge = device.charge(len as u64)?;
    let store = if exportable { Store::create(Purpose::Physical, device.physical())? } else { device.store()? };
    let piece = Arc::new(store.piece(len)?);
    let made = Physical { handle: next_handle(), device: ordinal, piece, exportable, _charge: Some(charge) };
    Ok(PHYSICALS.get()?.lock().retain(Arc::new(made)))
}

fn import(handle: usize) -> Outcome<usize> {
    check_initialised()?;
    let file = descriptor(handle)?;
    let description = Description::read(file.as_fd())?;
    if description.purpose != Purpose::Physical as u64 {
        return Err(Error::INVALID_VALUE);
    }
    let device = device::ordinal(description.device)?;
    let piece = Arc::new(Piece::import_first(file.as_fd())?);
    let made = Physical { handle: next_handle(), device, piece, exportable: false, _charge: None };
    Ok(PHYSICALS.get()?.lock().retain(Arc::new(made)))
}

fn reserve(len: usize, align: usize) -> Outcome<Address> {
    let align = align.max(GRANULARITY);
    if len == 0 || !len.is_multiple_of(PAGE) || !align.is_power_of_two() {
        return Err(Error::INVALID_VALUE);
    }
    let mapping = Mapping::reserved(len, align)?;
    let base = mapping.address();
    SPACE.get()?.write().reservations.insert(base, mapping);
    Ok(base)
}

fn map(address: Address, len: usize, offset: usize, handle: usize, flags: u64) -> Outcome {
    if offset != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    let physical = PHYSICALS.get()?.lock().get(handle)?;
    let aligned = len != 0 && len.is_multiple_of(GRANULARITY) && address.is_multiple_of(GRANULARITY);
    if !aligned || len > physical.piece.len() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut space = SPACE.get()?.write();
    let reserved = space.reservation(address).ok_or(Error::INVALID_VALUE)?;
    if address - reserved.0 + len > reserved.1 || space.first_overlap(address, len).is_some() {
        return Err(Error::INVALID_VALUE);
    }
    space.insert(Range {
        base: address,
        len,
        kind: Kind::Mapped,
        device: physical.device,
        context: None,
        id: fresh_id(),
        alias: physical.piece.alias(),
        synchronous: AtomicBool::new(false),
        backing: Backing { piece: Some(physical.piece.clone()), ..Backing::default() },
        mapping: Some(Mapped { physical, reserved, access: Accesses::default() }),
    });
    Ok(())
}

/// Returns the mappings that form exactly `len` bytes at `address`, with gaps if `gaps`.
fn mappings(address: Address, len: usize, gaps: bool) -> Outcome<Vec<Arc<Range>>> {
    let ranges = SPACE.get()?.read().overlapping(address, len);
    let inside = |range: &Arc<Range>| {
        range.kind == Kind::Mapped && range.base >= address && range.end() <= address.saturating_add(len)
    };
    let whole = gaps || ranges.iter().map(|range| range.len).sum::<usize>() == len;
    if ranges.iter().all(inside) && whole { Ok(ranges) } else { Err(Error::INVALID_VALUE) }
}

/// Does not wait for work, unlike `cuMemFree`.
fn unmap(address: Address, len: usize) -> Outcome {
    check_initialised()?;
    let ranges = mappings(address, len, true)?;
    let mut space = SPACE.get()?.write();
    for range in &ranges {
        space.remove(range.base);
    }
    Ok(())
}

fn free_addresses(address: Address, len: usize) -> Outcome {
    let mut space = SPACE.get()?.write();
    let exact = space.reservation(address) == Some((address, len));
    if !exact || space.first_overlap(address, len).is_some() {
        return Err(Error::INVALID_VALUE);
    }
    space.reservations.remove(&address);
    Ok(())
}

driver_api! {
    10020 cuMemGetAllocationGranularity: fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<Properties>, option: c_int) {
        check_initialised()?;
        properties.get()?.check()?;
        if !matches!(option, 0 | 1) {
            return Err(Error::INVALID_VALUE);
        }
        granularity.set(GRANULARITY)
    }

    10020 cuMemCreate: fn cuMemCreate(handle: Out<usize>, len: usize, properties: In<Properties>, flags: u64) {
        handle.set(create(len, &properties.get()?, flags)?)
    }

    10020 cuMemRelease: fn cuMemRelease(handle: usize) {
        let last = PHYSICALS.get()?.lock().release(handle)?;
        drop(last);
        Ok(())
    }

    10020 cuMemAddressReserve: fn cuMemAddressReserve(address: Out<Address>, len: usize, align: usize, _wish: Address, flags: u64) {
        if flags != 0 || address.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        address.set(reserve(len, align)?)
    }

    10020 cuMemAddressFree: fn cuMemAddressFree(address: Address, len: usize) {
        free_addresses(address, len)
    }

    10020 cuMemMap: fn cuMemMap(address: Address, len: usize, offset: usize, handle: usize, flags: u64) {
        map(address, len, offset, handle, flags)
    }

    10020 cuMemUnmap: fn cuMemUnmap(address: Address, len: usize) {
        unmap(address, len)
    }

    10020 cuMemSetAccess: fn cuMemSetAccess(address: Address, len: usize, access: List<AccessOf>, count: usize) {
        let ranges = mappings(address, len, false)?;
        for AccessOf { location, flags } in access.get(count)? {
            let device = location.device()?;
            for mapping in ranges.iter().filter_map(|range| range.mapping.as_ref()) {
                mapping.access.set(device, flags);
            }
        }
        Ok(())
    }

    10020 cuMemGetAccess: fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: Address) {
        let device = location.get()?.device()?;
        let range = SPACE.get()?.read().find(address).cloned();
        let mapping = range.as_ref().and_then(|range| range.mapping.as_ref()).ok_or(Error::INVALID_VALUE)?;
        flags.set(mapping.access.get(device).unwrap_or(0).into())
    }

    10020 cuMemExportToShareableHandle: fn cuMemExportToShareableHandle(out: Out<c_int>, handle: usize, kind: c_int, flags: u64) {
        let physical = PHYSICALS.get()?.lock().get(handle)?;
        match physical.piece.store() {
            Some(store) if physical.exportable && kind == POSIX && flags == 0 => hand_out(store.file(), out),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    10020 cuMemImportFromShareableHandle: fn cuMemImportFromShareableHandle(handle: Out<usize>, from: *mut c_void, kind: c_int) {
        if kind != POSIX {
            return Err(Error::INVALID_VALUE);
        }
        handle.set(import(from as usize)?)
    }

    11000 cuMemRetainAllocationHandle: fn cuMemRetainAllocationHandle(handle: Out<usize>, address: Address) {
        let range = SPACE.get()?.read().find(address).cloned();
        let mapping = range.as_ref().and_then(|range| range.mapping.as_ref()).ok_or(Error::INVALID_VALUE)?;
        handle.set(PHYSICALS.get()?.lock().retain(mapping.physical.clone()))
    }

    10020 cuMemGetAllocationPropertiesFromHandle: fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: usize) {
        let physical = PHYSICALS.get()?.lock().get(handle)?;
        let handle_types = if physical.exportable { POSIX } else { NO_HANDLE };
        let location = Location::of_device(physical.device);
        properties.set(Properties { kind: PINNED, handle_types, location, metadata: 0, flags: 0 })
    }
}
