//! Device memory that a program allocates through us, in the device's primary context.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_PORTABLE, CUdevice, CUmemAccess_flags_enum, CUmemAccessDesc, CUmemAllocationGranularity_flags_enum,
    CUmemAllocationHandleType_enum, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType_enum, CUmemAttach_flags_enum, CUmemLocation, CUmemLocationType_enum, CUstream,
};

use super::driver::Driver;
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
    /// Bytes of address space and of physical memory, for [`BufferKind::Vmm`].
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
            BufferKind::Vmm => (address, mapped) = map(driver, context.device, len)?,
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
                BufferKind::Pool => driver
                    .cuMemFreeAsync(self.address, DEFAULT_STREAM)
                    .and_then(|()| driver.cuStreamSynchronize(DEFAULT_STREAM)),
                BufferKind::Vmm => {
                    // Work that still reads a mapping does not keep it, unlike `cuMemFree`'s memory.
                    let _ = driver.cuStreamSynchronize(DEFAULT_STREAM);
                    driver
                        .cuMemUnmap(self.address, self.mapped)
                        .and_then(|()| driver.cuMemAddressFree(self.address, self.mapped))
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

/// Reserves addresses and maps physical memory of the device there; its address and rounded length.
fn map(driver: &'static Driver, device: CUdevice, len: usize) -> Result<(u64, usize), Failure> {
    let location = CUmemLocation { type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
    let prop = CUmemAllocationProp {
        type_: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType_enum(0),
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    let minimum = CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM as c_int;
    let (mut granularity, mut handle, mut address) = (0_usize, 0_u64, 0_u64);
    // SAFETY: fills in the granularity.
    unsafe { driver.cuMemGetAllocationGranularity(&raw mut granularity, &raw const prop, minimum) }?;
    let len = len.next_multiple_of(granularity.max(1));
    let access = CUmemAccessDesc { location, flags: CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    // SAFETY: fills in a handle.
    unsafe { driver.cuMemCreate(&raw mut handle, len, &raw const prop, 0) }?;
    // SAFETY: fills in an address.
    let reserved = unsafe { driver.cuMemAddressReserve(&raw mut address, len, 0, 0, 0) };
    let mapped = reserved.and_then(|()| {
        // SAFETY: the addresses were just reserved, the handle has as many bytes.
        let mapped = unsafe { driver.cuMemMap(address, len, 0, handle, 0) }.and_then(|()| {
            // SAFETY: the range was just mapped.
            unsafe { driver.cuMemSetAccess(address, len, &raw const access, 1) }.inspect_err(|_| {
                // SAFETY: takes the mapping back.
                let _ = unsafe { driver.cuMemUnmap(address, len) };
            })
        });
        mapped.inspect_err(|_| {
            // SAFETY: nothing is mapped there.
            let _ = unsafe { driver.cuMemAddressFree(address, len) };
        })
    });
    // SAFETY: a mapping keeps the memory; without one it goes now.
    unsafe { driver.cuMemRelease(handle) }?;
    mapped.map(|()| (address, len))
}
