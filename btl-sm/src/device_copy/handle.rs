//! The handle of device memory.

use cableway_btl::{Access, RemoteHandle};
use cableway_common_cuda::{ExportKind, Exported};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const READABLE: u8 = 1;
const WRITABLE: u8 = 2;

/// Device memory that a peer may copy from or to: a part of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Handle {
    kind: u8,
    access: u8,
    /// The number of the pool, for pool memory.
    pool: [u8; 6],
    device: [u8; 16],
    base: U64,
    allocation_len: U64,
    buffer_id: U64,
    /// The offset of the part in the allocation.
    first: U64,
    len: U64,
    /// The id of a freed allocation that was exported to the peer; 0 if there is none.
    gone: U64,
    driver: [u8; 64],
}
const _: () = assert!(size_of::<Handle>() == 8 + 16 + 6 * 8 + 64 && size_of::<Handle>() <= RemoteHandle::MAX);

fn number(access: Access) -> u8 {
    match access {
        Access::RemoteRead => READABLE,
        Access::RemoteWrite => WRITABLE,
    }
}

fn first_bytes(number: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = number.to_le_bytes();
    [a, b, c, d, e, f]
}

impl Handle {
    /// Creates the handle of `len` bytes at `address`, which lie in the allocation.
    pub(crate) fn new(exported: &Exported, address: *const u8, len: usize, access: Access, gone: Option<u64>) -> Self {
        Handle {
            kind: exported.kind as u8,
            access: number(access),
            pool: first_bytes(exported.pool),
            device: exported.device,
            base: exported.base.into(),
            allocation_len: exported.len.into(),
            buffer_id: exported.buffer_id.into(),
            first: (address as u64).wrapping_sub(exported.base).into(),
            len: (len as u64).into(),
            gone: gone.unwrap_or(0).into(),
            driver: exported.handle,
        }
    }

    /// Encodes the handle.
    pub(crate) fn to_remote(self) -> Option<RemoteHandle> {
        RemoteHandle::new(self.as_bytes())
    }

    /// Returns `None` for a handle of host memory.
    pub(crate) fn view(remote: &RemoteHandle) -> Option<&Handle> {
        Handle::ref_from_bytes(remote.as_bytes()).ok()
    }

    /// Returns whether it names pool memory.
    pub(crate) fn is_of_pool(&self) -> bool {
        self.kind == ExportKind::Pool as u8
    }

    /// Returns the length of the part in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len.get()
    }

    /// Returns whether it names the allocation with this driver id.
    pub(crate) fn is_of(&self, buffer_id: u64) -> bool {
        self.buffer_id.get() == buffer_id
    }

    /// Returns the UUID of the memory's device.
    pub(crate) fn device(&self) -> &[u8; 16] {
        &self.device
    }

    /// Returns the freed allocation.
    pub(crate) fn gone(&self) -> Option<u64> {
        Some(self.gone.get()).filter(|id| *id != 0)
    }

    /// Returns the handle of another part of the same allocation, or `None` if the part exceeds it.
    #[inline]
    pub(crate) fn of_part(&self, address: *const u8, len: usize) -> Option<Handle> {
        let first = (address as u64).checked_sub(self.base.get())?;
        first.checked_add(len as u64).filter(|end| *end <= self.allocation_len.get())?;
        Some(Handle { first: first.into(), len: (len as u64).into(), ..*self })
    }

    /// Returns whether it names a part of the same allocation, exported in the same way.
    #[inline]
    pub(crate) fn is_of_same(&self, other: &Handle) -> bool {
        let of = |handle: &Handle| (handle.kind, handle.base, handle.allocation_len, handle.buffer_id, handle.device);
        of(self) == of(other)
    }

    /// Returns the offset in the allocation of a piece of `len` bytes at `offset` of the part.
    #[inline]
    pub(crate) fn place(&self, access: Access, offset: u64, len: usize) -> Result<u64, &'static str> {
        if self.access != number(access) {
            return Err("the handle does not permit it");
        }
        if (self.pool == [0; 6]) == self.is_of_pool() {
            return Err("the handle is of a kind that pools do not have, or without its pool");
        }
        let Handle { first, len: part, allocation_len, base, .. } = *self;
        let (first, part, whole) = (first.get(), part.get(), allocation_len.get());
        let inside = |at: u64, len: u64, room: u64| at.checked_add(len).is_some_and(|end| end <= room);
        if !inside(offset, len as u64, part) || !inside(first, part, whole) || base.get().checked_add(whole).is_none() {
            return Err("the range is not within the registered memory");
        }
        Ok(first + offset)
    }

    /// Returns the allocation, and the offset in it of a piece of `len` bytes at `offset` of the part.
    pub(crate) fn resolve(&self, access: Access, offset: u64, len: usize) -> Result<(Exported, u64), &'static str> {
        let kind = ExportKind::from_number(self.kind).ok_or("the handle is of an unknown kind")?;
        let [a, b, c, d, e, f] = self.pool;
        let pool = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let place = self.place(access, offset, len)?;
        let exported = Exported {
            kind,
            device: self.device,
            base: self.base.get(),
            len: self.allocation_len.get(),
            buffer_id: self.buffer_id.get(),
            handle: self.driver,
            pool,
        };
        Ok((exported, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_part_of_an_allocation_and_nothing_else() {
        let exported = Exported {
            kind: ExportKind::Legacy,
            device: [3; 16],
            base: 0x10_0000,
            len: 1000,
            buffer_id: 7,
            handle: [9; 64],
            pool: 0,
        };
        let part = Handle::new(&exported, 0x10_0064 as *const u8, 200, Access::RemoteRead, Some(5));
        let remote = part.to_remote().unwrap();
        let handle = *Handle::view(&remote).unwrap();
        assert_eq!(handle, part);
        assert_eq!((handle.device(), handle.gone()), (&[3; 16], Some(5)));
        assert_eq!(handle.resolve(Access::RemoteRead, 50, 150), Ok((exported, 150)));
        assert!(handle.resolve(Access::RemoteWrite, 0, 1).is_err());
        assert!(handle.resolve(Access::RemoteRead, 51, 150).is_err());
        assert!(handle.resolve(Access::RemoteRead, u64::MAX, 2).is_err());
        for spoilt in [
            Handle { first: 900.into(), ..handle },
            Handle { first: u64::MAX.into(), ..handle },
            Handle { base: u64::MAX.into(), ..handle },
            Handle { kind: 0, ..handle },
            Handle { kind: ExportKind::Pool as u8, ..handle },
            Handle { pool: [1; 6], ..handle },
        ] {
            assert!(spoilt.resolve(Access::RemoteRead, 0, 1).is_err(), "{spoilt:?}");
        }
        let of_pool = Exported { kind: ExportKind::Pool, pool: (1 << 48) - 1, ..exported };
        let handle = Handle::new(&of_pool, 0x10_0000 as *const u8, 200, Access::RemoteRead, None);
        assert_eq!(handle.resolve(Access::RemoteRead, 0, 200), Ok((of_pool, 0)));
        let host = RemoteHandle::new(&[1; 17]).unwrap();
        assert!(Handle::view(&host).is_none());
    }
}
