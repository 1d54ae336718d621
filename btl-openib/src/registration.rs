//! The handles of registered memory that `get` and `put` use.

use cableway_btl::{Error, RemoteHandle};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::NAME;
use crate::verbs::MemoryRegion;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHandle {
    address: U64,
    len: U64,
    key: U32,
    reserved: U32,
}

const _: () = {
    use memoffset::offset_of;
    assert!(size_of::<WireHandle>() == 24 && size_of::<WireHandle>() <= RemoteHandle::MAX);
    assert!(offset_of!(WireHandle, len) == 8);
    assert!(offset_of!(WireHandle, key) == 16);
};

/// The handle of a registered range.
pub(crate) fn handle(region: &MemoryRegion, address: *mut u8, len: usize) -> Option<RemoteHandle> {
    let handle = WireHandle {
        address: U64::new(address as u64),
        len: U64::new(len as u64),
        key: U32::new(region.remote_key()),
        reserved: U32::ZERO,
    };
    RemoteHandle::new(handle.as_bytes())
}

/// Returns the address and rkey of `len` bytes at `offset` of the peer's registered range. The peer's device checks
/// them again.
///
/// # Errors
/// The handle belongs to another transport, or the range exceeds it.
pub(crate) fn target(handle: &RemoteHandle, offset: u64, len: usize) -> Result<(u64, u32), Error> {
    let bad = |reason: String| crate::invalid("the peer's handle", reason);
    let wire = WireHandle::read_from_bytes(handle.as_bytes())
        .ok()
        .filter(|wire| wire.reserved == U32::ZERO)
        .ok_or_else(|| bad(format!("it was not made by {NAME}")))?;
    let within = offset.checked_add(len as u64).is_some_and(|end| end <= wire.len.get());
    let address = wire.address.get().checked_add(offset).filter(|_| within);
    let address = address.ok_or_else(|| bad(format!("{len} bytes at {offset} of {} registered ones", wire.len)))?;
    Ok((address, wire.key.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let wire = WireHandle { address: U64::new(1000), len: U64::new(100), key: U32::new(7), reserved: U32::ZERO };
        let handle = RemoteHandle::new(wire.as_bytes()).unwrap();
        assert_eq!(target(&handle, 0, 100).unwrap(), (1000, 7));
        assert_eq!(target(&handle, 40, 60).unwrap(), (1040, 7));
        for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (1, usize::MAX)] {
            assert!(target(&handle, offset, len).is_err(), "{len} bytes at {offset}");
        }
        assert!(target(&RemoteHandle::new(b"something else").unwrap(), 0, 0).is_err());
    }
}
