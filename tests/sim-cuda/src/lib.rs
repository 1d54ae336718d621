//! A double of NVIDIA's `libcuda.so.1` for machines without a GPU. It is for tests only: no figure and no claim about a
//! device comes from it.
//!
//! Tests load it by path, as any program loads a driver, from the folder that [`library_folder`] names. It behaves as
//! the driver may, not as it usually does:
//! - Device memory is a mapping without access rights, so a CPU access faults. The copy functions use a second mapping
//!   that only the driver knows.
//! - Work runs late, in a separate thread. Streams run in any order that their dependencies permit, and the bytes of
//!   one copy arrive in any order.
//! - `cuMemcpy` from pageable memory, `cuMemset` and copies within devices return before they are complete.
//! - Handles and addresses are reused as soon as they are free. Ids that the driver promises not to reuse are not
//!   reused.
//! - Symbols of old ABIs exist, as in the driver, and always fail.
//! - Where a real driver would dereference a dangling handle (for example a stream of a destroyed context), the process
//!   ends with a line that names the handle. The same happens if a pool's owner frees memory that another process has
//!   imported.
//! - A kernel of a program that executes `trap` ends the work of all contexts of the process. Later calls fail.
//!
//! Error codes, the width of attributes, the calls that invalidate a stream capture, and the effect of stale handles of
//! other processes match driver 580 on an H200. The tests of this package pass on that driver, too
//! (`CABLEWAY_CUDA_LIBDIR`). Cableway's kernels are identified by name; the PTX of other kernels is executed, as far as it
//! is plain. Not implemented: arrays, graphs other than captured ones of one stream without Cableway's kernels and those of one kernel of Cableway, dma-bufs that a device accepts, functions whose null stream is the per-thread one.
//!
//! # Environment, read once
//! | variable | meaning |
//! |---|---|
//! | `SIM_CUDA_DEVICES` | number of devices, 2 by default; 0 makes `cuInit` fail with `CUDA_ERROR_NO_DEVICE` |
//! | `CUDA_VISIBLE_DEVICES` | list of their numbers, as the driver reads it |
//! | `SIM_CUDA_MEMORY` | bytes of memory of each device and process (`K`, `M`, `G`), 8G by default; only pages that were touched cost |
//! | `SIM_CUDA_DELAY_US` | mean delay before a stream's next operation, 5 by default |
//! | `SIM_CUDA_KERNEL_DELAY_US` | the delay of some blocks of each kernel, 0 by default |
//! | `SIM_CUDA_SEED` | seed of every random choice, 1 by default |
//! | `SIM_CUDA_VERSION` | the result of `cuDriverGetVersion`, 13000 by default; later signatures are missing |
//! | `SIM_CUDA_FAIL` | calls that fail: `NAME:CODE[:WHICH]` separated by commas. `CODE` is a `CUresult`; `WHICH` is `N` (the N-th call of the process only, from 1) or `N+` (that one and all later ones); without it every call fails. `NAME` is the name without `_v2` and applies to every version of the function |
//! | `SIM_CUDA_SLOW` | calls that take longer: `NAME:MICROSECONDS` separated by commas, with names as above |
//! | `SIM_CUDA_MISSING` | names without `_v2`, separated by commas, that `cuGetProcAddress` does not know |
//! | `SIM_CUDA_DIRECT` | words separated by commas: `peer_memory` makes memory of `cuMemAlloc` accessible to verbs devices (and to a CPU, which does not fault then); `dma_buf` makes `cuMemGetHandleForAddressRange` return a descriptor, which cannot be mapped; with `mmap` and a version from 13030 on it can be mapped, and memory of `cuMemAlloc` has no legacy handle then; `gdrdrv` gives gdrcopy's library, which is this one, too (`libgdrapi.so.2` beside it), a device; `unseen` makes `cuFlushGPUDirectRDMAWrites` unavailable to the host |
//! | `SIM_CUDA_EARLY` | 1 makes `cuPointerSetAttribute` return before earlier synchronous calls on the allocation are complete, which a driver on an H200 does not |
//! | `SIM_CUDA_STATS` | a file to which the numbers of calls are written at exit, one line `NAME COUNT` for each function; `%p` in it is the process id. A process without calls writes no file |
//!
//! # What it exports besides the driver's functions
//! `int64_t simCudaCallCount(const char *name)` counts calls of one function, all versions together (-1: no such
//! function; a null name: calls of every function); `uint64_t simCudaLiveBytes(void)`, `simCudaLiveEvents(void)` and
//! `simCudaLiveStreams(void)` count what was made and not freed, `simCudaAttributesAsked(void)` the attributes that
//! `cuPointerGetAttributes` was asked for.
//!
//! # The crate and the library
//! The C functions are compiled into the rlib too, but an executable exports none of its symbols, so nothing binds to
//! them there.

