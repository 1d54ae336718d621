//! Looks up functions (`cuGetProcAddress`) and names errors (`cuGetErrorName`, `cuGetErrorString`).

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::CUdriverProcAddressQueryResult as Status;

use crate::abi::{Out, Row, Text, driver_api};
use crate::error::{Error, Outcome, describe};
use crate::settings::Settings;

/// Every entry point of every module.
pub(crate) const TABLES: &[&[Row]] = &[
    crate::attributes::ROWS,
    crate::batch::ROWS,
    crate::capture::ROWS,
    crate::context_calls::ROWS,
    crate::copies::ROWS,
    crate::device::ROWS,
    crate::direct::ROWS,
    crate::event::ROWS,
    crate::fills::ROWS,
    crate::graph_calls::ROWS,
    crate::host::ROWS,
    crate::ipc::ROWS,
    crate::kernels::ROWS,
    crate::memops::ROWS,
    crate::memory::ROWS,
    crate::pool_calls::ROWS,
    ROWS,
    crate::stream::ROWS,
    crate::vmm::ROWS,
];

pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    TABLES.iter().copied().flatten()
}

enum Found {
    Row(&'static Row),
    TooOld,
    Nothing,
}

/// Returns the newest signature of `name` for a program written for CUDA `version`.
fn find(name: &str, version: c_int) -> Found {
    let settings = Settings::get();
    if settings.missing.iter().any(|missing| missing == name) {
        return Found::Nothing;
    }
    let of_name = || rows().filter(|row| row.name == name && row.since <= settings.version);
    match of_name().filter(|row| row.since <= version).max_by_key(|row| row.since) {
        Some(row) => Found::Row(row),
        None if of_name().next().is_some() => Found::TooOld,
        None => Found::Nothing,
    }
}

/// The valid flags.
const FLAGS: c_ulonglong = 0b11;

fn get(name: &Text, function: Out<*const c_void>, version: c_int, flags: c_ulonglong) -> Outcome<Status> {
    let name = name.get()?;
    if version > Settings::get().version || flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (address, found) = match find(&name, version) {
        Found::Row(row) => (row.function as *const c_void, Status::CU_GET_PROC_ADDRESS_SUCCESS),
        Found::TooOld => (std::ptr::null(), Status::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
        Found::Nothing => (std::ptr::null(), Status::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    };
    function.set(address)?;
    Ok(found)
}

driver_api! {
    11030 cuGetProcAddress: fn cuGetProcAddress(name: Text, function: Out<*const c_void>, version: c_int, flags: c_ulonglong) {
        match get(&name, function, version, flags)? {
            Status::CU_GET_PROC_ADDRESS_SUCCESS => Ok(()),
            _ => Err(Error::NOT_FOUND),
        }
    }

    12000 cuGetProcAddress: fn cuGetProcAddress_v2(name: Text, function: Out<*const c_void>, version: c_int, flags: c_ulonglong, status: Out<c_uint>) {
        // The status and a null address report a missing function, not the result.
        let found = get(&name, function, version, flags)?;
        status.set_if_asked(found as c_uint);
        Ok(())
    }

    6000 cuGetErrorName: fn cuGetErrorName(error: c_int, name: Out<*const c_char>) {
        let known = describe(error);
        name.set(known.map_or(std::ptr::null(), |known| known.0.as_ptr()))?;
        known.map(drop).ok_or(Error::INVALID_VALUE)
    }

    6000 cuGetErrorString: fn cuGetErrorString(error: c_int, text: Out<*const c_char>) {
        let known = describe(error);
        text.set(known.map_or(std::ptr::null(), |known| known.1.as_ptr()))?;
        known.map(drop).ok_or(Error::INVALID_VALUE)
    }
}

/// Declares the symbols of replaced signatures: 32-bit sizes and addresses, fewer arguments, other flags. The driver
/// still has them. A program that binds them today does so by mistake, so here they always fail.
macro_rules! old_abi {
    ($($symbol:ident)*) => {
        $(
            #[cfg_attr(not(sim_hip), unsafe(no_mangle))]
            #[allow(non_snake_case, reason = "the driver's own name")]
            extern "C" fn $symbol() -> c_int {
                Error::NOT_SUPPORTED.0
            }
        )*
    };
}

old_abi! {
    cuCtxCreate cuCtxDestroy cuCtxPopCurrent cuCtxPushCurrent cuDeviceTotalMem cuEventDestroy cuIpcOpenMemHandle
    cuMemAlloc cuMemAllocHost cuMemFree cuMemGetAddressRange cuMemGetInfo cuMemHostGetDevicePointer cuMemcpy2D
    cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoD
    cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D8 cuMemsetD32 cuMemsetD8 cuStreamBeginCapture cuStreamDestroy
    cuStreamBatchMemOp cuStreamGetCaptureInfo cuStreamWaitValue32 cuStreamWaitValue64 cuStreamWriteValue32 cuStreamWriteValue64
}
