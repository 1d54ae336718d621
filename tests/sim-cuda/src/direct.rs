//! Device memory for NICs: `cuMemGetHandleForAddressRange`, `cuFlushGPUDirectRDMAWrites`.

use std::ffi::{c_int, c_ulonglong};
use std::os::fd::IntoRawFd;

use cudarc::driver::sys::{
    CUflushGPUDirectRDMAWritesScope_enum as Scope, CUflushGPUDirectRDMAWritesTarget_enum as Target,
    CUmemRangeHandleType_enum as RangeHandle,
};

use rustix::event::{EventfdFlags, eventfd};

use crate::abi::{Address, Out, driver_api};
use crate::context::current;
use crate::error::{Error, Outcome};
use crate::settings::Settings;
use crate::space::{Kind, SPACE};
use crate::store::PAGE;

/// Returns a simulated dma-buf: a descriptor of the file that holds the memory or, if dma-bufs cannot be mapped, of an
/// object that cannot be mapped. Devices can use neither.
fn descriptor(address: Address, len: usize) -> Outcome<c_int> {
    if !Settings::get().direct.dma_buf {
        return Err(Error::NOT_SUPPORTED);
    }
    if len == 0 || !address.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        return Err(Error::INVALID_VALUE);
    }
    let space = SPACE.get()?.read();
    let range = space.find(address).filter(|range| range.kind == Kind::Device).ok_or(Error::INVALID_VALUE)?;
    // Mappings consist of whole pages.
    if address + len > range.end().next_multiple_of(PAGE) {
        return Err(Error::INVALID_VALUE);
    }
    let made = match &range.backing.file {
        // The range must begin at the beginning of the file.
        Some(_) if address != range.base => return Err(Error::INVALID_VALUE),
        Some(file) => file.try_clone().map_err(|_| Error::OPERATING_SYSTEM)?,
        None => eventfd(0, EventfdFlags::CLOEXEC).map_err(|_| Error::OPERATING_SYSTEM)?,
    };
    Ok(made.into_raw_fd())
}

driver_api! {
    11070 cuMemGetHandleForAddressRange: fn cuMemGetHandleForAddressRange(handle: Out<c_int>, address: Address, len: usize, kind: c_int, flags: c_ulonglong) {
        const DMA_BUF: c_int = RangeHandle::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_int;
        current()?;
        if handle.is_null() || kind != DMA_BUF || flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        handle.set(descriptor(address, len)?)
    }

    11030 cuFlushGPUDirectRDMAWrites: fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
        const CURRENT: c_int = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as c_int;
        const OWNER: c_int = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as c_int;
        const ALL: c_int = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES as c_int;
        current()?;
        if target != CURRENT || !matches!(scope, OWNER | ALL) {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }
}
