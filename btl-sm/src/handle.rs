//! Handles of registered host memory, as peers get them.

use cableway_btl::{Access, RemoteHandle};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Memory that a peer may copy from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Handle {
    address: U64,
    len: U64,
    access: u8,
}

/// Where registered memory lies in a block: it follows the [`Handle`] in a handle for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Place {
    pub(crate) descriptor: U32,
    pub(crate) inode: U64,
    pub(crate) file_len: U64,
    pub(crate) offset: U64,
}

/// The handle of memory in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PlacedHandle {
    pub(crate) handle: Handle,
    pub(crate) place: Place,
}

const _: () = assert!(size_of::<Place>() == 28 && size_of::<PlacedHandle>() == 17 + 28);

const READABLE: u8 = 1;
const WRITABLE: u8 = 2;

impl Handle {
    pub(crate) fn new(address: *const u8, len: usize, access: Access) -> Self {
        let access = match access {
            Access::RemoteRead => READABLE,
            Access::RemoteWrite => WRITABLE,
        };
        Handle { address: (address as u64).into(), len: (len as u64).into(), access }
    }

    /// Returns the length of the memory.
    pub(crate) fn len(&self) -> u64 {
        self.len.get()
    }

    /// Encodes the handle.
    pub(crate) fn to_remote(self) -> Option<RemoteHandle> {
        RemoteHandle::new(self.as_bytes())
    }

    /// Returns the address of `len` bytes at `offset` of the peer's memory, if the peer permits this access.
    pub(crate) fn resolve(handle: &RemoteHandle, access: Access, offset: u64, len: usize) -> Result<u64, &'static str> {
        let (handle, place) = Handle::read_from_prefix(handle.as_bytes()).map_err(|_| "the handle is malformed")?;
        if !place.is_empty() && place.len() != size_of::<Place>() {
            return Err("the handle is malformed");
        }
        let wanted = match access {
            Access::RemoteRead => READABLE,
            Access::RemoteWrite => WRITABLE,
        };
        if handle.access != wanted {
            return Err("the handle was made for the other direction");
        }
        let end = offset.checked_add(len as u64).ok_or("the range overflows")?;
        if end > handle.len.get() {
            return Err("the range leaves the registered memory");
        }
        handle.address.get().checked_add(offset).ok_or("the address overflows")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_checked() {
        let memory = [0_u8; 100];
        let handle = Handle::new(memory.as_ptr(), 100, Access::RemoteRead).to_remote().unwrap();
        let resolve = |access, offset, len| Handle::resolve(&handle, access, offset, len);
        assert_eq!(resolve(Access::RemoteRead, 10, 90), Ok(memory.as_ptr() as u64 + 10));
        assert!(resolve(Access::RemoteRead, 10, 91).is_err());
        assert!(resolve(Access::RemoteRead, u64::MAX, 1).is_err());
        assert!(resolve(Access::RemoteWrite, 0, 1).is_err());
        let short = RemoteHandle::new(&handle.as_bytes()[1..]).unwrap();
        assert!(Handle::resolve(&short, Access::RemoteRead, 0, 1).is_err());
    }
}
