//! Device memory for network devices: dma-bufs, and when what was written is seen.
//!
//! # When writes are seen
//! A network device writes its data into the device's memory and its completion into the host's: two targets, between
//! which PCI Express keeps no order. So a completion that the CPU has seen does not say that a kernel launched now sees
//! the data. The driver says how it is (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`: the greater the number,
//! the more devices see writes in order natively), and `cuFlushGPUDirectRDMAWrites` blocks until they are seen, where
//! `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS` has the bit for the host (CUDA driver API, context
//! management; it is since 11.3). All devices must see them, not the memory's own alone, because the next copy may be
//! another device's. A read of the memory by the network device after the write, which others use, is not needed then.
//!
//! # Synchronous operations
//! `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` is set on what is registered, as "GPUDirect RDMA", 2.7 and 4.2, asks for.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering_enum as Ordering, CUdevice_attribute_enum as Device,
    CUflushGPUDirectRDMAWritesOptions_enum as Options, CUflushGPUDirectRDMAWritesScope_enum as Scope,
    CUflushGPUDirectRDMAWritesTarget_enum as Target, CUmemRangeHandleType_enum as RangeHandle,
    CUpointer_attribute_enum as Pointer,
};

use super::context::Context;
use super::driver::Driver;
use super::info;
use super::status::Failure;
use crate::direct::{DirectSupport, WritesSeen};
use crate::error::DeviceError;
use crate::location::DeviceIndex;

pub(super) fn support(driver: &Driver, index: DeviceIndex) -> Result<DirectSupport, Failure> {
    let device = info::handle(driver, index)?;
    // What a driver is too old to know, it does not have.
    let number = |which| info::attribute(driver, device, which).unwrap_or(0);
    let ordering = number(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
    let options = number(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) as c_uint;
    let by_host = Options::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as c_uint;
    let writes = if ordering >= Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES as c_int {
        WritesSeen::AtOnce
    } else if options & by_host != 0 {
        WritesSeen::AfterFlush
    } else {
        WritesSeen::Never
    };
    Ok(DirectSupport {
        dma_buf: number(Device::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
        peer_memory: number(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0,
        writes,
    })
}

pub(super) fn dma_buf(context: &Context, address: u64, len: usize) -> Result<OwnedFd, DeviceError> {
    let driver = context.driver;
    let kind = RangeHandle::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_int;
    let mut descriptor: c_int = -1;
    let place: *mut c_void = (&raw mut descriptor).cast();
    let object = || format!("{len} bytes of device memory at {address:#x}");
    let made = context.enter().and_then(|_scope| {
        // SAFETY: fills in a descriptor, which is what a handle of this kind is; the driver checks the range.
        unsafe { driver.cuMemGetHandleForAddressRange(place, address, len, kind, 0) }
    });
    made.map_err(|failure| driver.error(context.note(failure), object()))?;
    if descriptor < 0 {
        let reason = "the driver gave no descriptor".to_owned();
        return Err(DeviceError { call: "cuMemGetHandleForAddressRange", object: object(), reason });
    }
    // SAFETY: a descriptor that the driver has just made for us, which nobody else closes.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

pub(super) fn capable(driver: &Driver, address: *const u8) -> Option<bool> {
    let mut capable: c_uint = 0;
    let mut attribute = Pointer::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE as c_int;
    let mut place: *mut c_void = (&raw mut capable).cast();
    // SAFETY: one attribute and its place; any address may be asked about.
    unsafe { driver.cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address as u64) }.ok()?;
    Some(capable != 0)
}

pub(super) fn flush(context: &Context) -> Result<(), DeviceError> {
    let driver = context.driver;
    let target = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as c_int;
    let scope = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES as c_int;
    // SAFETY: waits for writes to the current context, which is this one.
    let flushed = context.enter().and_then(|_scope| unsafe { driver.cuFlushGPUDirectRDMAWrites(target, scope) });
    flushed.map_err(|failure| driver.error(context.note(failure), "what was written from outside"))
}

pub(super) fn synchronise(context: &Context, address: *const u8) -> Result<(), DeviceError> {
    let driver = context.driver;
    let yes: c_uint = 1;
    let attribute = Pointer::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_int;
    let set = context.enter().and_then(|_scope| {
        // SAFETY: reads the attribute's unsigned integer; the driver checks the address.
        unsafe { driver.cuPointerSetAttribute((&raw const yes).cast(), attribute, address as u64) }
    });
    set.map_err(|failure| driver.error(failure, format!("the allocation around {address:p}")))
}
