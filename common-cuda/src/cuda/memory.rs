//! Attributes of addresses, and allocations.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_PORTABLE, CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS_enum, CUcontext, CUdevice_attribute_enum as Device,
    CUflushGPUDirectRDMAWritesScope_enum as Scope, CUflushGPUDirectRDMAWritesTarget_enum as Target,
    CUmemAttach_flags_enum, CUmemorytype_enum, CUpointer_attribute_enum as Attribute, CUstream,
};

use super::gdrcopy::Gdrcopy;
use super::library::{CudaDriver, version_text};
use super::mapping::{self, Physical};
use super::{NUMBERS, direct, pool};
use crate::driver::{Allocated, Attributes, ContextHandle, DeviceInfo as _, DmaBuf, Failure, Mapper, Memory, Pool};
use crate::location::{BufferKind, DeviceIndex, MemoryClass};

const HOST: c_uint = CUmemorytype_enum::CU_MEMORYTYPE_HOST as c_uint;

/// The first driver that may map a dma-buf.
const MAPS_DMA_BUFS_SINCE: c_int = 13_030;

/// The current context's default stream, 0 in the C interface.
const DEFAULT_STREAM: CUstream = std::ptr::null_mut();

impl CudaDriver {
    /// An attribute of an address with at most 8 bytes. Any address may be queried.
    pub(super) fn pointer_attribute(&self, attribute: Attribute, address: u64) -> Result<u64, Failure> {
        let mut value = 0_u64;
        let mut attribute = attribute as c_int;
        let mut place: *mut c_void = (&raw mut value).cast();
        // SAFETY: one attribute and its place.
        unsafe { self.cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address) }?;
        Ok(value)
    }
}

