//! The functions of the library that Cableway calls, one row each, with their signatures in the releases 5.0 to 7. A
//! function that a release lacks is a missing capability.
//!
//! Streams, events, modules and functions are pointers, and device addresses are `void *`. All of them are integers of
//! the same size here. Enumerations are `c_int`, because a newer library may return unknown values.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::status::failure;
use crate::driver::Failure;

/// `hipIpcMemHandle_t` (`HIP_IPC_HANDLE_SIZE` bytes), which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// `hipPointerAttribute_t`, the same 32 bytes in the releases 5.0 to 7.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct PointerAttributes {
    pub(super) kind: c_int,
    pub(super) device: c_int,
    pub(super) device_pointer: u64,
    pub(super) host_pointer: u64,
    pub(super) is_managed: c_int,
    pub(super) flags: c_uint,
}

/// `hipMemAllocationProp`, with its location.
#[repr(C)]
pub(super) struct Properties {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: [c_int; 2],
    pub(super) metadata: usize,
    pub(super) flags: u64,
}

/// `hipMemAccessDesc`
#[repr(C)]
pub(super) struct Access {
    pub(super) location: [c_int; 2],
    pub(super) flags: c_int,
}

const _: () = assert!(size_of::<PointerAttributes>() == 32 && size_of::<Properties>() == 32);

macro_rules! functions {
    ($( $name:ident ( $($argument:ident : $type:ty),* $(,)? ); )+) => {
        /// The functions that were found.
        #[expect(non_snake_case, reason = "fields and methods carry the library's own names")]
        pub(super) struct Table {
            $( $name: Option<unsafe extern "C" fn($($type),*) -> c_int>, )+
            /// Returns and clears the thread's last error.
            last_error: unsafe extern "C" fn() -> c_int,
        }

        #[expect(non_snake_case, reason = "fields and methods carry the library's own names")]
        impl Table {
            /// Fills the table.
            ///
            /// # Safety
            /// `find` returns null or the address of the library's function of this name. The library is never
            /// unloaded.
            pub(super) unsafe fn fill(find: impl Fn(&str) -> *mut c_void) -> Result<Self, String> {
                let last_error = find("hipGetLastError");
                if last_error.is_null() {
                    return Err("it has no hipGetLastError".to_owned());
                }
                Ok(Table {
                    $( $name: Some(find(stringify!($name))).filter(|address| !address.is_null()).map(|address| {
                        // SAFETY: the caller vouches that the address is this function's, whose signature this is.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(address) }
                    }), )+
                    // SAFETY: as above.
                    last_error: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(last_error)
                    },
                })
            }

            /// Lists the functions that were not found.
            pub(super) fn missing(&self) -> Vec<&'static str> {
                let all = [$( (stringify!($name), self.$name.is_some()), )+];
                all.into_iter().filter(|(_, found)| !found).map(|(name, _)| name).collect()
            }

            $(
                /// Calls the library's function of this name.
                ///
                /// # Safety
                /// The arguments meet the requirements of the HIP API.
                #[inline]
                #[allow(clippy::too_many_arguments, reason = "a function of the library's has as many as it has")]
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), Failure> {
                    match self.$name {
                        // SAFETY: the address is this function's (see `fill`), the arguments are the caller's promise.
                        Some(function) => match unsafe { function($($argument),*) } {
                            0 => Ok(()),
                            code => Err(self.failed(stringify!($name), code)),
                        },
                        None => Err(Failure::missing(stringify!($name))),
                    }
                }
            )+
        }
    };
}

impl Table {
    /// Takes a failure back from the thread's last error, where the program would find it.
    #[cold]
    fn failed(&self, call: &'static str, code: c_int) -> Failure {
        // SAFETY: takes nothing.
        unsafe { (self.last_error)() };
        failure(call, code)
    }
}

