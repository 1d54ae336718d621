//! The driver functions that Cableway calls, one row each.
//!
//! A row has the function's documented name, its parameters, the driver API version that introduced *this signature*,
//! and the name under which older drivers without `cuGetProcAddress` export it. A plain `dlsym` of the documented name
//! would bind the oldest ABI of that name.
//!
//! The types here return `c_int`, and all outputs are integers, because a newer driver may return unknown codes. A
//! missing function is a missing capability: its method fails with
//! [`FailureKind::Missing`](crate::driver::FailureKind::Missing).

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY2D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph,
    CUgraphExec, CUgraphNode, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationProp, CUmemPoolProps,
    CUmemPoolPtrExportData, CUmemcpyAttributes, CUmemoryPool, CUmodule, CUstream, CUstreamBatchMemOpParams,
};

use super::status::check;
use crate::driver::Failure;

/// One function of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The documented name, which `cuGetProcAddress` takes.
    pub(crate) name: &'static str,
    /// The first driver API version that has this signature, as `cuDriverGetVersion` counts (12020 is 12.2).
    pub(crate) since: c_int,
    /// The exported name of this signature.
    pub(crate) exported: &'static str,
}

macro_rules! functions {
    ($( $name:ident ( $($argument:ident : $type:ty),* $(,)? ) since $since:literal exported $exported:literal; )+) => {
        /// The functions that were found.
        #[expect(non_snake_case, reason = "fields and methods carry the driver's own names")]
        pub(crate) struct Table {
            $( $name: Option<unsafe extern "C" fn($($type),*) -> c_int>, )+
        }

        #[expect(non_snake_case, reason = "fields and methods carry the driver's own names")]
        impl Table {
            /// Every row.
            pub(crate) const ROWS: &'static [Row] = &[
                $( Row { name: stringify!($name), since: $since, exported: $exported }, )+
            ];

            /// Fills the table.
            ///
            /// # Safety
            /// `find` returns null or the address of the function that the row describes. The library is never
            /// unloaded.
            pub(super) unsafe fn fill(find: impl Fn(&Row) -> *mut c_void) -> Self {
                let mut rows = Self::ROWS.iter();
                Table {
                    $( $name: rows.next().map(&find).filter(|address| !address.is_null()).map(|address| {
                        // SAFETY: the caller vouches that the address is this function's; the type is the one that
                        // the driver API has had for it since the row's version.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(address) }
                    }), )+
                }
            }

            /// Lists the rows that were not found.
            pub(crate) fn missing(&self) -> Vec<&'static Row> {
                let found = [$( self.$name.is_some(), )+];
                Self::ROWS.iter().zip(found).filter(|(_, found)| !found).map(|(row, _)| row).collect()
            }

            $(
                /// Calls the driver's function of this name.
                ///
                /// # Safety
                /// The arguments meet the requirements of the CUDA driver API.
                #[inline]
                #[allow(clippy::too_many_arguments, reason = "a function of the driver's has as many as it has")]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), Failure> {
                    match self.$name {
                        // SAFETY: the address is this function's (see `fill`), the arguments are the caller's promise.
                        Some(function) => check(stringify!($name), unsafe { function($($argument),*) }),
                        None => Err(Failure::missing(stringify!($name))),
                    }
                }
            )+
        }
    };
}

