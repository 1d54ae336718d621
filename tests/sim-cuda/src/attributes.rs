//! Attributes of pointers: `cuPointerGetAttribute`, `cuPointerGetAttributes`, `cuPointerSetAttribute`.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute as Attribute};

use crate::abi::{Address, In, List, Out, driver_api, numbers};
use crate::capture;
use crate::driver::check_initialised;
use crate::early;
use crate::error::{Error, Outcome};
use crate::settings::Settings;
use crate::space::{Kind, Range, SPACE};

/// An attribute's value. The driver stores documented booleans as ints.
#[derive(Clone, Copy)]
enum Value {
    Int(c_uint),
    Wide(u64),
    /// Nothing is stored.
    Untouched,
}

/// The destination of a value, whose width depends on the attribute.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct AnyOut(Out<u8>);

impl AnyOut {
    fn set(self, value: Value) -> Outcome {
        match value {
            Value::Int(value) => self.0.cast::<c_uint>().set(value),
            Value::Wide(value) => self.0.cast::<u64>().set(value),
            Value::Untouched => Ok(()),
        }
    }
}

numbers! { Attribute:
    CONTEXT = CU_POINTER_ATTRIBUTE_CONTEXT
    MEMORY_TYPE = CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    DEVICE_POINTER = CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    HOST_POINTER = CU_POINTER_ATTRIBUTE_HOST_POINTER
    SYNC_MEMOPS = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    BUFFER_ID = CU_POINTER_ATTRIBUTE_BUFFER_ID
    IS_MANAGED = CU_POINTER_ATTRIBUTE_IS_MANAGED
    DEVICE_ORDINAL = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    IS_LEGACY_CUDA_IPC_CAPABLE = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
    RANGE_START_ADDR = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
    RANGE_SIZE = CU_POINTER_ATTRIBUTE_RANGE_SIZE
    MAPPED = CU_POINTER_ATTRIBUTE_MAPPED
    ALLOWED_HANDLE_TYPES = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
    IS_GPU_DIRECT_RDMA_CAPABLE = CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
    ACCESS_FLAGS = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
    MEMPOOL_HANDLE = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    MAPPING_SIZE = CU_POINTER_ATTRIBUTE_MAPPING_SIZE
    MAPPING_BASE_ADDR = CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
    MEMORY_BLOCK_ID = CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
}

