//! Device and managed memory: `cuMemAlloc`, `cuMemAllocManaged`, `cuMemFree`.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cudarc::driver::sys::CUmemAttach_flags;

use crate::abi::{Address, Out, driver_api};
use crate::capture;
use crate::context::{Context, check_current, current};
use crate::device;
use crate::driver::fresh_id;
use crate::error::{Error, Outcome};
use crate::schedule::SCHEDULER;
use crate::settings::Settings;
use crate::space::{Backing, Kind, Range, SPACE};
use crate::store::{Mapping, PAGE};
use crate::stream;

/// Sizes beyond any machine are refused before they are rounded or mapped.
const LARGEST: usize = 1 << 45;

fn allocate(len: usize, kind: Kind) -> Outcome<Address> {
    let context = current()?;
    capture::unsafe_call()?;
    if len == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if len > LARGEST {
        return Err(Error::OUT_OF_MEMORY);
    }
    let device = device::get(context.device)?;
    let charge = Some(device.charge(len as u64)?);
    let mut file = None;
    let mut data = None;
    let (addresses, alias, piece) = if kind == Kind::Managed {
        let mapping = Mapping::accessible(len)?;
        let alias = mapping.address();
        (mapping, alias, None)
    } else if Settings::get().maps_dma_bufs() {
        let (memory, mapping) = Mapping::with_file(len)?;
        let alias = mapping.address();
        (file, data) = (Some(memory), Some(mapping));
        (Mapping::reserved(len, PAGE)?, alias, None)
    } else {
        let piece = device.store()?.piece(len)?;
        let addresses = match Settings::get().direct.peer_memory || cfg!(sim_hip) {
            true => piece.mapped_again()?,
            false => Mapping::reserved(len, PAGE)?,
        };
        (addresses, piece.alias(), Some(Arc::new(piece)))
    };
    let base = addresses.address();
    SPACE.get()?.write().insert(Range {
        base,
        len,
        kind,
        device: context.device,
        context: Some(context),
        id: fresh_id(),
        alias,
        synchronous: AtomicBool::new(kind == Kind::Managed),
        mapping: None,
        backing: Backing {
            _addresses: Some(addresses),
            _data: data,
            piece,
            file,
            _charge: charge,
            ..Backing::default()
        },
    });
    Ok(base)
}

/// Frees the range at `base`, if `may` accepts its kind, after the work of its context is done, as the driver does in
/// practice. For pool memory the documentation requires that it is unused, and the function does not wait.
pub(crate) fn free(base: Address, may: impl Fn(Kind) -> bool, unknown: Error) -> Outcome {
    check_current()?;
    capture::unsafe_call()?;
    let range = SPACE.get()?.read().find(base).cloned();
    let range = range.filter(|range| range.base == base && may(range.kind)).ok_or(unknown)?;
    match &range.context {
        Some(context) => stream::synchronize_context(context)?,
        None if matches!(range.kind, Kind::Pool { .. }) => range.check_free(),
        None => SCHEDULER.get()?.wait_all(),
    }
    SPACE.get()?.write().remove(base).map(drop).ok_or(unknown)
}

/// Returns free and total bytes, as `cuMemGetInfo` does.
fn information(context: &Context) -> Outcome<(usize, usize)> {
    let total = Settings::get().memory;
    let used = device::get(context.device)?.used();
    Ok(((total - used) as usize, total as usize))
}

driver_api! {
    3020 cuMemAlloc: fn cuMemAlloc_v2(address: Out<Address>, len: usize) {
        if address.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        address.set(allocate(len, Kind::Device)?)
    }

    6000 cuMemAllocManaged: fn cuMemAllocManaged(address: Out<Address>, len: usize, flags: c_uint) {
        const GLOBAL: c_uint = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as c_uint;
        const HOST: c_uint = CUmemAttach_flags::CU_MEM_ATTACH_HOST as c_uint;
        if address.is_null() || !matches!(flags, GLOBAL | HOST) {
            return Err(Error::INVALID_VALUE);
        }
        address.set(allocate(len, Kind::Managed)?)
    }

    3020 cuMemFree: fn cuMemFree_v2(address: Address) {
        if address == 0 {
            // As observed on driver 580.
            return capture::unsafe_call();
        }
        let may = |kind| matches!(kind, Kind::Device | Kind::Managed | Kind::Pool { .. });
        free(address, may, Error::INVALID_VALUE)
    }

    3020 cuMemGetInfo: fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (unused, all) = information(&*current()?)?;
        free.set_if_asked(unused);
        total.set_if_asked(all);
        Ok(())
    }

    3020 cuMemGetAddressRange: fn cuMemGetAddressRange_v2(base: Out<Address>, len: Out<usize>, address: Address) {
        current()?;
        let range = SPACE.get()?.read().find(address).cloned();
        let range = range.filter(|range| range.is_accessible()).ok_or(Error::NOT_FOUND)?;
        base.set_if_asked(range.base);
        len.set_if_asked(range.len);
        Ok(())
    }

    8000 cuMemPrefetchAsync: fn cuMemPrefetchAsync(address: Address, len: usize, _device: c_int, stream: usize) {
        stream::get(stream)?;
        managed(address, len)
    }

    12020 cuMemPrefetchAsync: fn cuMemPrefetchAsync_v2(address: Address, len: usize, _location: u64, _flags: c_uint, stream: usize) {
        stream::get(stream)?;
        managed(address, len)
    }

    12020 cuMemAdvise: fn cuMemAdvise_v2(address: Address, len: usize, _advice: c_int, _location: u64) {
        managed(address, len)
    }

    8000 cuMemAdvise: fn cuMemAdvise(address: Address, len: usize, _advice: c_int, _device: c_int) {
        managed(address, len)
    }
}

/// Fails unless the bytes are managed memory.
fn managed(address: Address, len: usize) -> Outcome {
    let extents = SPACE.get()?.read().extents(address, len)?.ok_or(Error::INVALID_VALUE)?;
    let all = extents.iter().all(|extent| extent.range.kind == Kind::Managed);
    if all { Ok(()) } else { Err(Error::INVALID_VALUE) }
}