functions! {
    cuInit(flags: c_uint) since 2000 exported "cuInit";
    cuGetErrorName(error: c_int, name: *mut *const c_char) since 6000 exported "cuGetErrorName";

    cuDeviceGet(device: *mut CUdevice, ordinal: c_int) since 2000 exported "cuDeviceGet";
    cuDeviceGetCount(count: *mut c_int) since 2000 exported "cuDeviceGetCount";
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) since 2000 exported "cuDeviceGetName";
    cuDeviceGetUuid(uuid: *mut [u8; 16], device: CUdevice) since 11040 exported "cuDeviceGetUuid_v2";
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice) since 4010 exported "cuDeviceGetPCIBusId";
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) since 2000 exported "cuDeviceGetAttribute";
    cuDeviceTotalMem(bytes: *mut usize, device: CUdevice) since 3020 exported "cuDeviceTotalMem_v2";
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, source: CUdevice, destination: CUdevice) since 8000 exported "cuDeviceGetP2PAttribute";

    cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) since 7000 exported "cuDevicePrimaryCtxGetState";
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) since 7000 exported "cuDevicePrimaryCtxRetain";
    cuDevicePrimaryCtxRelease(device: CUdevice) since 11000 exported "cuDevicePrimaryCtxRelease_v2";
    cuCtxGetCurrent(context: *mut CUcontext) since 4000 exported "cuCtxGetCurrent";
    cuCtxPushCurrent(context: CUcontext) since 4000 exported "cuCtxPushCurrent_v2";
    cuCtxPopCurrent(context: *mut CUcontext) since 4000 exported "cuCtxPopCurrent_v2";
    cuCtxGetDevice(device: *mut CUdevice) since 2000 exported "cuCtxGetDevice";
    cuCtxGetId(context: CUcontext, id: *mut u64) since 12000 exported "cuCtxGetId";

    cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, address: CUdeviceptr) since 7000 exported "cuPointerGetAttributes";
    cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: CUdeviceptr) since 6000 exported "cuPointerSetAttribute";
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: CUdeviceptr, len: usize, kind: c_int, flags: u64) since 11070 exported "cuMemGetHandleForAddressRange";
    cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) since 11030 exported "cuFlushGPUDirectRDMAWrites";
    cuMemGetAddressRange(base: *mut CUdeviceptr, len: *mut usize, address: CUdeviceptr) since 3020 exported "cuMemGetAddressRange_v2";

    cuThreadExchangeStreamCaptureMode(mode: *mut c_int) since 10010 exported "cuThreadExchangeStreamCaptureMode";
    cuStreamIsCapturing(stream: CUstream, status: *mut c_int) since 10000 exported "cuStreamIsCapturing";
    cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) since 9020 exported "cuStreamGetCtx";
    cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) since 5050 exported "cuStreamCreateWithPriority";
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) since 5050 exported "cuCtxGetStreamPriorityRange";
    cuStreamCreate(stream: *mut CUstream, flags: c_uint) since 2000 exported "cuStreamCreate";
    cuStreamDestroy(stream: CUstream) since 4000 exported "cuStreamDestroy_v2";
    cuStreamQuery(stream: CUstream) since 2000 exported "cuStreamQuery";
    cuStreamSynchronize(stream: CUstream) since 2000 exported "cuStreamSynchronize";
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) since 3020 exported "cuStreamWaitEvent";
    cuEventCreate(event: *mut CUevent, flags: c_uint) since 2000 exported "cuEventCreate";
    cuEventDestroy(event: CUevent) since 4000 exported "cuEventDestroy_v2";
    cuEventRecord(event: CUevent, stream: CUstream) since 2000 exported "cuEventRecord";
    cuEventQuery(event: CUevent) since 2000 exported "cuEventQuery";

    cuStreamBatchMemOp(stream: CUstream, count: c_uint, operations: *mut CUstreamBatchMemOpParams, flags: c_uint) since 11070 exported "cuStreamBatchMemOp_v2";

    cuModuleLoadData(module: *mut CUmodule, image: *const c_void) since 2000 exported "cuModuleLoadData";
    cuModuleUnload(module: CUmodule) since 2000 exported "cuModuleUnload";
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) since 2000 exported "cuModuleGetFunction";
    cuLaunchKernel(function: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: CUstream, arguments: *mut *mut c_void, extra: *mut *mut c_void) since 4000 exported "cuLaunchKernel";

    cuGraphCreate(graph: *mut CUgraph, flags: c_uint) since 10000 exported "cuGraphCreate";
    cuGraphAddKernelNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, parameters: *const CUDA_KERNEL_NODE_PARAMS) since 12000 exported "cuGraphAddKernelNode_v2";
    cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) since 11040 exported "cuGraphInstantiateWithFlags";
    cuGraphUpload(executable: CUgraphExec, stream: CUstream) since 11010 exported "cuGraphUpload";
    cuGraphExecKernelNodeSetParams(executable: CUgraphExec, node: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS) since 12000 exported "cuGraphExecKernelNodeSetParams_v2";
    cuGraphLaunch(executable: CUgraphExec, stream: CUstream) since 10000 exported "cuGraphLaunch";
    cuGraphExecDestroy(executable: CUgraphExec) since 10000 exported "cuGraphExecDestroy";
    cuGraphDestroy(graph: CUgraph) since 10000 exported "cuGraphDestroy";

    cuMemcpyAsync(destination: CUdeviceptr, source: CUdeviceptr, len: usize, stream: CUstream) since 4000 exported "cuMemcpyAsync";
    cuMemcpyBatchAsync(destinations: *mut CUdeviceptr, sources: *mut CUdeviceptr, lens: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, first: *mut usize, kinds: usize, stream: CUstream) since 13000 exported "cuMemcpyBatchAsync_v2";
    cuMemcpy2DAsync(copy: *const CUDA_MEMCPY2D, stream: CUstream) since 3020 exported "cuMemcpy2DAsync_v2";
    cuMemcpyHtoD(destination: CUdeviceptr, source: *const c_void, len: usize) since 3020 exported "cuMemcpyHtoD_v2";
    cuMemcpyDtoH(destination: *mut c_void, source: CUdeviceptr, len: usize) since 3020 exported "cuMemcpyDtoH_v2";
    cuMemsetD8(destination: CUdeviceptr, value: u8, len: usize) since 3020 exported "cuMemsetD8_v2";
    cuMemHostRegister(address: *mut c_void, len: usize, flags: c_uint) since 6050 exported "cuMemHostRegister_v2";
    cuMemHostGetDevicePointer(device: *mut CUdeviceptr, address: *mut c_void, flags: c_uint) since 3020 exported "cuMemHostGetDevicePointer_v2";
    cuMemHostUnregister(address: *mut c_void) since 4000 exported "cuMemHostUnregister";

    cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) since 4010 exported "cuIpcGetMemHandle";
    cuIpcOpenMemHandle(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) since 11000 exported "cuIpcOpenMemHandle_v2";
    cuIpcCloseMemHandle(address: CUdeviceptr) since 4010 exported "cuIpcCloseMemHandle";

    cuMemAlloc(address: *mut CUdeviceptr, len: usize) since 3020 exported "cuMemAlloc_v2";
    cuMemFree(address: CUdeviceptr) since 3020 exported "cuMemFree_v2";
    cuMemAllocManaged(address: *mut CUdeviceptr, len: usize, flags: c_uint) since 6000 exported "cuMemAllocManaged";
    cuMemHostAlloc(address: *mut *mut c_void, len: usize, flags: c_uint) since 2020 exported "cuMemHostAlloc";
    cuMemFreeHost(address: *mut c_void) since 2000 exported "cuMemFreeHost";
    cuMemAllocAsync(address: *mut CUdeviceptr, len: usize, stream: CUstream) since 11020 exported "cuMemAllocAsync";
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) since 11020 exported "cuMemFreeAsync";
    cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) since 11020 exported "cuMemPoolCreate";
    cuMemPoolDestroy(pool: CUmemoryPool) since 11020 exported "cuMemPoolDestroy";
    cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize) since 11020 exported "cuMemPoolSetAccess";
    cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, len: usize, pool: CUmemoryPool, stream: CUstream) since 11020 exported "cuMemAllocFromPoolAsync";
    cuMemPoolExportToShareableHandle(shareable: *mut c_void, pool: CUmemoryPool, kind: c_int, flags: u64) since 11020 exported "cuMemPoolExportToShareableHandle";
    cuMemPoolImportFromShareableHandle(pool: *mut CUmemoryPool, shareable: *mut c_void, kind: c_int, flags: u64) since 11020 exported "cuMemPoolImportFromShareableHandle";
    cuMemPoolExportPointer(exported: *mut CUmemPoolPtrExportData, address: CUdeviceptr) since 11020 exported "cuMemPoolExportPointer";
    cuMemPoolImportPointer(address: *mut CUdeviceptr, pool: CUmemoryPool, exported: *mut CUmemPoolPtrExportData) since 11020 exported "cuMemPoolImportPointer";
    cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: c_int) since 10020 exported "cuMemGetAllocationGranularity";
    cuMemCreate(handle: *mut u64, len: usize, prop: *const CUmemAllocationProp, flags: u64) since 10020 exported "cuMemCreate";
    cuMemRelease(handle: u64) since 10020 exported "cuMemRelease";
    cuMemAddressReserve(address: *mut CUdeviceptr, len: usize, alignment: usize, at: CUdeviceptr, flags: u64) since 10020 exported "cuMemAddressReserve";
    cuMemAddressFree(address: CUdeviceptr, len: usize) since 10020 exported "cuMemAddressFree";
    cuMemMap(address: CUdeviceptr, len: usize, offset: usize, handle: u64, flags: u64) since 10020 exported "cuMemMap";
    cuMemUnmap(address: CUdeviceptr, len: usize) since 10020 exported "cuMemUnmap";
    cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) since 11000 exported "cuMemRetainAllocationHandle";
    cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: u64) since 10020 exported "cuMemGetAllocationPropertiesFromHandle";
    cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: c_int, flags: u64) since 10020 exported "cuMemExportToShareableHandle";
    cuMemImportFromShareableHandle(handle: *mut u64, shareable: *mut c_void, kind: c_int) since 10020 exported "cuMemImportFromShareableHandle";
    cuMemSetAccess(address: CUdeviceptr, len: usize, access: *const CUmemAccessDesc, count: usize) since 10020 exported "cuMemSetAccess";
}
