//! GPUDirect RDMA: dma-bufs for network devices, and the visibility of their writes.
//!
//! # Visibility of writes
//! A NIC writes data into device memory and its completion into host memory. PCI Express does not order writes to two
//! targets. So a completion that the CPU has seen does not imply that a kernel launched now sees the data.
//!
//! The driver reports which devices see the writes in order (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`; a
//! greater number means more devices). Otherwise `cuFlushGPUDirectRDMAWrites` blocks until the writes are visible. It
//! is available since CUDA 11.3, if `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS` has the bit for the
//! host. All devices must see the writes, not only the memory's own, because another device may make the next copy. An
//! RDMA read of the memory after the write, as other libraries use, is not needed then.
//!
//! # Synchronous operations
//! `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` is set on registered memory, as NVIDIA's "GPUDirect RDMA", sections 2.7 and 4.2,
//! requires.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering_enum as Ordering, CUdevice_attribute_enum as Device,
    CUflushGPUDirectRDMAWritesOptions_enum as Options, CUmemRangeHandleType_enum as RangeHandle,
};

use super::library::CudaDriver;
use crate::direct::{DirectSupport, DmaBuf, WritesSeen, owned};
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

/// Exports a dma-buf. The context is current.
pub(super) fn dma_buf(driver: &CudaDriver, address: u64, len: usize) -> Result<DmaBuf, Failure> {
    let kind = RangeHandle::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_int;
    let mut descriptor: c_int = -1;
    let place: *mut c_void = (&raw mut descriptor).cast();
    // SAFETY: fills in a descriptor, which is what a handle of this kind is; the driver checks the range.
    unsafe { driver.cuMemGetHandleForAddressRange(place, address, len, kind, 0) }?;
    let descriptor = owned(descriptor).ok_or(Failure::found("cuMemGetHandleForAddressRange", FailureKind::Other))?;
    Ok(DmaBuf { descriptor, offset: 0 })
}