functions! {
    hipInit(flags: c_uint);

    hipGetDeviceCount(count: *mut c_int);
    hipGetDevice(device: *mut c_int);
    hipSetDevice(device: c_int);
    hipDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    hipDeviceGetUuid(uuid: *mut [u8; 16], device: c_int);
    hipDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int);
    hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    hipDeviceTotalMem(bytes: *mut usize, device: c_int);
    hipDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, source: c_int, destination: c_int);
    hipGetDeviceProperties(properties: *mut c_void, device: c_int);
    hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int);
    hipDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);

    hipPointerGetAttributes(attributes: *mut PointerAttributes, address: u64);
    hipPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64);
    hipMemGetAddressRange(base: *mut u64, len: *mut usize, address: u64);

    hipThreadExchangeStreamCaptureMode(mode: *mut c_int);
    hipStreamIsCapturing(stream: usize, status: *mut c_int);
    hipStreamCreateWithFlags(stream: *mut usize, flags: c_uint);
    hipStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int);
    hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    hipStreamDestroy(stream: usize);
    hipStreamQuery(stream: usize);
    hipStreamSynchronize(stream: usize);
    hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint);
    hipStreamWriteValue32(stream: usize, address: u64, value: u32, flags: c_uint);
    hipStreamWriteValue64(stream: usize, address: u64, value: u64, flags: c_uint);
    hipStreamWaitValue32(stream: usize, address: u64, value: u32, flags: c_uint, mask: u32);
    hipStreamWaitValue64(stream: usize, address: u64, value: u64, flags: c_uint, mask: u64);
    hipStreamGetDevice(stream: usize, device: *mut c_int);
    hipEventCreateWithFlags(event: *mut usize, flags: c_uint);
    hipEventDestroy(event: usize);
    hipEventRecord(event: usize, stream: usize);
    hipEventQuery(event: usize);

    hipModuleLoadData(module: *mut usize, image: *const c_void);
    hipModuleUnload(module: usize);
    hipModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
    hipModuleLaunchKernel(function: usize, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: usize, arguments: *mut *mut c_void, extra: *mut *mut c_void);

    hipMemcpyAsync(destination: u64, source: u64, len: usize, kind: c_int, stream: usize);
    hipMemcpy2DAsync(destination: u64, pitch: usize, source: u64, source_pitch: usize, width: usize, height: usize, kind: c_int, stream: usize);
    hipMemcpyHtoD(destination: u64, source: *const c_void, len: usize);
    hipMemcpyDtoH(destination: *mut c_void, source: u64, len: usize);
    hipMemsetD8(destination: u64, value: u8, len: usize);
    hipHostRegister(address: *mut c_void, len: usize, flags: c_uint);
    hipHostUnregister(address: *mut c_void);
    hipHostGetDevicePointer(device: *mut u64, address: *mut c_void, flags: c_uint);

    hipIpcGetMemHandle(handle: *mut IpcHandle, address: u64);
    hipIpcOpenMemHandle(address: *mut u64, handle: IpcHandle, flags: c_uint);
    hipIpcCloseMemHandle(address: u64);

    hipMalloc(address: *mut u64, len: usize);
    hipFree(address: u64);
    hipMallocManaged(address: *mut u64, len: usize, flags: c_uint);
    hipHostMalloc(address: *mut u64, len: usize, flags: c_uint);
    hipHostFree(address: u64);
    hipMallocAsync(address: *mut u64, len: usize, stream: usize);
    hipFreeAsync(address: u64, stream: usize);
    hipMemGetAllocationGranularity(granularity: *mut usize, properties: *const Properties, option: c_int);
    hipMemCreate(handle: *mut usize, len: usize, properties: *const Properties, flags: u64);
    hipMemRelease(handle: usize);
    hipMemAddressReserve(address: *mut u64, len: usize, alignment: usize, at: u64, flags: u64);
    hipMemAddressFree(address: u64, len: usize);
    hipMemMap(address: u64, len: usize, offset: usize, handle: usize, flags: u64);
    hipMemUnmap(address: u64, len: usize);
    hipMemSetAccess(address: u64, len: usize, access: *const Access, count: usize);
}
