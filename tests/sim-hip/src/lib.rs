//! A double of AMD's `libamdhip64.so` for machines without a GPU. It is for tests only: no figure and no claim about a
//! device comes from it. It behaves as HIP's sources say (`common-cuda/src/hip/mod.rs` names them); none of it was
//! compared with a device.
//!
//! What lies below the function names is sim-cuda's: this crate compiles the same sources, without their CUDA names, and
//! adds HIP's. So [its documentation](../sim_cuda/index.html) holds here, too. The differences:
//! - Every call initialises the library. A thread has a current device, 0 at first, and no stack of contexts.
//! - A CPU can read and write device memory, as it can through a large window on the bus.
//! - Copies from and to pageable memory are complete on return, in every function.
//! - Opening an IPC handle answers the base of the allocation. Closing waits for the work of the device.
//! - A failed call leaves its code in the thread's last error.
//! - Modules are code objects. A device takes those of its own instruction set and its generic one.
//! - Memory types, flags and the answer about unknown addresses are those of the release.
//!
//! # Environment, read once
//! | variable | meaning |
//! |---|---|
//! | `SIM_HIP_VERSION` | the release: 5, 6 (the default) or 7 |
//! | `SIM_HIP_ARCH` | the devices' instruction set, `gfx90a` by default |
//! | `SIM_HIP_FAIL` | calls that fail, as in `SIM_CUDA_FAIL`; a name of CUDA's means the function that does its work |
//! | `SIM_HIP_DEVICES`, `_MEMORY`, `_DELAY_US`, `_KERNEL_DELAY_US`, `_SEED`, `_DIRECT`, `_STATS` | as those of sim-cuda, which count if these are not set |
//! | `HIP_VISIBLE_DEVICES` | list of device numbers; without it `CUDA_VISIBLE_DEVICES`, as in HIP |
//!
//! `simHipCallCount`, `simHipLiveBytes`, `simHipLiveEvents`, `simHipLiveStreams` and `simHipAttributesAsked` are exported
//! beside HIP's functions. Calls are counted under CUDA's names.
#![allow(dead_code, reason = "CUDA's functions without a counterpart are compiled, too")]

macro_rules! shared {
    ($($name:ident = $path:literal;)*) => {
        $(#[path = $path] mod $name;)*
    };
}

shared! {
    abi = "../../sim-cuda/src/abi.rs";
    attributes = "../../sim-cuda/src/attributes.rs";
    batch = "../../sim-cuda/src/batch.rs";
    call = "../../sim-cuda/src/call.rs";
    capture = "../../sim-cuda/src/capture.rs";
    context = "../../sim-cuda/src/context.rs";
    context_calls = "../../sim-cuda/src/context_calls.rs";
    copies = "../../sim-cuda/src/copies.rs";
    device = "../../sim-cuda/src/device.rs";
    direct = "../../sim-cuda/src/direct.rs";
    driver = "../../sim-cuda/src/driver.rs";
    early = "../../sim-cuda/src/early.rs";
    error = "../../sim-cuda/src/error.rs";
    event = "../../sim-cuda/src/event.rs";
    fills = "../../sim-cuda/src/fills.rs";
    graph = "../../sim-cuda/src/graph.rs";
    graph_calls = "../../sim-cuda/src/graph_calls.rs";
    half = "../../sim-cuda/src/half.rs";
    host = "../../sim-cuda/src/host.rs";
    ipc = "../../sim-cuda/src/ipc.rs";
    kernel_copies = "../../sim-cuda/src/kernel_copies.rs";
    kernel_memory = "../../sim-cuda/src/kernel_memory.rs";
    kernels = "../../sim-cuda/src/kernels.rs";
    landing = "../../sim-cuda/src/landing.rs";
    memops = "../../sim-cuda/src/memops.rs";
    memory = "../../sim-cuda/src/memory.rs";
    node = "../../sim-cuda/src/node.rs";
    one_shot = "../../sim-cuda/src/one_shot.rs";
    packed = "../../sim-cuda/src/packed.rs";
    physical = "../../sim-cuda/src/physical.rs";
    pool = "../../sim-cuda/src/pool.rs";
    pool_calls = "../../sim-cuda/src/pool_calls.rs";
    pool_memory = "../../sim-cuda/src/pool_memory.rs";
    procaddress = "../../sim-cuda/src/procaddress.rs";
    ptx = "../../sim-cuda/src/ptx.rs";
    ptx_math = "../../sim-cuda/src/ptx_math.rs";
    ptx_run = "../../sim-cuda/src/ptx_run.rs";
    reduce = "../../sim-cuda/src/reduce.rs";
    reduce_numbers = "../../sim-cuda/src/reduce_numbers.rs";
    resident = "../../sim-cuda/src/resident.rs";
    schedule = "../../sim-cuda/src/schedule.rs";
    settings = "../../sim-cuda/src/settings.rs";
    sharing = "../../sim-cuda/src/sharing.rs";
    signalled = "../../sim-cuda/src/signalled.rs";
    space = "../../sim-cuda/src/space.rs";
    spin = "../../sim-cuda/src/spin.rs";
    stats = "../../sim-cuda/src/stats.rs";
    store = "../../sim-cuda/src/store.rs";
    stream = "../../sim-cuda/src/stream.rs";
    vmm = "../../sim-cuda/src/vmm.rs";
}

mod code;
mod current;
mod device_calls;
mod entry;
mod memory_calls;
mod release;
mod stream_calls;

use std::ffi::c_char;

/// Counts calls of a function, all versions together: -1 if there is none of this name. A null name means all functions.
///
/// # Safety
/// `name` is null or a terminated string.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "named beside the library's own functions")]
unsafe extern "C" fn simHipCallCount(name: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { stats::simCudaCallCount(name) }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "named beside the library's own functions")]
extern "C" fn simHipLiveBytes() -> u64 {
    stats::simCudaLiveBytes()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "named beside the library's own functions")]
extern "C" fn simHipLiveEvents() -> u64 {
    stats::simCudaLiveEvents()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "named beside the library's own functions")]
extern "C" fn simHipLiveStreams() -> u64 {
    stats::simCudaLiveStreams()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "named beside the library's own functions")]
extern "C" fn simHipAttributesAsked() -> u64 {
    attributes::simCudaAttributesAsked()
}
