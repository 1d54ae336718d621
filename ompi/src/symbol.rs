//! The component structures that Open MPI looks up by symbol.

use std::cell::UnsafeCell;

const COMPONENT_BYTES: usize = 1024;

/// The memory of a component structure, which the shim fills when the object is loaded. It is defined here because the
/// linker script of a Rust library hides every symbol that Rust does not export.
#[repr(C, align(64))]
pub(crate) struct ComponentBytes(UnsafeCell<[u8; COMPONENT_BYTES]>);

// SAFETY: a constructor writes it once, before the symbol can be looked up. Afterwards it belongs to Open MPI.
unsafe impl Sync for ComponentBytes {}

#[unsafe(no_mangle)]
static mca_pml_cableway_component: ComponentBytes = ComponentBytes(UnsafeCell::new([0; COMPONENT_BYTES]));

#[unsafe(no_mangle)]
static mca_coll_cableway_component: ComponentBytes = ComponentBytes(UnsafeCell::new([0; COMPONENT_BYTES]));

#[unsafe(no_mangle)]
static mca_osc_cableway_component: ComponentBytes = ComponentBytes(UnsafeCell::new([0; COMPONENT_BYTES]));

#[cfg(accelerator)]
#[unsafe(no_mangle)]
static mca_accelerator_cableway_component: ComponentBytes = ComponentBytes(UnsafeCell::new([0; COMPONENT_BYTES]));

#[unsafe(no_mangle)]
static cableway_component_bytes: usize = COMPONENT_BYTES;
