//! Device memory that processes of a node share, so that their kernels access each other's.
//!
//! The owner exposes memory to one peer. The handle travels in a message of the caller's. The peer maps the memory. Whoever
//! calls agrees with the peer on when it may access the memory.

use cableway_base::Rank;
use cableway_btl::{Access, DeviceMapping, Flags, Region, Registration, RemoteHandle};
use cableway_common_cuda::{Location, Order};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::engine::Engine;
use crate::core::{Done, Link};
use crate::error::Error;
use crate::protocol::Slot;
use crate::wire::{BtlTag, layouts};

layouts! {
    /// The transport's tag, the number of its link, and the handle: its length, and its bytes with zeros behind them.
    PeerHandleLayout { btl: U32, ordinal: u8, len: u8, zero: [u8; 2], handle: [u8; RemoteHandle::MAX] }
}
const _: () = assert!(size_of::<PeerHandleLayout>() == PeerHandle::LEN && PeerHandle::LEN == 144);

/// Names exposed memory for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHandle {
    btl: BtlTag,
    ordinal: u8,
    handle: RemoteHandle,
}

impl PeerHandle {
    /// The number of bytes of a handle.
    pub const LEN: usize = 8 + RemoteHandle::MAX;

    /// Encodes the handle.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut handle = [0; RemoteHandle::MAX];
        let bytes = self.handle.as_bytes();
        handle[..bytes.len()].copy_from_slice(bytes);
        let (btl, len) = (self.btl.0.into(), bytes.len() as u8);
        zerocopy::transmute!(PeerHandleLayout { btl, ordinal: self.ordinal, len, zero: [0; 2], handle })
    }

    /// Decodes a handle. Returns `None` for zeros, and for bytes that are no handle.
    pub fn parse(bytes: &[u8]) -> Option<PeerHandle> {
        let layout = PeerHandleLayout::read_from_bytes(bytes).ok().filter(|layout| layout.zero == [0; 2])?;
        let handle = layout.handle.get(..usize::from(layout.len)).filter(|handle| !handle.is_empty())?;
        let btl = BtlTag(layout.btl.get());
        Some(PeerHandle { btl, ordinal: layout.ordinal, handle: RemoteHandle::new(handle)? })
    }
}

/// Device memory that a peer may map.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange {
    /// The first byte.
    pub address: *mut u8,
    /// The length in bytes.
    pub len: usize,
    /// Where the memory is: a device.
    pub location: Location,
}

// SAFETY: an address without permission to use it.
unsafe impl Send for DeviceRange {}
// SAFETY: as above.
unsafe impl Sync for DeviceRange {}

/// What came of an attempt to expose memory.
#[derive(Debug)]
pub enum Exposure {
    /// The peer can map it, while this value exists.
    Exposed(Box<ExposedMemory>),
    /// No link lets the peer map it.
    Never,
}

/// Memory that a peer may access until this is dropped.
pub struct ExposedMemory {
    handle: PeerHandle,
    _registration: Registration,
}

impl ExposedMemory {
    /// Returns the name of the memory for the peer.
    pub fn handle(&self) -> &PeerHandle {
        &self.handle
    }
}

impl std::fmt::Debug for ExposedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ExposedMemory").field(&self.handle).finish()
    }
}

impl Engine {
    /// Checks whether the default stream has done its work on device memory, so that peers may access it.
    ///
    /// # Errors
    /// The memory's context is destroyed, or the calling thread captures a graph.
    pub fn is_settled(&self, memory: &DeviceRange) -> Result<bool, Error> {
        let DeviceRange { address, len, location } = *memory;
        let settled = self.devices().ask_default_stream(&location);
        settled.map_err(|source| Error::Device { address: address as usize, len: len as u64, source })
    }

    /// Lets a process of the node map device memory. `write` tells whether it may write the memory, otherwise it may read.
    ///
    /// # Safety
    /// The memory stays allocated until the result is dropped. The default stream's work on it is done
    /// ([`is_settled`](Self::is_settled)). The peer accesses it only when the caller has agreed with it
    /// on that.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub unsafe fn expose(&self, peer: Rank, memory: DeviceRange, write: bool) -> Result<Exposure, Error> {
        let DeviceRange { address, len, location } = memory;
        if len == 0 || !location.on_device() || self.core().copy_only() {
            return Ok(Exposure::Never);
        }
        let region = Region { address, len, location, order: Order::None };
        let (flag, access) = permission(write);
        let exposed = self.first_of_links(self.peer(peer)?, |link| {
            if !link.has(flag) {
                return Ok(None);
            }
            // SAFETY: the caller's promise.
            let registration = unsafe { link.endpoint.register(region, access) }?;
            Ok(registration.map(|registration| {
                let handle = PeerHandle { btl: link.tag, ordinal: link.ordinal, handle: *registration.handle() };
                ExposedMemory { handle, _registration: registration }
            }))
        });
        Ok(exposed.map_or(Exposure::Never, |exposed| Exposure::Exposed(Box::new(exposed))))
    }

    /// Maps memory that a peer has exposed, for kernels in the context of `into`. Returns `None` if that is impossible, or
    /// not possible now.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub fn map_exposed(
        &self,
        peer: Rank,
        exposed: &PeerHandle,
        write: bool,
        into: &Location,
    ) -> Result<Option<DeviceMapping>, Error> {
        let (flag, access) = permission(write);
        Ok(self.first_of_links(self.peer(peer)?, |link| {
            let named = (link.tag, link.ordinal) == (exposed.btl, exposed.ordinal) && link.has(flag);
            if named { link.endpoint.map_device(&exposed.handle, access, into) } else { Ok(None) }
        }))
    }

    /// Returns the first result of the links to a peer. A link that fails breaks.
    fn first_of_links<R>(
        &self,
        slot: &Slot,
        mut of: impl FnMut(&mut Link) -> Result<Option<R>, cableway_btl::Error>,
    ) -> Option<R> {
        let mut done = Done::default();
        let result = self.protocols.with(slot, &mut done, |_, channel| {
            for link in &mut channel.links.active {
                match of(link) {
                    Ok(None) => {}
                    Ok(Some(result)) => return Some(result),
                    Err(error) => {
                        channel.links.broken = Some((link.btl, error));
                        return None;
                    }
                }
            }
            None
        });
        done.run();
        result
    }
}

fn permission(write: bool) -> (Flags, Access) {
    if write { (Flags::DEVICE_PUT, Access::RemoteWrite) } else { (Flags::DEVICE_GET, Access::RemoteRead) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_what_its_bytes_say() {
        for len in [1, 8, RemoteHandle::MAX] {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            let handle = PeerHandle { btl: BtlTag(7), ordinal: 3, handle: RemoteHandle::new(&bytes).unwrap() };
            assert_eq!(PeerHandle::parse(&handle.to_bytes()), Some(handle));
        }
        let mut bytes = [0; PeerHandle::LEN];
        assert_eq!(PeerHandle::parse(&bytes), None, "no memory");
        assert_eq!(PeerHandle::parse(&bytes[1..]), None);
        bytes[5] = RemoteHandle::MAX as u8 + 1;
        assert_eq!(PeerHandle::parse(&bytes), None, "longer than a handle can be");
        (bytes[5], bytes[6]) = (1, 1);
        assert_eq!(PeerHandle::parse(&bytes), None, "reserved bytes are zeros");
    }
}
