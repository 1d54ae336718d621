//! Host memory that devices reach: `cuMemHostAlloc`, `cuMemHostRegister`.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cudarc::driver::sys;

use crate::abi::{Address, Out, driver_api};
use crate::context::current;
use crate::driver::{driver, fresh_id};
use crate::error::{Error, Outcome};
use crate::memory::free;
use crate::space::{Backing, Kind, Range};
use crate::store::{Mapping, PAGE};

const ALLOCATE_FLAGS: c_uint =
    sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE
    | sys::CU_MEMHOSTREGISTER_DEVICEMAP
    | sys::CU_MEMHOSTREGISTER_IOMEMORY
    | sys::CU_MEMHOSTREGISTER_READ_ONLY;

fn allocate(len: usize, flags: c_uint) -> Outcome<Address> {
    if len == 0 || flags & !ALLOCATE_FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mapping = Mapping::accessible(len)?;
    let base = mapping.address();
    let backing = Backing { addresses: Some(mapping), ..Backing::default() };
    insert(base, len, Kind::HostAllocated, backing)?;
    Ok(base)
}

fn register(base: Address, len: usize, flags: c_uint) -> Outcome {
    if base == 0 || len == 0 || flags & !REGISTER_FLAGS != 0 || base.checked_add(len).is_none() {
        return Err(Error::INVALID_VALUE);
    }
    current()?;
    if driver()?.space.read().overlaps(base, len) {
        return Err(Error::HOST_MEMORY_ALREADY_REGISTERED);
    }
    if !is_mapped(base, len) {
        return Err(Error::INVALID_VALUE);
    }
    insert(base, len, Kind::HostRegistered, Backing::default())
}

fn insert(base: Address, len: usize, kind: Kind, backing: Backing) -> Outcome {
    let context = current()?;
    driver()?.space.write().insert(Range {
        base,
        len,
        kind,
        device: context.device,
        context: Some(context),
        id: fresh_id(),
        alias: base,
        synchronous: AtomicBool::new(false),
        backing,
    });
    Ok(())
}

/// Whether every page of the range is mapped.
fn is_mapped(base: Address, len: usize) -> bool {
    let start = base & !(PAGE - 1);
    let mut pages = vec![0_u8; (base + len - start).div_ceil(PAGE)];
    // SAFETY: mincore reads no user memory, and `pages` has a byte for each page of the range.
    unsafe { libc::mincore(start as *mut c_void, base + len - start, pages.as_mut_ptr()) == 0 }
}

/// The host range that holds `address`.
fn host_range(address: Address) -> Outcome<Arc<Range>> {
    let space = driver()?.space.read();
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
        free(address, &[Kind::HostAllocated], Error::INVALID_VALUE)
    }

    4000 cuMemHostRegister: fn cuMemHostRegister(address: Address, len: usize, flags: c_uint) {
        register(address, len, flags)
    }

    6050 cuMemHostRegister: fn cuMemHostRegister_v2(address: Address, len: usize, flags: c_uint) {
        register(address, len, flags)
    }

    4000 cuMemHostUnregister: fn cuMemHostUnregister(address: Address) {
        free(address, &[Kind::HostRegistered], Error::HOST_MEMORY_NOT_REGISTERED)
    }

    3020 cuMemHostGetDevicePointer: fn cuMemHostGetDevicePointer_v2(device: Out<Address>, host: Address, flags: c_uint) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        current()?;
        host_range(host)?;
        device.set(host)
    }

    3020 cuMemHostGetFlags: fn cuMemHostGetFlags(flags: Out<c_uint>, host: Address) {
        host_range(host)?;
        flags.set(sys::CU_MEMHOSTALLOC_DEVICEMAP)
    }
}
