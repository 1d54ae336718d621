//! What a program does with its stream besides messages: copies, kernels, graphs, and waits.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use cableway::{DeviceIndex, HIP_LIBDIR_VARIABLE, LIBDIR_VARIABLE, Vendor, World};
use libloading::os::unix::Library;

use crate::cli::Failure;

/// A context, stream, graph, module or function of the driver's.
type Handle = *mut c_void;

/// `CU_STREAM_NON_BLOCKING`: the default stream holds up nothing.
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: c_int = 1;
const DEFAULT_STREAM: Handle = std::ptr::null_mut();

/// Every thread of a block runs as long.
const BLOCKS: c_uint = 1;
const THREADS: c_uint = 512;
/// A zero byte ends the text, as the driver requires.
const SPIN: &str = concat!(include_str!("spin.ptx"), "\0");
const SPIN_NAME: &CStr = c"cableway_spin";

macro_rules! functions {
    ($( $name:ident = $cuda:literal or $hip:literal ( $($argument:ident : $type:ty),* ); )+) => {
        /// The functions of a driver.
        struct Functions {
            $( $name: Option<unsafe extern "C" fn($($type),*) -> c_int>, )+
        }

        impl Functions {
            /// # Safety
            /// The library is the driver of this vendor, and is never unloaded.
            unsafe fn of(library: &Library, vendor: Vendor) -> Self {
                let name = |cuda: &'static str, hip: &'static str| if vendor == Vendor::Nvidia { cuda } else { hip };
                Functions {
                    // SAFETY: the exported names carry these signatures.
                    $( $name: unsafe { library.get(name($cuda, $hip)) }.ok().map(|symbol| *symbol), )+
                }
            }

            $(
                /// # Safety
                /// The arguments meet the requirements of the driver's function.
                #[allow(clippy::too_many_arguments, reason = "a function of the driver's has as many as it has")]
                unsafe fn $name(&self, $($argument: $type),*) -> Result<(), Failure> {
                    let missing = || Failure::failed(1, format!("the driver has no {}", $cuda));
                    // SAFETY: the caller's promise.
                    match unsafe { self.$name.ok_or_else(missing)?($($argument),*) } {
                        0 => Ok(()),
                        code => Err(Failure::failed(1, format!("the driver's {} returned {code}", $cuda))),
                    }
                }
            )+
        }
    };
}

functions! {
    init = "cuInit" or "hipInit"(flags: c_uint);
    retain = "cuDevicePrimaryCtxRetain" or ""(context: *mut Handle, device: c_int);
    set_current = "cuCtxSetCurrent" or ""(context: Handle);
    set_device = "" or "hipSetDevice"(device: c_int);
    new_stream = "cuStreamCreate" or "hipStreamCreateWithFlags"(stream: *mut Handle, flags: c_uint);
    destroy_stream = "cuStreamDestroy_v2" or "hipStreamDestroy"(stream: Handle);
    synchronise = "cuStreamSynchronize" or "hipStreamSynchronize"(stream: Handle);
    copy = "cuMemcpyAsync" or "hipMemcpyDtoDAsync"(to: u64, from: u64, len: usize, stream: Handle);
    begin_capture = "cuStreamBeginCapture_v2" or "hipStreamBeginCapture"(stream: Handle, mode: c_int);
    end_capture = "cuStreamEndCapture" or "hipStreamEndCapture"(stream: Handle, graph: *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags" or ""(executable: *mut Handle, graph: Handle, flags: u64);
    launch_graph = "cuGraphLaunch" or "hipGraphLaunch"(executable: Handle, stream: Handle);
    destroy_executable = "cuGraphExecDestroy" or "hipGraphExecDestroy"(executable: Handle);
    destroy_graph = "cuGraphDestroy" or "hipGraphDestroy"(graph: Handle);
    load = "cuModuleLoadData" or ""(module: *mut Handle, image: *const c_char);
    function = "cuModuleGetFunction" or ""(function: *mut Handle, module: Handle, name: *const c_char);
    launch = "cuLaunchKernel" or ""(function: Handle, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void);
}

/// A stream of this program.
pub(super) struct ProgramStream {
    functions: Functions,
    handle: Handle,
    vendor: Vendor,
    kernel: Option<Kernel>,
}

/// A kernel that runs for some time.
struct Kernel {
    function: Handle,
    nanoseconds: u64,
}

/// A graph that can be launched in the stream that captured it.
pub(super) struct Graph<'a> {
    stream: &'a ProgramStream,
    executable: Handle,
}

