//! The types of `shim/cableway.h`, and the functions that the shim implements.

use std::ffi::{c_char, c_int, c_void};

use cableway_common_cuda::{DeviceIndex, Location, MemoryClass};
use cableway_pml::{Error, Request, Status};

use crate::state;

/// `CABLEWAY_REQUEST_BYTES`
pub(crate) const REQUEST_BYTES: usize = 512;
const _: () = assert!(size_of::<Request>() <= REQUEST_BYTES && align_of::<Request>() <= 64);

/// `enum cableway_code`
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    Truncated = 1,
    PeerFailed = 2,
    BadArgument = 3,
    NoMemory = 4,
    Unreachable = 5,
    Device = 6,
    Internal = 7,
    NoSuchRank = 8,
    Revoked = 9,
}

impl Code {
    /// Returns the negated code, for calls whose non-negative results are not codes.
    pub(crate) fn negative(self) -> c_int {
        -(self as c_int)
    }
}

impl From<&Error> for Code {
    fn from(error: &Error) -> Self {
        match error {
            Error::Truncated { .. } => Code::Truncated,
            Error::PeerFailed { .. } | Error::PeerLeft { .. } | Error::PeerAborted { .. } | Error::Btl(_) => {
                Code::PeerFailed
            }
            Error::NoSuchRank { .. } => Code::NoSuchRank,
            Error::BadTag { .. } => Code::BadArgument,
            Error::Modex(_) | Error::Unreachable { .. } => Code::Unreachable,
            Error::Device { .. } | Error::Stream(_) | Error::StreamContext(_) => Code::Device,
            Error::CommunicatorRemoved { .. } => Code::Revoked,
            _ => Code::Internal,
        }
    }
}

/// `struct cableway_job`
#[repr(C)]
pub(crate) struct JobDescription {
    pub(crate) id: *const c_char,
    pub(crate) number: u32,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) local_size: u32,
    pub(crate) architecture: u32,
    pub(crate) threads: bool,
}

/// `struct cableway_buffer`
#[repr(C)]
pub(crate) struct BufferDescription {
    pub(crate) address: *mut c_void,
    pub(crate) len: u64,
    pub(crate) layout: *const c_void,
    pub(crate) count: u64,
}

/// `struct cableway_location`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LocationDescription {
    known: u32,
    class: u32,
    /// 0 for none, else the device index plus 1.
    device: u64,
    context: u64,
    id: u64,
}
const _: () = assert!(size_of::<LocationDescription>() == 32);

impl From<Option<Location>> for LocationDescription {
    fn from(location: Option<Location>) -> Self {
        let Location { class, device, context, buffer_id } = location.unwrap_or(Location::HOST);
        let class = match class {
            MemoryClass::Host => 0,
            MemoryClass::Pinned => 1,
            MemoryClass::Device => 2,
            MemoryClass::Managed => 3,
        };
        let device = device.map_or(0, |device| u64::from(device.0) + 1);
        LocationDescription { known: u32::from(location.is_some()), class, device, context, id: buffer_id }
    }
}

impl From<LocationDescription> for Option<Location> {
    fn from(location: LocationDescription) -> Self {
        let class = match (location.known, location.class) {
            (0, _) => return None,
            (_, 0) => MemoryClass::Host,
            (_, 1) => MemoryClass::Pinned,
            (_, 2) => MemoryClass::Device,
            _ => MemoryClass::Managed,
        };
        let device = location.device.checked_sub(1).and_then(|device| u32::try_from(device).ok()).map(DeviceIndex);
        Some(Location { class, device, context: location.context, buffer_id: location.id })
    }
}

/// `struct cableway_status`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct StatusReport {
    pub(crate) source: i32,
    pub(crate) tag: i32,
    pub(crate) len: u64,
    pub(crate) cancelled: bool,
    pub(crate) code: i32,
}

impl StatusReport {
    pub(crate) fn new(status: Status, code: Code) -> Self {
        StatusReport {
            source: status.source,
            tag: status.tag,
            len: status.len,
            cancelled: status.cancelled,
            code: code as i32,
        }
    }

    /// Describes how an operation ended, and logs nothing: whoever asks for the error does.
    pub(crate) fn quietly(result: &Result<Status, Error>) -> Self {
        match result {
            Err(error) if !matches!(error, Error::Truncated { .. }) => Self::new(Status::EMPTY, Code::from(error)),
            known => Self::of(known.clone()),
        }
    }

    /// Describes how an operation ended.
    pub(crate) fn of(result: Result<Status, Error>) -> Self {
        match result {
            Ok(status) => Self::new(status, Code::Ok),
            Err(Error::Truncated { source_rank, tag, sent, .. }) => {
                Self::new(Status { source: source_rank, tag, len: sent, ..Status::EMPTY }, Code::Truncated)
            }
            Err(error) => {
                state::report(&error);
                Self::new(Status::EMPTY, Code::from(&error))
            }
        }
    }
}

unsafe extern "C" {
    pub(crate) fn shim_completed(owner: *mut c_void, source: c_int, tag: c_int, len: u64, cancelled: bool, code: c_int);
    pub(crate) fn shim_modex_put(key: *const c_char, bytes: *const u8, len: usize) -> c_int;
    pub(crate) fn shim_modex_get(process: u64, key: *const c_char, bytes: *mut *mut u8, len: *mut usize) -> c_int;
    pub(crate) fn shim_host_progress();
    pub(crate) fn shim_is_completing() -> bool;
}
