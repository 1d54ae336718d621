//! The driver calls of a program that sends and receives: CUDA's, or the ones of HIP that do the same. HIP's functions have
//! the same parameters, except that it has no contexts.

#![allow(dead_code, reason = "each test executable uses some of it")]
#![allow(non_snake_case, reason = "the driver's own names")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::os::unix::Library;
use sim_cuda::Vendor;

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
    ($( $name:ident = $symbol:literal or $hip:literal ( $($argument:ident : $type:ty),* ); )+) => {
        /// The driver library, as the application has loaded it.
        pub(crate) struct App {
            $( $name: Option<unsafe extern "C" fn($($type),*) -> c_int>, )+
            pub(crate) vendor: Vendor,
            counts: Option<unsafe extern "C" fn(*const c_char) -> i64>,
            attributes: Option<unsafe extern "C" fn() -> u64>,
            live_events: Option<unsafe extern "C" fn() -> u64>,
            live_streams: Option<unsafe extern "C" fn() -> u64>,
        }

        impl App {
            fn fill(library: &Library, vendor: Vendor) -> App {
                let amd = vendor == Vendor::Amd;
                let choose = |cuda: &'static str, hip: &'static str| if amd { hip } else { cuda };
                App {
                    vendor,
                    // SAFETY: the exported names carry these signatures.
                    $( $name: unsafe { library.get(choose($symbol, $hip)) }.ok().map(|symbol| *symbol), )+
                    // SAFETY: as sim-cuda documents it.
                    counts: unsafe { library.get(choose("simCudaCallCount", "simHipCallCount")) }.ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    attributes: unsafe { library.get(choose("simCudaAttributesAsked", "simHipAttributesAsked")) }.ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    live_events: unsafe { library.get(choose("simCudaLiveEvents", "simHipLiveEvents")) }.ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    live_streams: unsafe { library.get(choose("simCudaLiveStreams", "simHipLiveStreams")) }.ok().map(|symbol| *symbol),
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
    cuInit = "cuInit" or "hipInit"(flags: c_uint);
    hipSetDevice = "" or "hipSetDevice"(device: c_int);
    hipStreamWaitValue32 = "" or "hipStreamWaitValue32"(stream: Handle, address: u64, value: u32, flags: c_uint, mask: u32);
    cuDeviceGetCount = "cuDeviceGetCount" or "hipGetDeviceCount"(count: *mut c_int);
    cuDevicePrimaryCtxGetState = "cuDevicePrimaryCtxGetState" or "hipDevicePrimaryCtxGetState"(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" or ""(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2" or ""(device: c_int);
    cuDevicePrimaryCtxReset = "cuDevicePrimaryCtxReset_v2" or ""(device: c_int);
    cuCtxCreate = "cuCtxCreate_v2" or ""(context: *mut Handle, flags: c_uint, device: c_int);
    cuCtxDestroy = "cuCtxDestroy_v2" or ""(context: Handle);
    cuCtxSetCurrent = "cuCtxSetCurrent" or ""(context: Handle);
    cuCtxGetCurrent = "cuCtxGetCurrent" or ""(context: *mut Handle);
    cuCtxPushCurrent = "cuCtxPushCurrent_v2" or ""(context: Handle);
    cuCtxPopCurrent = "cuCtxPopCurrent_v2" or ""(context: *mut Handle);
    cuCtxGetId = "cuCtxGetId" or ""(context: Handle, id: *mut u64);
    cuCtxSynchronize = "cuCtxSynchronize" or "hipDeviceSynchronize"();
    cuPointerSetAttribute = "cuPointerSetAttribute" or ""(value: *const c_void, attribute: c_int, address: u64);
    cuMemGetAddressRange = "cuMemGetAddressRange_v2" or "hipMemGetAddressRange"(base: *mut u64, len: *mut usize, address: u64);
    cuMemCreate = "cuMemCreate" or ""(handle: *mut u64, len: usize, properties: *const u64, flags: u64);
    cuMemRelease = "cuMemRelease" or ""(handle: u64);
    cuMemAddressReserve = "cuMemAddressReserve" or ""(address: *mut u64, len: usize, align: usize, at: u64, flags: u64);
    cuMemAddressFree = "cuMemAddressFree" or ""(address: u64, len: usize);
    cuMemMap = "cuMemMap" or ""(address: u64, len: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap = "cuMemUnmap" or ""(address: u64, len: usize);
    cuMemSetAccess = "cuMemSetAccess" or ""(address: u64, len: usize, access: *const u32, count: usize);
    cuMemPoolCreate = "cuMemPoolCreate" or ""(pool: *mut Handle, properties: *const u64);
    cuMemPoolDestroy = "cuMemPoolDestroy" or ""(pool: Handle);
    cuMemAllocFromPoolAsync = "cuMemAllocFromPoolAsync" or ""(address: *mut u64, len: usize, pool: Handle, stream: Handle);
    cuMemFreeAsync = "cuMemFreeAsync" or "hipFreeAsync"(address: u64, stream: Handle);
    cuMemAlloc = "cuMemAlloc_v2" or "hipMalloc"(address: *mut u64, len: usize);
    cuMemFree = "cuMemFree_v2" or "hipFree"(address: u64);
    cuMemcpyHtoD = "cuMemcpyHtoD_v2" or "hipMemcpyHtoD"(destination: u64, source: *const c_void, len: usize);
    cuMemcpyHtoD_ptds = "cuMemcpyHtoD_v2_ptds" or ""(destination: u64, source: *const c_void, len: usize);
    cuMemcpyDtoH = "cuMemcpyDtoH_v2" or "hipMemcpyDtoH"(destination: *mut c_void, source: u64, len: usize);
    cuMemcpyAsync = "cuMemcpyAsync" or "hipMemcpyDtoDAsync"(destination: u64, source: u64, len: usize, stream: Handle);
    cuMemsetD8 = "cuMemsetD8_v2" or "hipMemsetD8"(destination: u64, value: u8, len: usize);
    cuMemsetD8Async = "cuMemsetD8Async" or "hipMemsetD8Async"(destination: u64, value: u8, len: usize, stream: Handle);
    cuMemHostAlloc = "cuMemHostAlloc" or "hipHostMalloc"(address: *mut *mut c_void, len: usize, flags: c_uint);
    cuMemFreeHost = "cuMemFreeHost" or "hipHostFree"(address: *mut c_void);
    cuMemHostRegister = "cuMemHostRegister_v2" or "hipHostRegister"(address: *mut c_void, len: usize, flags: c_uint);
    cuMemHostUnregister = "cuMemHostUnregister" or "hipHostUnregister"(address: *mut c_void);
    cuStreamCreate = "cuStreamCreate" or "hipStreamCreateWithFlags"(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy = "cuStreamDestroy_v2" or "hipStreamDestroy"(stream: Handle);
    cuStreamQuery = "cuStreamQuery" or "hipStreamQuery"(stream: Handle);
    cuStreamSynchronize = "cuStreamSynchronize" or "hipStreamSynchronize"(stream: Handle);
    cuStreamWaitEvent = "cuStreamWaitEvent" or "hipStreamWaitEvent"(stream: Handle, event: Handle, flags: c_uint);
    cuStreamWaitValue32 = "cuStreamWaitValue32_v2" or ""(stream: Handle, address: u64, value: u32, flags: c_uint);
    cuStreamIsCapturing = "cuStreamIsCapturing" or "hipStreamIsCapturing"(stream: Handle, status: *mut c_int);
    cuStreamBeginCapture = "cuStreamBeginCapture_v2" or "hipStreamBeginCapture"(stream: Handle, mode: c_int);
    cuStreamEndCapture = "cuStreamEndCapture" or "hipStreamEndCapture"(stream: Handle, graph: *mut Handle);
    cuGraphInstantiate = "cuGraphInstantiateWithFlags" or ""(executable: *mut Handle, graph: Handle, flags: u64);
    cuGraphLaunch = "cuGraphLaunch" or ""(executable: Handle, stream: Handle);
    cuGraphExecDestroy = "cuGraphExecDestroy" or ""(executable: Handle);
    cuGraphDestroy = "cuGraphDestroy" or "hipGraphDestroy"(graph: Handle);
    cuThreadExchangeStreamCaptureMode = "cuThreadExchangeStreamCaptureMode" or "hipThreadExchangeStreamCaptureMode"(mode: *mut c_int);
    cuCtxEnablePeerAccess = "cuCtxEnablePeerAccess" or ""(context: Handle, flags: c_uint);
    cuModuleLoadData = "cuModuleLoadData" or ""(module: *mut Handle, image: *const c_char);
    cuModuleGetFunction = "cuModuleGetFunction" or ""(function: *mut Handle, module: Handle, name: *const c_char);
    cuLaunchKernel = "cuLaunchKernel" or ""(function: Handle, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    cuEventCreate = "cuEventCreate" or "hipEventCreateWithFlags"(event: *mut Handle, flags: c_uint);
    cuEventRecord = "cuEventRecord" or "hipEventRecord"(event: Handle, stream: Handle);
    cuEventQuery = "cuEventQuery" or "hipEventQuery"(event: Handle);
    cuEventDestroy = "cuEventDestroy_v2" or "hipEventDestroy"(event: Handle);
}

impl App {
    /// Loads the driver: from a folder, or by the loader's search.
    pub(crate) fn load(folder: Option<&Path>) -> Option<App> {
        let vendor = Vendor::tested();
        let name = folder.map_or_else(|| vendor.library().into(), |folder| folder.join(vendor.library()));
        // SAFETY: a driver library, or the double of one.
        let library = unsafe { Library::new(name) }.ok()?;
        let app = App::fill(&library, vendor);
        std::mem::forget(library);
        Some(app)
    }

    /// Returns how many kernels were launched, alone or in graphs; `None` on a real driver.
    pub(crate) fn launches(&self) -> Option<i64> {
        self.calls(c"cuLaunchKernel").zip(self.calls(c"cuGraphLaunch")).map(|(alone, by_graph)| alone + by_graph)
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
        if self.vendor == Vendor::Amd {
            self.hipSetDevice(device).unwrap();
            let stream = self.stream(BLOCKING_STREAM);
            self.cuStreamDestroy(stream).unwrap();
            return 0;
        }
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

    /// Makes a stream wait until a word has a value.
    pub(crate) fn wait_value(&self, stream: Handle, address: u64, value: u32, flags: c_uint) {
        match self.vendor {
            Vendor::Nvidia => self.cuStreamWaitValue32(stream, address, value, flags),
            Vendor::Amd => self.hipStreamWaitValue32(stream, address, value, flags, u32::MAX),
        }
        .unwrap();
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