/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS` of memory that is read and written.
const READ_WRITE: c_uint = 3;

/// Returns the attribute of an address in `range`, or `None` if the driver reports that the range does not have it.
fn known(range: &Range, address: Address, attribute: c_int) -> Outcome<Option<Value>> {
    let is_host = range.kind.is_host();
    let memory_type = if is_host { CUmemorytype::CU_MEMORYTYPE_HOST } else { CUmemorytype::CU_MEMORYTYPE_DEVICE };
    let (pool, exportable) = match range.kind {
        Kind::Pool { pool, exportable } => (pool, exportable),
        _ => (0, range.mapping.as_ref().is_some_and(|mapping| mapping.physical.is_exportable())),
    };
    let reserved = range.mapping.as_ref().map_or((range.base, range.len), |mapping| mapping.reserved);
    let flag = |value: bool| Value::Int(value.into());
    Ok(Some(match attribute {
        CONTEXT => Value::Wide(range.context.as_ref().map_or(0, |context| context.handle as u64)),
        MEMORY_TYPE => Value::Int(memory_type as c_uint),
        DEVICE_POINTER if range.is_accessible() => Value::Wide(address as u64),
        HOST_POINTER if is_host || range.kind == Kind::Managed => Value::Wide(address as u64),
        DEVICE_POINTER | HOST_POINTER => return Ok(None),
        SYNC_MEMOPS => flag(range.is_synchronous()),
        BUFFER_ID | MEMORY_BLOCK_ID => Value::Wide(range.id),
        IS_MANAGED => flag(range.kind == Kind::Managed),
        DEVICE_ORDINAL => Value::Int(range.device as c_uint),
        IS_LEGACY_CUDA_IPC_CAPABLE => flag(range.kind == Kind::Device && range.backing.file.is_none()),
        RANGE_START_ADDR => Value::Wide(reserved.0 as u64),
        RANGE_SIZE => Value::Wide(reserved.1 as u64),
        MAPPING_BASE_ADDR => Value::Wide(range.base as u64),
        MAPPING_SIZE if range.kind == Kind::HostRegistered => Value::Wide(range.len as u64),
        MAPPING_SIZE => Value::Wide(range.len.next_multiple_of(MAPPING) as u64),
        MAPPED => flag(true),
        ALLOWED_HANDLE_TYPES => Value::Wide(exportable.into()),
        IS_GPU_DIRECT_RDMA_CAPABLE => flag(range.kind == Kind::Device && Settings::get().direct.any()),
        ACCESS_FLAGS => Value::Int(if range.is_accessible() { READ_WRITE } else { 0 }),
        MEMPOOL_HANDLE => Value::Wide(pool as u64),
        _ => return Err(Error::INVALID_VALUE),
    }))
}

/// Returns the answer of `cuPointerGetAttributes` for an address that the driver does not know, or for an attribute
/// that the range does not have.
fn unknown(attribute: c_int, address: Address, is_host: bool, reserved: Option<(Address, usize)>) -> Outcome<Value> {
    Ok(match attribute {
        HOST_POINTER if is_host => Value::Wide(address as u64),
        RANGE_START_ADDR => reserved.map_or(Value::Untouched, |(base, _)| Value::Wide(base as u64)),
        RANGE_SIZE => reserved.map_or(Value::Untouched, |(_, len)| Value::Wide(len as u64)),
        CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | MEMPOOL_HANDLE | ALLOWED_HANDLE_TYPES | MAPPING_SIZE
        | MAPPING_BASE_ADDR | MEMORY_BLOCK_ID => Value::Wide(0),
        DEVICE_ORDINAL => Value::Int(NO_DEVICE),
        MEMORY_TYPE
        | ACCESS_FLAGS
        | SYNC_MEMOPS
        | IS_MANAGED
        | IS_LEGACY_CUDA_IPC_CAPABLE
        | MAPPED
        | IS_GPU_DIRECT_RDMA_CAPABLE => Value::Int(0),
        _ => return Err(Error::INVALID_VALUE),
    })
}

/// Counts the attributes that `cuPointerGetAttributes` queried, since a driver takes time for each.
static ASKED: AtomicU64 = AtomicU64::new(0);

#[cfg_attr(not(sim_hip), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named beside the driver's own functions")]
pub(crate) extern "C" fn simCudaAttributesAsked() -> u64 {
    ASKED.load(Ordering::Relaxed)
}

/// The granularity of the driver's mappings.
const MAPPING: usize = 2 << 20;
/// `CU_DEVICE_INVALID`.
const NO_DEVICE: c_uint = -2_i32 as c_uint;

driver_api! {
    4000 cuPointerGetAttribute: fn cuPointerGetAttribute(value: AnyOut, attribute: c_int, address: Address) {
        let space = SPACE.get()?.read();
        let range = space.find(address).ok_or(Error::INVALID_VALUE)?;
        match known(range, address, attribute)? {
            Some(known) => value.set(known),
            None => value.set(Value::Wide(0)).and(Err(Error::INVALID_VALUE)),
        }
    }

    7000 cuPointerGetAttributes: fn cuPointerGetAttributes(count: c_uint, attributes: List<c_int>, values: List<AnyOut>, address: Address) {
        ASKED.fetch_add(count.into(), Ordering::Relaxed);
        check_initialised()?;
        let (attributes, values) = (attributes.get(count as usize)?, values.get(count as usize)?);
        let space = SPACE.get()?.read();
        let range = space.find(address);
        let reserved = space.reservation(address);
        for (attribute, value) in attributes.into_iter().zip(values) {
            let known = match range {
                Some(range) => known(range, address, attribute)?,
                None => None,
            };
            value.set(match known {
                Some(known) => known,
                None => unknown(attribute, address, range.is_none(), reserved)?,
            })?;
        }
        Ok(())
    }

    6000 cuPointerSetAttribute: fn cuPointerSetAttribute(value: In<c_uint>, attribute: c_int, address: Address) {
        let range = SPACE.get()?.read().find(address).cloned().ok_or(Error::INVALID_VALUE)?;
        if attribute != SYNC_MEMOPS {
            return Err(Error::INVALID_VALUE);
        }
        if range.kind == Kind::Mapped {
            return Err(Error::NOT_SUPPORTED);
        }
        capture::unsafe_call()?;
        range.synchronous.store(value.get()? != 0, Ordering::Relaxed);
        if !Settings::get().early {
            early::wait(range.id);
        }
        Ok(())
    }
}
