//! Host copies of device buffers for the shim: `shim/staging.h`.

use std::ffi::{c_int, c_void};

use cableway_datatype::{Error, Layout, StagedBlock, Staging};
use cableway_pml::Engine;

use crate::boundary::{BufferDescription, Code};
use crate::guard::guarded;
use crate::state;

/// `enum cableway_access`
const READ: c_int = 1;
const WRITE: c_int = 2;

/// `struct cableway_block`
#[repr(C)]
struct BlockDescription {
    buffer: BufferDescription,
    access: c_int,
}

/// Returns whether a driver is loaded. Without one there is no device memory.
#[unsafe(no_mangle)]
extern "C" fn cableway_devices_present() -> bool {
    guarded(false, || state::engine().is_some_and(|engine| engine.devices().present()))
}

/// Returns whether any of `len` bytes is in device memory.
#[unsafe(no_mangle)]
extern "C" fn cableway_on_device(address: *const c_void, len: u64) -> bool {
    guarded(false, || {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        state::engine().is_some_and(|engine| engine.devices().classify(address.cast(), len).on_device())
    })
}

/// # Safety
/// `staging` and `base` are valid; `*staging` is null or from an earlier call; `blocks` holds `count` valid blocks.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_staging_add(
    staging: *mut *mut Staging,
    base: *mut *mut c_void,
    blocks: *const BlockDescription,
    count: usize,
) -> c_int {
    guarded(Code::Internal as c_int, || {
        let Some(engine) = state::engine() else { return Code::Internal as c_int };
        if count == 0 {
            return Code::Ok as c_int;
        }
        // SAFETY: the caller's promise, here and below.
        let blocks = unsafe { std::slice::from_raw_parts(blocks, count) };
        // SAFETY: the layouts belong to live datatypes.
        let blocks = || blocks.iter().map(|block| unsafe { block_of(block) });
        // Calls on host memory end here, without an allocation.
        if !Staging::needed(blocks(), engine.devices()) {
            return Code::Ok as c_int;
        }
        // SAFETY: as above.
        let staging = unsafe {
            if (*staging).is_null() {
                *staging = Box::into_raw(Box::default());
            }
            &mut **staging
        };
        // SAFETY: as above.
        let added = unsafe { staging.add(*base as usize, blocks().collect(), engine.host_pool()) };
        engine.count_host_copy_allocations(engine.host_pool().new_allocations());
        match added {
            Ok(host_base) => {
                // SAFETY: as above.
                unsafe { *base = std::ptr::with_exposed_provenance_mut(host_base) };
                Code::Ok as c_int
            }
            Err(error) => report(&error),
        }
    })
}

/// # Safety
/// `staging` is null or from [`cableway_staging_add`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_staging_fill(staging: *mut Staging) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(staging, |staging, engine| {
            engine.count_call_on_host_copies();
            staging.fill(engine.devices(), engine.host_pool())
        })
    }
}

/// # Safety
/// `staging` is null or from [`cableway_staging_add`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_staging_drain(staging: *mut Staging) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(staging, |staging, engine| staging.drain(engine.devices(), engine.host_pool())) }
}

/// # Safety
/// `staging` is null or from [`cableway_staging_add`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_staging_free(staging: *mut Staging) {
    guarded((), || {
        if !staging.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(staging) });
        }
    });
}

/// # Safety
/// `staging` is null or valid.
unsafe fn with(staging: *mut Staging, body: impl FnOnce(&mut Staging, &Engine) -> Result<(), Error>) -> c_int {
    guarded(Code::Internal as c_int, || {
        // SAFETY: the caller's promise.
        let (Some(staging), Some(engine)) = (unsafe { staging.as_mut() }, state::engine()) else {
            return if staging.is_null() { Code::Ok } else { Code::Internal } as c_int;
        };
        body(staging, engine).map_or_else(|error| report(&error), |()| Code::Ok as c_int)
    })
}

/// # Safety
/// The block's layout is null or that of a live datatype.
unsafe fn block_of(block: &BlockDescription) -> StagedBlock {
    let BufferDescription { address, len, layout, count } = block.buffer;
    // SAFETY: the caller's promise.
    let layout = unsafe { layout.cast::<Layout>().as_ref() }.cloned();
    let count = if layout.is_some() { count } else { len };
    let (read, written) = (block.access & READ != 0, block.access & WRITE != 0);
    StagedBlock { address: address.expose_provenance(), count, layout, read, written }
}

fn report(error: &Error) -> c_int {
    log::warn!("{error}");
    match error {
        Error::NoMemory { .. } => Code::NoMemory as c_int,
        _ => Code::Device as c_int,
    }
}
