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
    CUflushGPUDirectRDMAWritesOptions_enum as Options, CUmemRangeHandleType_enum as RangeHandle,
};

use super::library::CudaDriver;
use crate::direct::{DirectSupport, WritesSeen};
use crate::driver::{Failure, FailureKind};
use crate::location::DeviceIndex;

pub(super) fn support(driver: &CudaDriver, index: DeviceIndex) -> Result<DirectSupport, Failure> {
    let device = driver.device(index)?;
    // A driver that is too old to know an attribute lacks the feature.
    let number = |which| driver.attribute(device, which).unwrap_or(0);
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

/// The context is current.
pub(super) fn dma_buf(driver: &CudaDriver, address: u64, len: usize) -> Result<OwnedFd, Failure> {
    let kind = RangeHandle::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_int;
    let mut descriptor: c_int = -1;
    let place: *mut c_void = (&raw mut descriptor).cast();
    // SAFETY: fills in a descriptor, which is what a handle of this kind is; the driver checks the range.
    unsafe { driver.cuMemGetHandleForAddressRange(place, address, len, kind, 0) }?;
    owned(descriptor).ok_or(Failure::found("cuMemGetHandleForAddressRange", FailureKind::Other))
}

/// A descriptor that the driver has just made for us; none if it has not.
pub(super) fn owned(descriptor: c_int) -> Option<OwnedFd> {
    // SAFETY: nobody else closes it.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}
