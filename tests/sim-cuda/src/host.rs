//! Host memory that devices can access: `cuMemHostAlloc`, `cuMemHostRegister`.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cudarc::driver::sys;

use crate::abi::{Address, Out, driver_api};
use crate::capture;
use crate::context::current;
use crate::driver::fresh_id;
use crate::error::{Error, Outcome};
use crate::memory::free;
use crate::space::{Backing, Kind, Range, SPACE};
use crate::store::Mapping;

const ALLOCATE_FLAGS: c_uint =
    sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE
    | sys::CU_MEMHOSTREGISTER_DEVICEMAP
    | sys::CU_MEMHOSTREGISTER_IOMEMORY
    | sys::CU_MEMHOSTREGISTER_READ_ONLY;

fn allocate(len: usize, flags: c_uint) -> Outcome<Address> {
    if flags & !ALLOCATE_FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if len == 0 {
        return Ok(0);
    }
    capture::unsafe_call()?;
    let mapping = Mapping::accessible(len)?;
    let base = mapping.address();
    let backing = Backing { _addresses: Some(mapping), ..Backing::default() };
    insert(base, len, Kind::HostAllocated, backing)?;
    Ok(base)
}

fn register(base: Address, len: usize, flags: c_uint) -> Outcome {
    if base == 0 || len == 0 || flags & !REGISTER_FLAGS != 0 || base.checked_add(len).is_none() {
        return Err(Error::INVALID_VALUE);
    }
    current()?;
    capture::unsafe_call()?;
    match SPACE.get()?.read().first_overlap(base, len) {
        Some(Kind::HostRegistered) => return Err(Error::HOST_MEMORY_ALREADY_REGISTERED),
        Some(_) => return Err(Error::INVALID_VALUE),
        None => {}
    }
    if !is_registrable(base, len, flags & sys::CU_MEMHOSTREGISTER_READ_ONLY == 0) {
        return Err(Error::INVALID_VALUE);
    }
    insert(base, len, Kind::HostRegistered, Backing::default())
}

fn insert(base: Address, len: usize, kind: Kind, backing: Backing) -> Outcome {
    let context = current()?;
    SPACE.get()?.write().insert(Range {
        base,
        len,
        kind,
        device: context.device,
        context: Some(context),
        id: fresh_id(),
        alias: base,
        synchronous: AtomicBool::new(false),
        mapping: None,
        backing,
    });
    Ok(())
}

/// Checks whether every page of the range is mapped for reading and, if `writable`, for writing.
fn is_registrable(base: Address, len: usize, writable: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut at = base;
    for line in maps.lines() {
        let mut fields = line.split(' ');
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        let parse = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((Some(start), Some(end))) = range.split_once('-').map(|(start, end)| (parse(start), parse(end)))
        else {
            continue;
        };
        if at < start {
            return false;
        }
        if at < end {
            if !access.starts_with('r') || (writable && access.as_bytes().get(1) != Some(&b'w')) {
                return false;
            }
            at = end;
        }
        if at >= base + len {
            return true;
        }
    }
    false
}

/// Returns the host range that contains `address`.
fn host_range(address: Address) -> Outcome<Arc<Range>> {
    let space = SPACE.get()?.read();
    space.find(address).filter(|range| range.kind.is_host()).cloned().ok_or(Error::INVALID_VALUE)
}

driver_api! {
    2020 cuMemHostAlloc: fn cuMemHostAlloc(address: Out<Address>, len: usize, flags: c_uint) {
        current()?;
        address.set(allocate(len, flags)?)
    }

    3020 cuMemAllocHost: fn cuMemAllocHost_v2(address: Out<Address>, len: usize) {
        current()?;
        address.set(allocate(len, 0)?)
    }

    2000 cuMemFreeHost: fn cuMemFreeHost(address: Address) {
        if address == 0 {
            return Ok(());
        }
        free(address, |kind| kind == Kind::HostAllocated, Error::INVALID_VALUE)
    }

    4000 cuMemHostRegister: fn cuMemHostRegister(address: Address, len: usize, flags: c_uint) {
        register(address, len, flags)
    }

    6050 cuMemHostRegister: fn cuMemHostRegister_v2(address: Address, len: usize, flags: c_uint) {
        register(address, len, flags)
    }

    4000 cuMemHostUnregister: fn cuMemHostUnregister(address: Address) {
        let inside = SPACE.get()?.read().find(address).is_some_and(|range| range.base != address);
        let unknown = if inside { Error::INVALID_VALUE } else { Error::HOST_MEMORY_NOT_REGISTERED };
        free(address, |kind| kind == Kind::HostRegistered, unknown)
    }

    3020 cuMemHostGetDevicePointer: fn cuMemHostGetDevicePointer_v2(device: Out<Address>, host: Address, flags: c_uint) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        current()?;
        host_range(host)?;
        device.set(host)
    }

    2030 cuMemHostGetFlags: fn cuMemHostGetFlags(flags: Out<c_uint>, host: Address) {
        host_range(host)?;
        flags.set(sys::CU_MEMHOSTALLOC_DEVICEMAP)
    }
}
