//! The driver calls of a CUDA program that sends and receives.

#![allow(dead_code, reason = "each test executable uses some of it")]
#![allow(non_snake_case, reason = "the driver's own names")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::os::unix::Library;

/// A context, stream, event or graph handle; opaque, and passed from thread to thread.
pub(crate) type Handle = usize;

pub(crate) const LEGACY_STREAM: Handle = 1;
pub(crate) const PER_THREAD_STREAM: Handle = 2;
pub(crate) const BLOCKING_STREAM: c_uint = 0;
pub(crate) const NON_BLOCKING_STREAM: c_uint = 1;
pub(crate) const CAPTURE_GLOBAL: c_int = 0;
pub(crate) const CAPTURE_THREAD_LOCAL: c_int = 1;
pub(crate) const SYNC_MEMOPS: c_int = 6;

macro_rules! functions {
    ($( $name:ident = $symbol:literal ( $($argument:ident : $type:ty),* ); )+) => {
        /// The driver library, as the application has loaded it.
        pub(crate) struct App {
            $( $name: Option<unsafe extern "C" fn($($type),*) -> c_int>, )+
            counts: Option<unsafe extern "C" fn(*const c_char) -> i64>,
            attributes: Option<unsafe extern "C" fn() -> u64>,
            live_events: Option<unsafe extern "C" fn() -> u64>,
            live_streams: Option<unsafe extern "C" fn() -> u64>,
        }

        impl App {
            fn fill(library: &Library) -> App {
                App {
                    // SAFETY: the exported names carry these signatures.
                    $( $name: unsafe { library.get($symbol) }.ok().map(|symbol| *symbol), )+
                    // SAFETY: as sim-cuda documents it.
                    counts: unsafe { library.get("simCudaCallCount") }.ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    attributes: unsafe { library.get("simCudaAttributesAsked") }.ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    live_events: unsafe { library.get("simCudaLiveEvents") }.ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    live_streams: unsafe { library.get("simCudaLiveStreams") }.ok().map(|symbol| *symbol),
                }
            }

            $(
                #[allow(clippy::too_many_arguments, reason = "a function of the driver's has as many as it has")]
                pub(crate) fn $name(&self, $($argument: $type),*) -> Result<(), c_int> {
                    let function = self.$name.unwrap_or_else(|| panic!("the driver lacks {}", $symbol));
                    // SAFETY: tests pass what the driver's documentation asks for.
                    match unsafe { function($($argument),*) } {
                        0 => Ok(()),
                        code => Err(code),
                    }
                }
            )+
        }
    };
}

