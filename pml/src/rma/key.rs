//! Remote keys: what a process must know to access another one's registered memory.

use cableway_base::Rank;
use cableway_common_cuda::{Devices, Location, MemoryClass, Vendor};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Names registered memory of a process: 64 bytes of plain data, to be sent to those who may access the memory.
///
/// Any rank that has the key can read and write the memory until it is deregistered. A key that was changed, or that is
/// older than the registration, is refused by the memory's owner. docs/trust.md says what that protects from. A key of
/// zeros, as [`Default`] makes it, names no memory.
///
/// ```text
/// base: u64 | len: u64 | rank: u32 | class: u8 | vendor: u8 | mappable: u8 | z | device: 16 | name: 24 |   64 bytes
/// name      | slot: u32 | generation: u32 | authenticator: 16 |                       24 bytes
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RemoteKey {
    base: U64,
    len: U64,
    rank: U32,
    class: u8,
    vendor: u8,
    mappable: u8,
    zero: u8,
    device: [u8; 16],
    name: [u8; size_of::<Name>()],
}

const _: () = {
    assert!(size_of::<RemoteKey>() == 64);
    assert!(std::mem::offset_of!(RemoteKey, rank) == 16);
    assert!(std::mem::offset_of!(RemoteKey, device) == 24);
    assert!(std::mem::offset_of!(RemoteKey, name) == 40);
    assert!(size_of::<Name>() == 24);
    assert!(std::mem::offset_of!(Name, authenticator) == 8);
};

/// Names a registration in its owner's table. The authenticator is random, so that only a process that was given the
/// name knows it.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Name {
    pub(super) slot: U32,
    /// Counts the registrations in the slot from 1 on.
    pub(super) generation: U32,
    pub(super) authenticator: [u8; 16],
}

impl std::fmt::Debug for Name {
    /// Leaves the authenticator out: logs are read by others.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Name({}, generation {})", self.slot, self.generation)
    }
}

/// What a key tells about the memory.
pub(super) struct Described {
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) rank: Rank,
    pub(super) class: MemoryClass,
    /// The device that owns the memory.
    pub(super) device: Option<Owning>,
    /// Whether processes of the owner's node can map it.
    pub(super) mappable: bool,
}

/// A device that owns memory.
#[derive(Clone, Copy)]
pub(super) struct Owning {
    pub(super) vendor: Vendor,
    pub(super) uuid: [u8; 16],
}

impl RemoteKey {
    pub(super) fn new(described: &Described, name: Name) -> Self {
        let class = match described.class {
            MemoryClass::Host => 0,
            MemoryClass::Pinned => 1,
            MemoryClass::Device => 2,
            MemoryClass::Managed => 3,
        };
        RemoteKey {
            base: U64::new(described.base),
            len: U64::new(described.len),
            rank: U32::new(described.rank),
            class,
            vendor: described.device.map_or(0, |device| vendor_number(device.vendor)),
            mappable: described.mappable.into(),
            zero: 0,
            device: described.device.map_or([0; 16], |device| device.uuid),
            name: zerocopy::transmute!(name),
        }
    }

    /// Returns the address of the memory in its owner, for people to read. Offsets of operations count from here.
    pub fn base(&self) -> u64 {
        self.base.get()
    }

    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> u64 {
        self.len.get()
    }

    /// Returns whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the rank in the job of the process that owns the memory.
    pub fn rank(&self) -> Rank {
        self.rank.get()
    }

    /// Returns the class of the memory, or `None` if this version does not know it.
    pub fn class(&self) -> Option<MemoryClass> {
        match self.class {
            0 => Some(MemoryClass::Host),
            1 => Some(MemoryClass::Pinned),
            2 => Some(MemoryClass::Device),
            3 => Some(MemoryClass::Managed),
            _ => None,
        }
    }

    /// Returns the UUID of the device that owns the memory, or `None` for host memory.
    pub fn device(&self) -> Option<[u8; 16]> {
        (self.device != [0; 16]).then_some(self.device)
    }

    /// Returns the vendor of that device, or `None` for host memory, or if this version does not know it.
    pub fn vendor(&self) -> Option<Vendor> {
        [Vendor::Nvidia, Vendor::Amd].into_iter().find(|&vendor| vendor_number(vendor) == self.vendor)
    }

    /// Returns whether processes of the owner's node can map the memory.
    pub(super) fn is_mappable(&self) -> bool {
        self.mappable == 1
    }

    /// Returns the place that begins `offset` bytes into the memory.
    pub fn at(&self, offset: u64) -> Place<'_> {
        Place { key: self, offset }
    }

    pub(super) fn name(&self) -> Name {
        zerocopy::transmute!(self.name)
    }

    /// Returns whether `len` bytes at `offset` are within the memory, as the key tells.
    pub(super) fn covers(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }
}

/// Returns the device that owns the memory, for people to read.
pub(super) fn owning(devices: &Devices, location: &Location) -> Option<Owning> {
    let device = location.device.filter(|_| location.class != MemoryClass::Pinned)?;
    Some(Owning { vendor: devices.vendor(device)?, uuid: devices.uuid(device).ok()? })
}

/// Returns a vendor's number in keys. 0 stands for none, and for one that this version does not know.
fn vendor_number(vendor: Vendor) -> u8 {
    match vendor {
        Vendor::Nvidia => 1,
        Vendor::Amd => 2,
        _ => 0,
    }
}

/// A place in registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'k> {
    /// The memory's key.
    pub key: &'k RemoteKey,
    /// The offset in bytes from the beginning of the memory.
    pub offset: u64,
}

impl std::fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteKey")
            .field("rank", &self.rank())
            .field("base", &format_args!("{:#x}", self.base()))
            .field("len", &self.len())
            .field("class", &self.class())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_what_it_describes_and_hides_its_authenticator() {
        let name = Name { slot: U32::new(7), generation: U32::new(9), authenticator: [0xab; 16] };
        let device = Some(Owning { vendor: Vendor::Amd, uuid: [5; 16] });
        let described =
            Described { base: 0x1000, len: 80, rank: 3, class: MemoryClass::Managed, device, mappable: true };
        let key = RemoteKey::new(&described, name);
        let read = RemoteKey::read_from_bytes(key.as_bytes()).unwrap();
        assert_eq!((read, read.base(), read.len(), read.rank()), (key, 0x1000, 80, 3));
        assert_eq!((read.class(), read.device()), (Some(MemoryClass::Managed), Some([5; 16])));
        assert_eq!((read.vendor(), read.is_mappable()), (Some(Vendor::Amd), true));
        assert!(!format!("{key:?}").contains("171") && !format!("{key:?}").contains("ab, "), "{key:?}");
        assert!(key.covers(80, 0) && key.covers(0, 80) && !key.covers(1, 80) && !key.covers(u64::MAX, 2));
        assert_eq!(RemoteKey { class: 4, ..key }.class(), None);
        assert_eq!((RemoteKey { vendor: 3, ..key }.vendor(), RemoteKey::default().vendor()), (None, None));
    }
}
