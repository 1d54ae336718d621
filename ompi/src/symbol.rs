//! The symbols that Open MPI looks for.

use std::cell::UnsafeCell;

const ROOM: usize = 1024;

/// Memory in which the shim lays a component structure out as the object is loaded. It is exported from here because
/// a Rust library's linker script hides every symbol that is not Rust's.
#[repr(C, align(64))]
pub(crate) struct Room(UnsafeCell<[u8; ROOM]>);

// SAFETY: written once, by a constructor that runs before anybody can look the symbol up; Open MPI's afterwards.
unsafe impl Sync for Room {}

#[unsafe(no_mangle)]
static mca_pml_cableway_component: Room = Room(UnsafeCell::new([0; ROOM]));

#[unsafe(no_mangle)]
static mca_coll_cableway_component: Room = Room(UnsafeCell::new([0; ROOM]));

#[unsafe(no_mangle)]
static mca_osc_cableway_component: Room = Room(UnsafeCell::new([0; ROOM]));

#[cfg(accelerator)]
#[unsafe(no_mangle)]
static mca_accelerator_cableway_component: Room = Room(UnsafeCell::new([0; ROOM]));

#[unsafe(no_mangle)]
static cableway_component_room: usize = ROOM;