impl Memory for CudaDriver {
    fn attributes(&self, address: u64) -> Result<Attributes, Failure> {
        let mut attributes = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_int,
        ];
        let mut memory_type: c_uint = 0;
        let mut context: CUcontext = std::ptr::null_mut();
        let mut managed: c_uint = 0;
        let mut buffer_id: u64 = 0;
        let mut ordinal: c_int = -1;
        let mut synchronous: c_uint = 0;
        let mut places: [*mut c_void; 6] = [
            (&raw mut memory_type).cast(),
            (&raw mut context).cast(),
            (&raw mut managed).cast(),
            (&raw mut buffer_id).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut synchronous).cast(),
        ];
        let count = attributes.len() as c_uint;
        // SAFETY: as many places as attributes, each of the attribute's type; any address may be asked about.
        unsafe { self.cuPointerGetAttributes(count, attributes.as_mut_ptr(), places.as_mut_ptr(), address) }?;
        let class = match memory_type {
            _ if managed != 0 => MemoryClass::Managed,
            0 => return Ok(Attributes::HOST),
            HOST => MemoryClass::Pinned,
            _ => MemoryClass::Device,
        };
        let context = (!context.is_null()).then(|| ContextHandle(context.expose_provenance()));
        let device = NUMBERS.index(ordinal, || self.device_count());
        Ok(Attributes { class, context, device, buffer_id, synchronous: Some(synchronous != 0) })
    }

    fn buffer_id(&self, address: u64) -> Option<u64> {
        self.pointer_attribute(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, address).ok().filter(|id| *id != 0)
    }

    fn range(&self, address: u64) -> Result<(u64, usize), Failure> {
        let (mut base, mut len) = (0, 0);
        // SAFETY: fills in the range; any address may be asked about.
        unsafe { self.cuMemGetAddressRange(&raw mut base, &raw mut len, address) }?;
        Ok((base, len))
    }

    fn extent(&self, address: u64) -> Option<(u64, usize)> {
        let mut attributes = [
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as c_int,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as c_int,
        ];
        let (mut base, mut len) = (0_u64, 0_usize);
        let mut places: [*mut c_void; 2] = [(&raw mut base).cast(), (&raw mut len).cast()];
        // SAFETY: a place for each attribute, of the attribute's type; any address may be asked about.
        unsafe { self.cuPointerGetAttributes(2, attributes.as_mut_ptr(), places.as_mut_ptr(), address) }.ok()?;
        Some((base, len))
    }

    fn is_accessible(&self, address: u64) -> bool {
        let all = CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS_enum::CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        let flags = self.pointer_attribute(Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address);
        flags.is_ok_and(|flags| flags as c_uint == all as c_uint)
    }

    fn direct_capable(&self, address: u64) -> Option<bool> {
        let capable = self.pointer_attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address);
        capable.ok().map(|capable| capable != 0)
    }

    fn synchronise_operations(&self, address: u64) -> Result<(), Failure> {
        let yes: c_uint = 1;
        let attribute = Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_int;
        // SAFETY: reads the attribute's unsigned integer; the driver checks the address.
        unsafe { self.cuPointerSetAttribute((&raw const yes).cast(), attribute, address) }
    }

    fn flush_remote_writes(&self) -> Result<(), Failure> {
        let target = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as c_int;
        let scope = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES as c_int;
        // SAFETY: waits for writes to the current context.
        unsafe { self.cuFlushGPUDirectRDMAWrites(target, scope) }
    }

    fn dma_buf(&self, address: u64, len: usize) -> Result<DmaBuf, Failure> {
        direct::dma_buf(self, address, len)
    }

    fn maps_dma_bufs(&self, device: DeviceIndex) -> Result<(), String> {
        if self.version < MAPS_DMA_BUFS_SINCE {
            let (has, since) = (&self.library.version, version_text(MAPS_DMA_BUFS_SINCE));
            return Err(format!("driver {has} maps no dma-buf, {since} may"));
        }
        let attribute = Device::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        let supported = self.device(device).and_then(|device| self.attribute(device, attribute));
        if supported.unwrap_or(0) != 0 { Ok(()) } else { Err("the driver gives no dma-buf of it".to_owned()) }
    }

    fn module_mapper(&'static self) -> Result<Box<dyn Mapper>, String> {
        Ok(Box::new(Gdrcopy::find(self)?))
    }

    fn allocate(&self, len: usize) -> Result<u64, Failure> {
        let mut address = 0;
        // SAFETY: fills in the address.
        unsafe { self.cuMemAlloc(&raw mut address, len) }?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuMemFree(address) }
    }

    fn allocate_kind(
        &self,
        kind: BufferKind,
        len: usize,
        device: DeviceIndex,
        pool: &mut Option<Pool>,
    ) -> Result<Allocated, Failure> {
        let (mut address, mut mapped) = (0_u64, len);
        match kind {
            // SAFETY: fills in the address.
            BufferKind::Device => unsafe { self.cuMemAlloc(&raw mut address, len) }?,
            BufferKind::Managed => {
                let flags = CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as c_uint;
                // SAFETY: as above.
                unsafe { self.cuMemAllocManaged(&raw mut address, len, flags) }?;
            }
            BufferKind::Pinned => {
                let mut host: *mut c_void = std::ptr::null_mut();
                // SAFETY: as above.
                unsafe { self.cuMemHostAlloc(&raw mut host, len, CU_MEMHOSTALLOC_PORTABLE) }?;
                address = host.expose_provenance() as u64;
            }
            BufferKind::Pool => {
                // SAFETY: fills in the address; the allocation is done once the stream has come to it.
                unsafe {
                    self.cuMemAllocAsync(&raw mut address, len, DEFAULT_STREAM)?;
                    self.cuStreamSynchronize(DEFAULT_STREAM)?;
                }
            }
            BufferKind::PoolShared => {
                if pool.is_none() {
                    *pool = Some(pool::create(self, device)?);
                }
                let pool = pool.as_ref().map_or(std::ptr::null_mut(), pool::raw);
                // SAFETY: as above; the caller keeps the pool.
                unsafe {
                    self.cuMemAllocFromPoolAsync(&raw mut address, len, pool, DEFAULT_STREAM)?;
                    self.cuStreamSynchronize(DEFAULT_STREAM)?;
                }
            }
            BufferKind::Vmm | BufferKind::VmmPrivate | BufferKind::VmmPieces => {
                (address, mapped) = map_kind(self, device, kind, len)?;
            }
        }
        Ok(Allocated { kind, address, mapped })
    }

    unsafe fn free_kind(&self, allocated: &Allocated) -> Result<(), Failure> {
        let &Allocated { kind, address, mapped } = allocated;
        // SAFETY: allocated in this way and freed once, by the caller's promise.
        unsafe {
            match kind {
                BufferKind::Device | BufferKind::Managed => self.cuMemFree(address),
                BufferKind::Pinned => self.cuMemFreeHost(std::ptr::with_exposed_provenance_mut(address as usize)),
                BufferKind::Pool | BufferKind::PoolShared => {
                    self.cuMemFreeAsync(address, DEFAULT_STREAM).and_then(|()| self.cuStreamSynchronize(DEFAULT_STREAM))
                }
                BufferKind::Vmm | BufferKind::VmmPrivate | BufferKind::VmmPieces => {
                    // Unlike `cuMemFree`, unmapping does not wait for work that reads the mapping.
                    let _ = self.cuStreamSynchronize(DEFAULT_STREAM);
                    mapping::unmap(self, address, mapped, mapped)
                }
            }
        }
    }

    fn granularity(&self, device: DeviceIndex) -> Result<usize, Failure> {
        mapping::granularity(self, &mapping::properties(self.device(device)?, 0))
    }

    fn reserve(&self, len: usize) -> Result<u64, Failure> {
        mapping::reserve(self, len)
    }

    fn map(&self, at: u64, len: usize, on: DeviceIndex, user: DeviceIndex) -> Result<(), Failure> {
        let physical = Physical::create(self, &mapping::properties(self.device(on)?, 0), len)?;
        mapping::map_at(self, self.device(user)?, at, &(physical, len))
    }

    unsafe fn unmap(&self, address: u64, mapped: usize, reserved: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { mapping::unmap(self, address, mapped, reserved) }
    }
}

/// Creates physical memory of the device for this kind and maps it. Returns its address and rounded length.
fn map_kind(driver: &CudaDriver, device: DeviceIndex, kind: BufferKind, len: usize) -> Result<(u64, usize), Failure> {
    let device = driver.device(device)?;
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
        // Some devices have no descriptors for their memory.
        _ => make(mapping::BY_DESCRIPTOR).or_else(|_| make(0)),
    }?;
    let address = mapping::map(driver, device, &pieces)?;
    Ok((address, pieces.iter().map(|(_, len)| len).sum()))
}