impl ProgramStream {
    /// Makes a stream in the primary context of a device. `folders` are those of the command line that may hold drivers.
    pub(super) fn new(world: &World, device: DeviceIndex, folders: &[&Path]) -> Result<Self, Failure> {
        let facts = world.devices().facts().map_err(|error| Failure::failed(1, error))?;
        let mine = facts.devices.iter().find(|facts| facts.index == device);
        let vendor = mine.map(|facts| facts.vendor).ok_or_else(|| Failure::failed(1, "the device is gone"))?;
        // The devices of one driver follow each other in its order.
        let before = facts.devices.iter().take_while(|facts| facts.index != device);
        let ordinal = before.filter(|facts| facts.vendor == vendor).count() as c_int;
        let path = library(vendor, folders);
        // SAFETY: the driver, which the process has loaded before.
        let library = unsafe { Library::new(&path) }
            .map_err(|error| Failure::failed(1, format!("cannot load {}: {error}", path.display())))?;
        // SAFETY: the library is forgotten, so that it is never unloaded.
        let functions = unsafe { Functions::of(&library, vendor) };
        std::mem::forget(library);
        let (mut context, mut handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: fills in the context of a device that exists, and a stream in it.
        unsafe {
            functions.init(0)?;
            if vendor == Vendor::Nvidia {
                functions.retain(&raw mut context, ordinal)?;
                functions.set_current(context)?;
            } else {
                functions.set_device(ordinal)?;
            }
            functions.new_stream(&raw mut handle, NON_BLOCKING)?;
        }
        Ok(ProgramStream { functions, handle, vendor, kernel: None })
    }

    /// Loads the kernel that [`spin`](Self::spin) launches.
    pub(super) fn load_kernel(&mut self, nanoseconds: u64) -> Result<(), Failure> {
        if self.vendor != Vendor::Nvidia {
            return Err(Failure::usage("--kernel: only a device of NVIDIA's runs the kernel; leave --kernel out"));
        }
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a terminated text, and the name of its function. The module is never unloaded.
        unsafe {
            self.functions.load(&raw mut module, SPIN.as_ptr().cast())?;
            self.functions.function(&raw mut function, module, SPIN_NAME.as_ptr())?;
        }
        self.kernel = Some(Kernel { function, nanoseconds });
        Ok(())
    }

    /// Returns the handle, for [`World::stream`].
    pub(super) fn handle(&self) -> (Vendor, *mut c_void) {
        (self.vendor, self.handle)
    }

    /// Waits until the stream has passed everything.
    pub(super) fn wait(&self) -> Result<(), Failure> {
        // SAFETY: the stream exists.
        unsafe { self.functions.synchronise(self.handle) }
    }

    /// Waits until copies that the program has made in the default stream are done.
    pub(super) fn settle(&self) -> Result<(), Failure> {
        // SAFETY: the default stream always exists.
        unsafe { self.functions.synchronise(DEFAULT_STREAM) }
    }

    /// Adds a copy.
    ///
    /// # Safety
    /// The memory is device or pinned memory, which the stream may access until it has passed the copy.
    pub(super) unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> Result<(), Failure> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.functions.copy(to as u64, from as u64, len, self.handle) }
    }

    /// Adds the kernel, if there is one.
    pub(super) fn spin(&self) -> Result<(), Failure> {
        let Some(Kernel { function, mut nanoseconds }) = self.kernel else { return Ok(()) };
        let mut arguments = [(&raw mut nanoseconds).cast::<c_void>()];
        let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: a function of a loaded module with its one argument, which the driver copies.
        unsafe { self.functions.launch(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, self.handle, arguments, none) }
    }

    /// Captures what `work` adds to the stream.
    pub(super) fn capture(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<Graph<'_>, Failure> {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a stream that exists.
        unsafe { self.functions.begin_capture(self.handle, THREAD_LOCAL) }?;
        let worked = work();
        // SAFETY: fills in the graph.
        let ended = unsafe { self.functions.end_capture(self.handle, &raw mut graph) };
        worked.and(ended)?;
        // SAFETY: a graph that was captured, which is not used after it is destroyed.
        unsafe {
            self.functions.instantiate(&raw mut executable, graph, 0)?;
            self.functions.destroy_graph(graph)?;
        }
        Ok(Graph { stream: self, executable })
    }
}

impl Graph<'_> {
    pub(super) fn launch(&self) -> Result<(), Failure> {
        // SAFETY: both exist.
        unsafe { self.stream.functions.launch_graph(self.executable, self.stream.handle) }
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: destroyed once. The driver waits for launches that are not done.
        let _ = unsafe { self.stream.functions.destroy_executable(self.executable) };
    }
}

impl Drop for ProgramStream {
    fn drop(&mut self) {
        // SAFETY: destroyed once, after everything that used it.
        let _ = unsafe { self.functions.destroy_stream(self.handle) };
    }
}

/// Returns the file of a vendor's driver: that in a named folder, or the loader's.
fn library(vendor: Vendor, folders: &[&Path]) -> PathBuf {
    let (variable, file) = match vendor {
        Vendor::Nvidia => (LIBDIR_VARIABLE, "libcuda.so.1"),
        _ => (HIP_LIBDIR_VARIABLE, "libamdhip64.so"),
    };
    let named = std::env::var_os(variable).map(PathBuf::from);
    let folders = folders.iter().map(|folder| (*folder).to_owned()).chain(named);
    folders.map(|folder| folder.join(file)).find(|path| path.is_file()).unwrap_or_else(|| file.into())
}
