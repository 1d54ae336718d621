//! Copies by copy engines, and registered host memory.

use std::ffi::{c_int, c_uint};

use super::library::HipDriver;
use crate::copy::{Direction, RowCopy};
use crate::driver::{Copies, Failure, Stream};

/// `hipMemcpyDefault`: the library finds the owners of both addresses.
const DEFAULT: c_int = 4;

/// `hipHostRegisterPortable | hipHostRegisterMapped`: the registration is valid for every device, and kernels can access
/// the memory.
const REGISTERED: c_uint = 1 | 2;

impl Copies for HipDriver {
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipMemcpyAsync(dst as u64, src as u64, len, DEFAULT, stream.raw()) }
    }

    unsafe fn copy_rows(&self, piece: &RowCopy, _direction: Direction, stream: &Stream) -> Result<(), Failure> {
        let &RowCopy { dst, dst_pitch, src, src_pitch, width, rows, .. } = piece;
        let (dst, src) = (dst as u64, src as u64);
        // SAFETY: the caller's promise, for every row.
        unsafe { self.hipMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, rows, DEFAULT, stream.raw()) }
    }

    unsafe fn write(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipMemcpyHtoD(dst as u64, src.cast(), len) }
    }

    unsafe fn read(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipMemcpyDtoH(dst.cast(), src as u64, len) }
    }

    unsafe fn fill(&self, dst: *mut u8, byte: u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipMemsetD8(dst as u64, byte, len) }
    }

    unsafe fn register_host(&self, address: *mut u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipHostRegister(address.cast(), len, REGISTERED) }
    }

    unsafe fn unregister_host(&self, address: *mut u8) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipHostUnregister(address.cast()) }
    }

    fn device_address(&self, host: *const u8) -> Result<u64, Failure> {
        let mut device = 0;
        // SAFETY: fills in the address; any may be asked about.
        unsafe { self.hipHostGetDevicePointer(&raw mut device, host.cast_mut().cast(), 0) }?;
        Ok(device)
    }
}
