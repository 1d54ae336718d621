//! A double of NVIDIA's `libcuda.so.1` for machines without a GPU. Tests only: no figure and no claim about a device
//! comes from it.
//!
//! Tests load it by path, as any program loads a driver, from the folder that [`library_folder`] names; it behaves as
//! the driver may, not as it usually does:
//! - device memory is a mapping without access rights, so a CPU that touches it faults; the copy functions go through
//!   a second mapping that only the driver knows;
//! - work runs late, in a thread of its own, streams in any order that their dependencies allow, and the bytes of one
//!   copy land in any order;
//! - `cuMemcpy` from pageable memory, `cuMemset` and copies within devices return before they are done;
//! - handles and addresses are reused as soon as they are free; the identifiers that the driver promises not to reuse
//!   are not;
//! - a symbol of an old ABI is there, as in the driver, and always fails;
//! - what makes a real driver dereference a dangling handle (a stream whose context is gone, say) ends the process with
//!   a line that names the handle; so does memory of a pool that its owner frees while another process has it.
//!
//! Error codes, the width of attributes, what invalidates a stream capture and what a stale handle of another process
//! opens are as driver 580 answered on an H200; the tests of this package hold on that driver, too
//! (`CABLEWAY_CUDA_LIBDIR`). Kernels are known by name. Not there: arrays, graphs other than captured and thrown away,
//! dma-bufs that a device takes, functions whose null stream is the per-thread one.
//!
//! # Environment, read once
//! | variable | meaning |
//! |---|---|
//! | `SIM_CUDA_DEVICES` | number of devices, 2 by default; 0 makes `cuInit` fail with `CUDA_ERROR_NO_DEVICE` |
//! | `CUDA_VISIBLE_DEVICES` | list of their numbers, as the driver reads it |
//! | `SIM_CUDA_MEMORY` | bytes of memory of each device and process (`K`, `M`, `G`), 8G by default; only pages that were touched cost |
//! | `SIM_CUDA_DELAY_US` | mean delay before a stream's next operation, 5 by default |
//! | `SIM_CUDA_KERNEL_DELAY_US` | how much later some blocks of each kernel begin, 0 by default |
//! | `SIM_CUDA_SEED` | seed of every random choice, 1 by default |
//! | `SIM_CUDA_VERSION` | what `cuDriverGetVersion` answers, 13000 by default; later signatures are missing |
//! | `SIM_CUDA_FAIL` | calls that fail: `NAME:CODE[:WHICH]` separated by commas. `CODE` is a `CUresult`; `WHICH` is `N` (the N-th call of the process only, from 1) or `N+` (that one and all later ones); without it every call fails. `NAME` is the name without `_v2` and applies to every version of the function |
//! | `SIM_CUDA_MISSING` | names without `_v2`, separated by commas, that `cuGetProcAddress` does not know |
//! | `SIM_CUDA_DIRECT` | words separated by commas: `peer_memory` lets others than the copy functions reach what `cuMemAlloc` gives, a verbs device among them (and a CPU, whose touch does not fault then); `dma_buf` has `cuMemGetHandleForAddressRange` give a descriptor, which cannot be mapped; with `mmap`, too, and a version from 13030 on, it can, and what `cuMemAlloc` gives has no legacy handle then; `gdrdrv` has gdrcopy's library, which this is, too (`libgdrapi.so.2` beside it), open its device; `unseen` takes the host `cuFlushGPUDirectRDMAWrites` |
//! | `SIM_CUDA_STATS` | a file to which the calls made are written at exit, a line `NAME COUNT` each; `%p` in it is the process id. A process that made no call writes none |
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
mod error;
mod event;
mod fills;
mod gdrcopy;
mod host;
mod ipc;
mod kernel_memory;
mod kernels;
mod landing;
mod memops;
mod memory;
mod packed;
mod physical;
mod pool;
mod pool_calls;
mod pool_memory;
mod procaddress;
mod resident;
mod schedule;
mod settings;
mod sharing;
mod space;
mod stats;
mod store;
mod stream;
mod vmm;

use std::path::PathBuf;

/// The folder that holds the driver which tests use: `CABLEWAY_CUDA_LIBDIR` where set, else the simulated one built
/// beside the running test executable. None where there is neither.
pub fn library_folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("CABLEWAY_CUDA_LIBDIR").filter(|folder| !folder.is_empty()) {
        return Some(folder.into());
    }
    let executable = std::env::current_exe().ok()?;
    // `deps/test-hash`, `examples/name` and the profile's folder itself all lie within two levels.
    executable
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("sim-cuda"))
        .find(|folder| folder.join("libcuda.so.1").exists())
}

/// The folder of the driver that a test runs on: [`library_folder`], or none, so that the loader searches, where
/// `CABLEWAY_TEST_REAL_DRIVER` is 1.
///
/// # Panics
/// The simulated driver is wanted and was not built.
pub fn tested_folder() -> Option<PathBuf> {
    let real = std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some_and(|value| value == "1");
    (!real).then(|| library_folder().expect("sim-cuda is built with the tests that use it"))
}