functions! {
    cuInit = "cuInit"(flags: c_uint);
    cuDeviceGetCount = "cuDeviceGetCount"(count: *mut c_int);
    cuDevicePrimaryCtxGetState = "cuDevicePrimaryCtxGetState"(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2"(device: c_int);
    cuDevicePrimaryCtxReset = "cuDevicePrimaryCtxReset_v2"(device: c_int);
    cuCtxCreate = "cuCtxCreate_v2"(context: *mut Handle, flags: c_uint, device: c_int);
    cuCtxDestroy = "cuCtxDestroy_v2"(context: Handle);
    cuCtxSetCurrent = "cuCtxSetCurrent"(context: Handle);
    cuCtxGetCurrent = "cuCtxGetCurrent"(context: *mut Handle);
    cuCtxPushCurrent = "cuCtxPushCurrent_v2"(context: Handle);
    cuCtxPopCurrent = "cuCtxPopCurrent_v2"(context: *mut Handle);
    cuCtxGetId = "cuCtxGetId"(context: Handle, id: *mut u64);
    cuCtxSynchronize = "cuCtxSynchronize"();
    cuPointerSetAttribute = "cuPointerSetAttribute"(value: *const c_void, attribute: c_int, address: u64);
    cuMemGetAddressRange = "cuMemGetAddressRange_v2"(base: *mut u64, len: *mut usize, address: u64);
    cuMemCreate = "cuMemCreate"(handle: *mut u64, len: usize, properties: *const u64, flags: u64);
    cuMemRelease = "cuMemRelease"(handle: u64);
    cuMemAddressReserve = "cuMemAddressReserve"(address: *mut u64, len: usize, align: usize, at: u64, flags: u64);
    cuMemAddressFree = "cuMemAddressFree"(address: u64, len: usize);
    cuMemMap = "cuMemMap"(address: u64, len: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap = "cuMemUnmap"(address: u64, len: usize);
    cuMemSetAccess = "cuMemSetAccess"(address: u64, len: usize, access: *const u32, count: usize);
    cuMemPoolCreate = "cuMemPoolCreate"(pool: *mut Handle, properties: *const u64);
    cuMemPoolDestroy = "cuMemPoolDestroy"(pool: Handle);
    cuMemAllocFromPoolAsync = "cuMemAllocFromPoolAsync"(address: *mut u64, len: usize, pool: Handle, stream: Handle);
    cuMemFreeAsync = "cuMemFreeAsync"(address: u64, stream: Handle);
    cuMemAlloc = "cuMemAlloc_v2"(address: *mut u64, len: usize);
    cuMemFree = "cuMemFree_v2"(address: u64);
    cuMemcpyHtoD = "cuMemcpyHtoD_v2"(destination: u64, source: *const c_void, len: usize);
    cuMemcpyHtoD_ptds = "cuMemcpyHtoD_v2_ptds"(destination: u64, source: *const c_void, len: usize);
    cuMemcpyDtoH = "cuMemcpyDtoH_v2"(destination: *mut c_void, source: u64, len: usize);
    cuMemcpyAsync = "cuMemcpyAsync"(destination: u64, source: u64, len: usize, stream: Handle);
    cuMemsetD8 = "cuMemsetD8_v2"(destination: u64, value: u8, len: usize);
    cuMemsetD8Async = "cuMemsetD8Async"(destination: u64, value: u8, len: usize, stream: Handle);
    cuMemHostAlloc = "cuMemHostAlloc"(address: *mut *mut c_void, len: usize, flags: c_uint);
    cuMemFreeHost = "cuMemFreeHost"(address: *mut c_void);
    cuMemHostRegister = "cuMemHostRegister_v2"(address: *mut c_void, len: usize, flags: c_uint);
    cuMemHostUnregister = "cuMemHostUnregister"(address: *mut c_void);
    cuStreamCreate = "cuStreamCreate"(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy = "cuStreamDestroy_v2"(stream: Handle);
    cuStreamQuery = "cuStreamQuery"(stream: Handle);
    cuStreamSynchronize = "cuStreamSynchronize"(stream: Handle);
    cuStreamWaitEvent = "cuStreamWaitEvent"(stream: Handle, event: Handle, flags: c_uint);
    cuStreamWaitValue32 = "cuStreamWaitValue32_v2"(stream: Handle, address: u64, value: u32, flags: c_uint);
    cuStreamIsCapturing = "cuStreamIsCapturing"(stream: Handle, status: *mut c_int);
    cuStreamBeginCapture = "cuStreamBeginCapture_v2"(stream: Handle, mode: c_int);
    cuStreamEndCapture = "cuStreamEndCapture"(stream: Handle, graph: *mut Handle);
    cuGraphDestroy = "cuGraphDestroy"(graph: Handle);
    cuThreadExchangeStreamCaptureMode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_int);
    cuCtxEnablePeerAccess = "cuCtxEnablePeerAccess"(context: Handle, flags: c_uint);
    cuModuleLoadData = "cuModuleLoadData"(module: *mut Handle, image: *const c_char);
    cuModuleGetFunction = "cuModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    cuLaunchKernel = "cuLaunchKernel"(function: Handle, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    cuEventCreate = "cuEventCreate"(event: *mut Handle, flags: c_uint);
    cuEventRecord = "cuEventRecord"(event: Handle, stream: Handle);
    cuEventQuery = "cuEventQuery"(event: Handle);
    cuEventDestroy = "cuEventDestroy_v2"(event: Handle);
}

impl App {
    /// Loads the driver: from a folder, or by the loader's search.
    pub(crate) fn load(folder: Option<&Path>) -> Option<App> {
        let name = folder.map_or_else(|| "libcuda.so.1".into(), |folder| folder.join("libcuda.so.1"));
        // SAFETY: a driver library, or the double of one.
        let library = unsafe { Library::new(name) }.ok()?;
        let app = App::fill(&library);
        std::mem::forget(library);
        Some(app)
    }

    /// Returns how often a function was called; `None` on a real driver.
    pub(crate) fn calls(&self, name: &std::ffi::CStr) -> Option<i64> {
        // SAFETY: a terminated name.
        self.counts.map(|count| unsafe { count(name.as_ptr()) })
    }

    /// Returns the number of queried pointer attributes; `None` on a real driver.
    pub(crate) fn attributes(&self) -> Option<u64> {
        // SAFETY: takes nothing and counts.
        self.attributes.map(|count| unsafe { count() })
    }

    /// Returns the number of existing events and streams; `None` on a real driver.
    pub(crate) fn live(&self) -> Option<(u64, u64)> {
        // SAFETY: both take nothing and count.
        Some(unsafe { (self.live_events?(), self.live_streams?()) })
    }

    /// Checks whether the driver has the variants for per-thread default streams.
    pub(crate) fn has_per_thread_streams(&self) -> bool {
        self.cuMemcpyHtoD_ptds.is_some()
    }

    pub(crate) fn simulated(&self) -> bool {
        self.counts.is_some()
    }

    pub(crate) fn device_count(&self) -> u32 {
        let mut count = 0;
        self.cuDeviceGetCount(&raw mut count).unwrap();
        u32::try_from(count).unwrap()
    }

    pub(crate) fn current(&self) -> Handle {
        let mut context = 0;
        self.cuCtxGetCurrent(&raw mut context).unwrap();
        context
    }

    /// Makes a device's primary context current, like the first call of a CUDA program.
    pub(crate) fn use_device(&self, device: c_int) -> Handle {
        let mut context = 0;
        self.cuDevicePrimaryCtxRetain(&raw mut context, device).unwrap();
        self.cuCtxSetCurrent(context).unwrap();
        context
    }

    pub(crate) fn primary_active(&self, device: c_int) -> bool {
        let (mut flags, mut active) = (0, 0);
        self.cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active).unwrap();
        active != 0
    }

    /// Creates a context of the program's own and makes it current.
    pub(crate) fn create_context(&self, device: c_int) -> Handle {
        let mut context = 0;
        self.cuCtxCreate(&raw mut context, 0, device).unwrap();
        context
    }

    pub(crate) fn malloc(&self, len: usize) -> u64 {
        let mut address = 0;
        self.cuMemAlloc(&raw mut address, len).unwrap();
        address
    }

    pub(crate) fn stream(&self, flags: c_uint) -> Handle {
        let mut stream = 0;
        self.cuStreamCreate(&raw mut stream, flags).unwrap();
        stream
    }

    pub(crate) fn event(&self) -> Handle {
        let mut event = 0;
        self.cuEventCreate(&raw mut event, 2).unwrap();
        event
    }

    /// As `cudaMemcpy` from pageable memory.
    pub(crate) fn upload(&self, address: u64, bytes: &[u8]) {
        self.cuMemcpyHtoD(address, bytes.as_ptr().cast(), bytes.len()).unwrap();
    }

    pub(crate) fn download(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.cuMemcpyDtoH(bytes.as_mut_ptr().cast(), address, len).unwrap();
        bytes
    }
}
