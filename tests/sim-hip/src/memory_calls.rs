//! Addresses, memory, copies and IPC.

use std::ffi::{c_int, c_uint};

use crate::abi::{Address, In, List, Out};
use crate::copies::{self, cuMemcpy, cuMemcpyAsync, cuMemcpyDtoDAsync_v2, cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use crate::current::{self, begin};
use crate::entry::{hip_api, through};
use crate::error::{Error, Outcome};
use crate::ipc::{self, cuIpcGetMemHandle, cuIpcOpenMemHandle_v2};
use crate::release;
use crate::sharing::AccessOf;
use crate::space::{Kind, Range, SPACE};
use crate::{fills, host, memory, pool_calls, vmm};

/// `hipPointerAttribute_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: usize,
    host_pointer: usize,
    is_managed: c_int,
    flags: c_uint,
}

/// `HIP_POINTER_ATTRIBUTE_BUFFER_ID`
const BUFFER_ID: c_int = 7;

/// `hipMemoryType` of a range in this release.
fn memory_type(range: &Range) -> c_int {
    let new = release::major() >= 6;
    match range.kind {
        kind if kind.is_host() => c_int::from(new),
        Kind::Managed if new => 3,
        Kind::Managed => 4,
        _ => 1 + c_int::from(new),
    }
}

fn attributes(into: Out<PointerAttributes>, address: Address) -> Outcome {
    begin()?;
    if into.is_null() || address == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let space = SPACE.get()?.read();
    match space.find(address) {
        Some(range) => into.set(PointerAttributes {
            kind: memory_type(range),
            device: range.device,
            device_pointer: address,
            host_pointer: if range.kind.is_host() { address } else { 0 },
            is_managed: (range.kind == Kind::Managed).into(),
            flags: 0,
        }),
        None if release::major() < 6 => Err(Error::INVALID_VALUE),
        None => into.set(PointerAttributes {
            kind: 0,
            device: -2,
            device_pointer: 0,
            host_pointer: 0,
            is_managed: 0,
            flags: 0,
        }),
    }
}

