//! Copies by copy engines, and registered host memory.

use std::ffi::c_uint;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUDA_MEMCPY2D, CUmemLocation, CUmemLocationType_enum,
    CUmemcpyAttributes, CUmemcpySrcAccessOrder_enum, CUmemorytype_enum,
};

use super::library::CudaDriver;
use super::streams::raw;
use crate::copy::{Direction, RowCopy};
use crate::driver::{Copies, Failure, Stream};

/// The registration is valid in every context of the process, and kernels can access the memory.
const REGISTERED: c_uint = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;

impl Copies for CudaDriver {
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuMemcpyAsync(dst as u64, src as u64, len, raw(stream)) }
    }

    fn inlines_copies(&self) -> bool {
        true
    }

    unsafe fn copy_rows(&self, piece: &RowCopy, direction: Direction, stream: &Stream) -> Result<(), Failure> {
        // Pass other memory than host memory as a unified address; the driver finds its owner.
        let side = |host: bool| match host {
            true => CUmemorytype_enum::CU_MEMORYTYPE_HOST,
            false => CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED,
        };
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: side(direction == Direction::HostToDevice),
            srcHost: piece.src.cast(),
            srcDevice: piece.src as u64,
            srcArray: std::ptr::null_mut(),
            srcPitch: piece.src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: side(direction == Direction::DeviceToHost),
            dstHost: piece.dst.cast(),
            dstDevice: piece.dst as u64,
            dstArray: std::ptr::null_mut(),
            dstPitch: piece.dst_pitch,
            WidthInBytes: piece.width,
            Height: piece.rows,
        };
        // SAFETY: the caller's promise, for every row.
        unsafe { self.cuMemcpy2DAsync(&raw const copy, raw(stream)) }
    }

    /// The driver lets such copies overlap: 64 copies of 64 KiB between two H200s take 55 us, issued one by one 560 us.
    unsafe fn copy_together(&self, pieces: &[RowCopy], stream: &Stream) -> Result<(), Failure> {
        let mut destinations: Vec<u64> = pieces.iter().map(|piece| piece.dst as u64).collect();
        let mut sources: Vec<u64> = pieces.iter().map(|piece| piece.src as u64).collect();
        let mut lens: Vec<usize> = pieces.iter().map(|piece| piece.width).collect();
        let nowhere = CUmemLocation { type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        let mut first = 0;
        // SAFETY: as many addresses and lengths as pieces, whose ranges are good by the caller's promise; one set of
        // attributes, which holds from the first copy on.
        unsafe {
            self.cuMemcpyBatchAsync(
                destinations.as_mut_ptr(),
                sources.as_mut_ptr(),
                lens.as_mut_ptr(),
                pieces.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                raw(stream),
            )
        }
    }

    unsafe fn write(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuMemcpyHtoD(dst as u64, src.cast(), len) }
    }

    unsafe fn read(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuMemcpyDtoH(dst.cast(), src as u64, len) }
    }

    unsafe fn fill(&self, dst: *mut u8, byte: u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuMemsetD8(dst as u64, byte, len) }
    }

    unsafe fn register_host(&self, address: *mut u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuMemHostRegister(address.cast(), len, REGISTERED) }
    }

    unsafe fn unregister_host(&self, address: *mut u8) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuMemHostUnregister(address.cast()) }
    }

    fn device_address(&self, host: *const u8) -> Result<u64, Failure> {
        let mut device = 0;
        // SAFETY: fills in the address; any may be asked about.
        unsafe { self.cuMemHostGetDevicePointer(&raw mut device, host.cast_mut().cast(), 0) }?;
        Ok(device)
    }
}