mod abi;
mod attributes;
mod batch;
mod call;
mod capture;
mod context;
mod context_calls;
mod copies;
mod device;
mod direct;
mod driver;
mod early;
mod error;
mod event;
mod fills;
mod gdrcopy;
mod graph;
mod graph_calls;
mod half;
mod host;
mod ipc;
mod kernel_copies;
mod kernel_memory;
mod kernels;
mod landing;
mod memops;
mod memory;
mod node;
mod one_shot;
mod packed;
mod physical;
mod pool;
mod pool_calls;
mod pool_memory;
mod procaddress;
mod ptx;
mod ptx_math;
mod ptx_run;
mod reduce;
mod reduce_numbers;
mod resident;
mod schedule;
mod settings;
mod sharing;
mod signalled;
mod space;
mod spin;
mod stats;
mod store;
mod stream;
mod vmm;

use std::path::PathBuf;

/// The vendor on whose devices a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// CUDA's driver, by default this package's.
    Nvidia,
    /// HIP's library, by default that of the package sim-hip.
    Amd,
}

impl Vendor {
    /// Returns the vendor that `CABLEWAY_TEST_VENDOR` names, `amd` or any other.
    pub fn tested() -> Vendor {
        match std::env::var("CABLEWAY_TEST_VENDOR") {
            Ok(name) if name == "amd" => Vendor::Amd,
            _ => Vendor::Nvidia,
        }
    }

    /// Returns the name of the driver library.
    pub fn library(self) -> &'static str {
        match self {
            Vendor::Nvidia => "libcuda.so.1",
            Vendor::Amd => "libamdhip64.so",
        }
    }

    /// Returns the variable that names its folder to Cableway.
    pub fn variable(self) -> &'static str {
        match self {
            Vendor::Nvidia => "CABLEWAY_CUDA_LIBDIR",
            Vendor::Amd => "CABLEWAY_HIP_LIBDIR",
        }
    }

    /// Returns the folder of the driver for tests: the one that the variable names, else the simulated driver built
    /// beside the running test executable. Returns `None` if there is neither.
    pub fn folder(self) -> Option<PathBuf> {
        if let Some(folder) = std::env::var_os(self.variable()).filter(|folder| !folder.is_empty()) {
            return Some(folder.into());
        }
        let name = match self {
            Vendor::Nvidia => "sim-cuda",
            Vendor::Amd => "sim-hip",
        };
        let executable = std::env::current_exe().ok()?;
        // `deps/test-hash`, `examples/name` and the profile's folder itself are at most two levels deep.
        let mut folders = executable.ancestors().skip(1).take(2).map(|folder| folder.join(name));
        folders.find(|folder| folder.join(self.library()).exists())
    }
}

/// Returns the folder of the tested vendor's driver, as [`Vendor::folder`] does.
pub fn library_folder() -> Option<PathBuf> {
    Vendor::tested().folder()
}

/// Returns the folder of the driver that a test runs on: [`library_folder`], or `None`, so that the loader searches, if
/// `CABLEWAY_TEST_REAL_DRIVER` is 1.
///
/// # Panics
/// The simulated driver is needed and was not built.
pub fn tested_folder() -> Option<PathBuf> {
    let real = std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some_and(|value| value == "1");
    (!real).then(|| library_folder().expect("sim-cuda is built with the tests that use it"))
}