hip_api! {
    fn hipPointerGetAttributes(into: Out<PointerAttributes>, address: Address) {
        attributes(into, address)
    }

    fn hipPointerGetAttribute(value: Out<c_uint>, attribute: c_int, address: Address) {
        begin()?;
        let space = SPACE.get()?.read();
        match (attribute, space.find(address)) {
            (BUFFER_ID, Some(range)) => value.set(range.id as c_uint),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    fn hipMemGetAddressRange(base: Out<Address>, len: Out<usize>, address: Address) {
        through!(memory::cuMemGetAddressRange_v2, base, len, address)
    }

    fn hipMalloc(address: Out<Address>, len: usize) {
        through!(memory::cuMemAlloc_v2, address, len)
    }

    fn hipFree(address: Address) {
        through!(memory::cuMemFree_v2, address)
    }

    fn hipMallocManaged(address: Out<Address>, len: usize, flags: c_uint) {
        through!(memory::cuMemAllocManaged, address, len, flags)
    }

    fn hipHostMalloc(address: Out<Address>, len: usize, flags: c_uint) {
        through!(host::cuMemHostAlloc, address, len, flags)
    }

    fn hipHostFree(address: Address) {
        through!(host::cuMemFreeHost, address)
    }

    fn hipMallocAsync(address: Out<Address>, len: usize, stream: usize) {
        through!(pool_calls::cuMemAllocAsync, address, len, stream)
    }

    fn hipFreeAsync(address: Address, stream: usize) {
        through!(pool_calls::cuMemFreeAsync, address, stream)
    }

    fn hipMemGetAllocationGranularity(granularity: Out<usize>, properties: In<vmm::Properties>, option: c_int) {
        through!(vmm::cuMemGetAllocationGranularity, granularity, properties, option)
    }

    fn hipMemCreate(handle: Out<usize>, len: usize, properties: In<vmm::Properties>, flags: u64) {
        through!(vmm::cuMemCreate, handle, len, properties, flags)
    }

    fn hipMemRelease(handle: usize) {
        through!(vmm::cuMemRelease, handle)
    }

    fn hipMemAddressReserve(address: Out<Address>, len: usize, align: usize, at: Address, flags: u64) {
        through!(vmm::cuMemAddressReserve, address, len, align, at, flags)
    }

    fn hipMemAddressFree(address: Address, len: usize) {
        through!(vmm::cuMemAddressFree, address, len)
    }

    fn hipMemMap(address: Address, len: usize, offset: usize, handle: usize, flags: u64) {
        through!(vmm::cuMemMap, address, len, offset, handle, flags)
    }

    fn hipMemUnmap(address: Address, len: usize) {
        through!(vmm::cuMemUnmap, address, len)
    }

    fn hipMemSetAccess(address: Address, len: usize, access: List<AccessOf>, count: usize) {
        through!(vmm::cuMemSetAccess, address, len, access, count)
    }

    fn hipHostRegister(address: Address, len: usize, flags: c_uint) {
        if flags > 15 {
            return Err(Error::INVALID_VALUE);
        }
        through!(host::cuMemHostRegister_v2, address, len, flags)
    }

    fn hipHostUnregister(address: Address) {
        through!(host::cuMemHostUnregister, address)
    }

    fn hipHostGetDevicePointer(device: Out<Address>, address: Address, flags: c_uint) {
        through!(host::cuMemHostGetDevicePointer_v2, device, address, flags)
    }

    fn hipMemcpy(dst: Address, src: Address, len: usize, _kind: c_int) {
        through!(cuMemcpy, dst, src, len)
    }

    fn hipMemcpyHtoD(dst: Address, src: Address, len: usize) {
        through!(cuMemcpyHtoD_v2, dst, src, len)
    }

    fn hipMemcpyDtoH(dst: Address, src: Address, len: usize) {
        through!(cuMemcpyDtoH_v2, dst, src, len)
    }

    fn hipMemcpyAsync(dst: Address, src: Address, len: usize, kind: c_int, stream: usize) {
        // `hipMemcpyHostToHost` to `hipMemcpyDefault`
        if !(0..=4).contains(&kind) {
            return Err(Error::INVALID_VALUE);
        }
        through!(cuMemcpyAsync, dst, src, len, stream)
    }

    fn hipMemcpyDtoDAsync(dst: Address, src: Address, len: usize, stream: usize) {
        through!(cuMemcpyDtoDAsync_v2, dst, src, len, stream)
    }

    fn hipMemcpy2DAsync(dst: Address, dst_pitch: usize, src: Address, src_pitch: usize, width: usize, height: usize, _kind: c_int, stream: usize) {
        let copy = copies::Memcpy2d::of_rows((dst, dst_pitch), (src, src_pitch), width, height);
        through!(copies::cuMemcpy2DAsync_v2, In::new(&copy), stream)
    }

    fn hipMemsetD8(address: Address, value: u8, count: usize) {
        through!(fills::cuMemsetD8_v2, address, value, count)
    }

    fn hipMemsetD8Async(address: Address, value: u8, count: usize, stream: usize) {
        through!(fills::cuMemsetD8Async, address, value, count, stream)
    }

    fn hipIpcGetMemHandle(handle: Out<ipc::Handle>, address: Address) {
        through!(cuIpcGetMemHandle, handle, address)
    }

    fn hipIpcOpenMemHandle(address: Out<Address>, handle: ipc::Handle, flags: c_uint) {
        // `hipIpcMemLazyEnablePeerAccess`
        if flags != c_uint::from(release::major() >= 6) {
            return Err(Error::INVALID_VALUE);
        }
        through!(cuIpcOpenMemHandle_v2, address, handle, 1)
    }

    fn hipIpcCloseMemHandle(address: Address) {
        through!(ipc::cuIpcCloseMemHandle, address)
    }
}

/// `HSA_STATUS_ERROR`
const HSA_ERROR: c_int = 0x1000;

/// Where the memory begins in its dma-buf, which holds more.
const OFFSET: u64 = 0x3000;

/// Exports a dma-buf. It is a function of the library below HIP, so no last error is left.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's own name")]
unsafe extern "C" fn hsa_amd_portable_export_dmabuf(
    address: Address,
    len: usize,
    descriptor: Out<c_int>,
    offset: Out<u64>,
) -> c_int {
    let export = || -> Outcome {
        current::enter()?;
        // SAFETY: the caller's place.
        current::below(unsafe { crate::direct::cuMemGetHandleForAddressRange(descriptor, address, len, 1, 0) })?;
        offset.set_if_asked(OFFSET);
        Ok(())
    };
    if export().is_ok() { 0 } else { HSA_ERROR }
}
