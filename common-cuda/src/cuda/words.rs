//! Stream memory operations on words.

use std::ffi::c_uint;

use cudarc::driver::sys::{
    CUstream, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitValueParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as AwaitedValue,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValueParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WrittenValue,
    CUstreamBatchMemOpType_enum as MemOp, CUstreamWaitValue_flags_enum as WaitFlags,
    CUstreamWriteValue_flags_enum as WriteFlags,
};

use super::library::CudaDriver;
use crate::driver::{DeviceInfo, Failure};
use crate::location::DeviceIndex;
use crate::word_operation::{WaitCondition, WordAccess, WordOperation};

/// The most operations of one call. The driver accepts fewer than 256.
const TOGETHER: usize = 255;
/// Operations that are described without an allocation.
const FEW: usize = 16;

/// Names the function in errors and in [`check`].
const FUNCTION: &str = "cuStreamBatchMemOp";

/// Adds the operations to a stream, in their order.
///
/// # Safety
/// The stream is of the current context. Every word is valid until the stream has passed the operations.
pub(super) unsafe fn operate(
    driver: &CudaDriver,
    stream: CUstream,
    operations: &[WordOperation],
) -> Result<(), Failure> {
    if operations.is_empty() {
        return Ok(());
    }
    if operations.len() <= FEW {
        let mut all = [CUstreamBatchMemOpParams { pad: [0; 6] }; FEW];
        for (described, operation) in all.iter_mut().zip(operations) {
            *described = describe(operation);
        }
        // SAFETY: as many operations as described; the rest is the caller's promise.
        return unsafe { driver.cuStreamBatchMemOp(stream, operations.len() as c_uint, all.as_mut_ptr(), 0) };
    }
    for operations in operations.chunks(TOGETHER) {
        let mut all: Vec<CUstreamBatchMemOpParams> = operations.iter().map(describe).collect();
        // SAFETY: as above.
        unsafe { driver.cuStreamBatchMemOp(stream, all.len() as c_uint, all.as_mut_ptr(), 0) }?;
    }
    Ok(())
}

fn describe(operation: &WordOperation) -> CUstreamBatchMemOpParams {
    let &WordOperation { address, value, wide, access } = operation;
    let mut described = CUstreamBatchMemOpParams { pad: [0; 6] };
    match access {
        WordAccess::Write => {
            described.writeValue = WriteValueParams {
                operation: match wide {
                    true => MemOp::CU_STREAM_MEM_OP_WRITE_VALUE_64,
                    false => MemOp::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                },
                address,
                __bindgen_anon_1: WrittenValue { value64: value },
                flags: WriteFlags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint,
                alias: 0,
            };
        }
        WordAccess::Wait(condition) => {
            let flags = match condition {
                WaitCondition::GreaterOrEqual => WaitFlags::CU_STREAM_WAIT_VALUE_GEQ,
                WaitCondition::Equal => WaitFlags::CU_STREAM_WAIT_VALUE_EQ,
                WaitCondition::And => WaitFlags::CU_STREAM_WAIT_VALUE_AND,
                WaitCondition::Nor => WaitFlags::CU_STREAM_WAIT_VALUE_NOR,
            };
            described.waitValue = WaitValueParams {
                operation: match wide {
                    true => MemOp::CU_STREAM_MEM_OP_WAIT_VALUE_64,
                    false => MemOp::CU_STREAM_MEM_OP_WAIT_VALUE_32,
                },
                address,
                __bindgen_anon_1: AwaitedValue { value64: value },
                flags: flags as c_uint,
                alias: 0,
            };
        }
    }
    described
}

/// Checks whether the driver has the second version of the operations, which any kernel module permits.
pub(super) fn check(driver: &CudaDriver, device: DeviceIndex) -> Result<(), String> {
    if driver.missing().iter().any(|row| row.name == FUNCTION) {
        return Err(
            "the driver is older than 11.7: update it, or load its module with NVreg_EnableStreamMemOPs=1 and \
                    a driver that has cuStreamBatchMemOp_v2"
                .to_owned(),
        );
    }
    match driver.limits(device) {
        Ok(limits) if limits.wide_values => Ok(()),
        _ => Err("the device has no 64-bit stream memory operations: load the driver's module with \
                  NVreg_EnableStreamMemOPs=1"
            .to_owned()),
    }
}
