//! Device memory that a program allocates through us, in the device's primary context.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUdevice, CUmemAttach_flags_enum, CUstream};

use super::driver::Driver;
use super::mapping::{self, Physical};
use super::primary::Primary;
use super::status::Failure;
use crate::buffer::BufferKind;
use crate::error::DeviceError;
use crate::vendor::VendorBuffer;

/// An allocation.
pub(super) struct Buffer {
    memory: Memory,
    len: usize,
}

impl Buffer {
    pub(super) fn new(context: Arc<Primary>, kind: BufferKind, len: usize) -> Result<Buffer, Failure> {
        Ok(Buffer { memory: Memory::new(context, kind, len)?, len })
    }

    /// Runs a call of the driver's on `bytes` of it, in its context.
    fn with(&self, bytes: usize, call: impl FnOnce(&Driver) -> Result<(), Failure>) -> Result<(), DeviceError> {
        let context = &self.memory.context;
        let done = context.enter().and_then(|_scope| call(context.driver));
        let object = || format!("{bytes} of {} bytes of {:?} memory", self.len, self.memory.kind);
        done.map_err(|failure| context.driver.error(failure, object()))
    }

    /// Waits for what was written if the CPU may look at once; else the default stream's order is enough.
    fn settle(&self, driver: &Driver) -> Result<(), Failure> {
        if self.memory.kind != BufferKind::Pinned {
            return Ok(());
        }
        // SAFETY: the current context's default stream.
        unsafe { driver.cuStreamSynchronize(DEFAULT_STREAM) }
    }
}

impl VendorBuffer for Buffer {
    fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.memory.address as usize)
    }

    unsafe fn write(&self, offset: usize, source: *const u8, len: usize) -> Result<(), DeviceError> {
        let destination = self.memory.address + offset as u64;
        self.with(len, |driver| {
            // SAFETY: both ranges are good by the caller's promise.
            unsafe { driver.cuMemcpyHtoD(destination, source.cast(), len) }?;
            self.settle(driver)
        })
    }

    unsafe fn read(&self, offset: usize, destination: *mut u8, len: usize) -> Result<(), DeviceError> {
        let source = self.memory.address + offset as u64;
        // SAFETY: as above.
        self.with(len, |driver| unsafe { driver.cuMemcpyDtoH(destination.cast(), source, len) })
    }

    fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        self.with(self.len, |driver| {
            // SAFETY: the whole allocation.
            unsafe { driver.cuMemsetD8(self.memory.address, byte, self.len) }?;
            self.settle(driver)
        })
    }
}

/// The memory itself, freed in its context.
struct Memory {
    context: Arc<Primary>,
    kind: BufferKind,
    address: u64,
    /// Bytes of address space and of physical memory, where they are mapped apart.
    mapped: usize,
}

/// The default stream of the current context, as the C interface's 0 means it.
const DEFAULT_STREAM: CUstream = std::ptr::null_mut();

impl Memory {
    fn new(context: Arc<Primary>, kind: BufferKind, len: usize) -> Result<Memory, Failure> {
        let _scope = context.enter()?;
        let driver = context.driver;
        let (mut address, mut mapped) = (0_u64, len);
        match kind {
            // SAFETY: fills in the address.
            BufferKind::Device => unsafe { driver.cuMemAlloc(&raw mut address, len) }?,
            BufferKind::Managed => {
                let flags = CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as c_uint;
                // SAFETY: as above.
                unsafe { driver.cuMemAllocManaged(&raw mut address, len, flags) }?;
            }
            BufferKind::Pinned => {
                let mut host: *mut c_void = std::ptr::null_mut();
                // SAFETY: as above.
                unsafe { driver.cuMemHostAlloc(&raw mut host, len, CU_MEMHOSTALLOC_PORTABLE) }?;
                address = host.expose_provenance() as u64;
            }
            BufferKind::Pool => {
                // SAFETY: fills in the address; the allocation is done once the stream has come to it.
                unsafe {
                    driver.cuMemAllocAsync(&raw mut address, len, DEFAULT_STREAM)?;
                    driver.cuStreamSynchronize(DEFAULT_STREAM)?;
                }
            }
            BufferKind::PoolShared => {
                let pool = context.shared_pool()?;
                // SAFETY: as above; the context keeps the pool.
                unsafe {
                    driver.cuMemAllocFromPoolAsync(&raw mut address, len, pool, DEFAULT_STREAM)?;
                    driver.cuStreamSynchronize(DEFAULT_STREAM)?;
                }
            }
            BufferKind::Vmm | BufferKind::VmmPrivate | BufferKind::VmmPieces => {
                (address, mapped) = map(driver, context.device, kind, len)?;
            }
        }
        Ok(Memory { context: context.clone(), kind, address, mapped })
    }

    fn free(&self) -> Result<(), Failure> {
        let _scope = self.context.enter()?;
        let driver = self.context.driver;
        // SAFETY: allocated by `new` in this way, freed once; device work on it is the owner's to have finished.
        unsafe {
            match self.kind {
                BufferKind::Device | BufferKind::Managed => driver.cuMemFree(self.address),
                BufferKind::Pinned => {
                    driver.cuMemFreeHost(std::ptr::with_exposed_provenance_mut(self.address as usize))
                }
                BufferKind::Pool | BufferKind::PoolShared => driver
                    .cuMemFreeAsync(self.address, DEFAULT_STREAM)
                    .and_then(|()| driver.cuStreamSynchronize(DEFAULT_STREAM)),
                BufferKind::Vmm | BufferKind::VmmPrivate | BufferKind::VmmPieces => {
                    // Work that still reads a mapping does not keep it, unlike `cuMemFree`'s memory.
                    let _ = driver.cuStreamSynchronize(DEFAULT_STREAM);
                    mapping::unmap(driver, self.address, self.mapped)
                }
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.free() {
            Ok(()) => {}
            // A reset of the device has freed it already.
            Err(failure) if failure.context_gone() || failure.code == Failure::INVALID_VALUE => {}
            Err(failure) => log::warn!("freeing {:?} memory: {}", self.kind, self.context.driver.reason(failure)),
        }
    }
}

/// Makes physical memory of the device, as the kind says, and maps it; its address and rounded length.
fn map(driver: &Driver, device: CUdevice, kind: BufferKind, len: usize) -> Result<(u64, usize), Failure> {
    let make = |handle_types| {
        let properties = mapping::properties(device, handle_types);
        let granularity = mapping::granularity(driver, &properties)?;
        let whole = len.next_multiple_of(granularity);
        let piece = if kind == BufferKind::VmmPieces { granularity } else { whole };
        let pieces = (0..whole / piece).map(|_| Physical::create(driver, &properties, piece).map(|made| (made, piece)));
        pieces.collect::<Result<Vec<_>, _>>()
    };
    let pieces = match kind {
        BufferKind::VmmPrivate => make(0),
        // Of some devices' memory no descriptor can be had.
        _ => make(mapping::BY_DESCRIPTOR).or_else(|_| make(0)),
    }?;
    let address = mapping::map(driver, device, &pieces)?;
    Ok((address, pieces.iter().map(|(_, len)| len).sum()))
}
