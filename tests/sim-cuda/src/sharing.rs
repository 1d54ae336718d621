//! Types for pools and virtual memory management: memory locations and descriptors.

use std::ffi::{c_int, c_uint};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use cudarc::driver::sys::{CUmemAllocationHandleType as HandleType, CUmemAllocationType, CUmemLocationType};
use parking_lot::Mutex;

use crate::abi::Out;
use crate::device;
use crate::error::{Error, Outcome};

pub(crate) const NO_HANDLE: c_int = HandleType::CU_MEM_HANDLE_TYPE_NONE.0 as c_int;
pub(crate) const POSIX: c_int = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 as c_int;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(crate) const READ_WRITE: c_uint = 3;
pub(crate) const PINNED: c_int = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_int;

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    /// Returns the device of the location.
    pub(crate) fn device(self) -> Outcome<c_int> {
        if self.kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int {
            return Err(Error::INVALID_VALUE);
        }
        device::get(self.id).map_err(|_| Error::INVALID_VALUE)?;
        Ok(self.id)
    }

    pub(crate) fn of_device(id: c_int) -> Location {
        Location { kind: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int, id }
    }
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AccessOf {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

const _: () = assert!(size_of::<AccessOf>() == size_of::<cudarc::driver::sys::CUmemAccessDesc_st>());

/// The access of devices to memory, as last set by `cuMemSetAccess` or `cuMemPoolSetAccess`, with their flags.
#[derive(Default)]
pub(crate) struct Accesses(Mutex<Vec<(c_int, c_uint)>>);

impl Accesses {
    pub(crate) fn set(&self, device: c_int, flags: c_uint) {
        let mut all = self.0.lock();
        all.retain(|(known, _)| *known != device);
        all.push((device, flags));
    }

    pub(crate) fn get(&self, device: c_int) -> Option<c_uint> {
        self.0.lock().iter().find(|(known, _)| *known == device).map(|(_, flags)| *flags)
    }

    /// Checks whether any device has access.
    pub(crate) fn any(&self) -> bool {
        self.0.lock().iter().any(|(_, flags)| *flags != 0)
    }
}

/// Borrows a descriptor that a caller passed as an address.
pub(crate) fn descriptor(handle: usize) -> Outcome<OwnedFd> {
    let number = c_int::try_from(handle).map_err(|_| Error::INVALID_VALUE)?;
    if number < 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: whatever the number is, only its duplication is attempted, which fails if nothing is open there.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().map_err(|_| Error::INVALID_VALUE)
}

/// Returns a descriptor of `file` to the caller.
pub(crate) fn hand_out(file: BorrowedFd<'_>, into: Out<c_int>) -> Outcome {
    if into.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let number = file.try_clone_to_owned().map_err(|_| Error::OPERATING_SYSTEM)?.into_raw_fd();
    into.set(number).inspect_err(|_| {
        // SAFETY: just made here, and nobody else knows it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    })
}
