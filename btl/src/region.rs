//! Memory of a user: local, or registered for a peer.

use cableway_common_cuda::{Location, Order, Spread, Strided};

/// A contiguous range of this process's memory and its location.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The first byte.
    pub address: *mut u8,
    /// The length in bytes.
    pub len: usize,
    /// The memory's location.
    pub location: Location,
    /// The order that a device's copy from or to it keeps.
    pub order: Order,
}

// SAFETY: a region is an address without permission to use it. Every method that accesses one is unsafe and states its
// conditions.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Part of a message in irregular blocks of this process's device memory, which a kernel copies.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'s> {
    /// The address to which the blocks are relative.
    pub user: *mut u8,
    /// All blocks of the message. They lie in one allocation.
    pub spread: &'s Spread,
    /// The packed bytes before this part.
    pub position: u64,
    /// The packed bytes of this part.
    pub len: usize,
    /// The location of the blocks.
    pub location: Location,
    /// The order that a copy keeps. A kernel that waits for a stream looks like one that cannot start, so synchronize
    /// with the stream before.
    pub order: Order,
}

/// The memory of this process that a `get` writes or a `put` reads.
#[derive(Clone, Copy, Debug)]
pub enum Local<'s> {
    /// The whole region.
    Run(Region),
    /// Blocks at regular distances, in packing order. Their offsets count from the region's first byte, and the region
    /// contains all of them.
    Blocks {
        /// The memory that holds the blocks.
        region: Region,
        /// The places of the blocks.
        blocks: Strided,
        /// The packed bytes to transfer.
        len: u64,
    },
    /// Irregular blocks that a kernel copies. If no kernel can do that now, the call or the completion returns
    /// [`Error::Unavailable`](crate::Error::Unavailable).
    Packed(Packed<'s>),
}

impl Local<'_> {
    /// Returns the bytes to transfer.
    pub fn len(&self) -> u64 {
        match self {
            Local::Run(region) => region.len as u64,
            Local::Blocks { len, .. } => *len,
            Local::Packed(packed) => packed.len as u64,
        }
    }

    /// Returns whether there is nothing to transfer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Region> for Local<'_> {
    fn from(region: Region) -> Self {
        Local::Run(region)
    }
}

/// The memory of the peer that a `get` reads or a `put` writes.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'h> {
    /// The handle of the peer's registration.
    pub handle: &'h RemoteHandle,
    /// The offset of the data in it. 0 for blocks.
    pub offset: u64,
    /// Blocks at regular distances, in packing order, unless the data is one run. Their offsets count from the first
    /// registered byte.
    pub blocks: Option<Strided>,
}

impl<'h> Remote<'h> {
    /// Describes one run at `offset`.
    pub fn at(handle: &'h RemoteHandle, offset: u64) -> Self {
        Remote { handle, offset, blocks: None }
    }
}

/// The peer's access to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The peer's `get`.
    RemoteRead,
    /// The peer's `put`.
    RemoteWrite,
}

/// The handle of registered memory for a peer. It travels in `pml`'s headers, and is opaque to all but the BTL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteHandle {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl RemoteHandle {
    /// The longest handle. A CUDA IPC handle has 64 bytes, and the BTL adds its own data.
    pub const MAX: usize = 136;
    /// The bytes in a word, the unit in which handles are compared.
    pub const WORD: usize = 8;

    /// Makes a handle. Returns `None` if `bytes` is longer than [`MAX`](Self::MAX).
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = RemoteHandle { bytes: [0; Self::MAX], len: u8::try_from(bytes.len()).ok()? };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// Returns the handle's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the words that differ from another handle, as bits from the lowest on. Returns `None` if the lengths
    /// differ.
    #[inline]
    pub fn differs(&self, other: &RemoteHandle) -> Option<u32> {
        if self.len != other.len {
            return None;
        }
        let (ours, theirs) = (self.bytes.as_chunks::<{ Self::WORD }>().0, other.bytes.as_chunks::<{ Self::WORD }>().0);
        let differ =
            ours.iter().zip(theirs).enumerate().map(|(index, (ours, theirs))| u32::from(ours != theirs) << index);
        Some(differ.fold(0, |all, bit| all | bit))
    }

    /// Returns a word, padded with zeros.
    #[inline]
    pub fn word(&self, index: usize) -> [u8; Self::WORD] {
        self.bytes.as_chunks::<{ Self::WORD }>().0.get(index).copied().unwrap_or_default()
    }

    /// Replaces a word. Returns false, without effect, if a part of it would lie beyond the handle.
    #[inline]
    pub fn set_word(&mut self, index: usize, word: [u8; Self::WORD]) -> bool {
        let inside = usize::from(self.len).saturating_sub(index * Self::WORD);
        let Some(place) = self.bytes.as_chunks_mut::<{ Self::WORD }>().0.get_mut(index).filter(|_| inside != 0) else {
            return false;
        };
        if word.iter().skip(inside).any(|&byte| byte != 0) {
            return false;
        }
        *place = word;
        true
    }
}

// Otherwise no word would contain its last bytes.
const _: () =
    assert!(RemoteHandle::MAX.is_multiple_of(RemoteHandle::WORD) && RemoteHandle::MAX / RemoteHandle::WORD <= 32);

impl std::fmt::Debug for RemoteHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteHandle({} bytes)", self.len)
    }
}

/// Memory that a peer can access until this is dropped.
pub struct Registration {
    handle: RemoteHandle,
    keeper: Option<Box<dyn Send>>,
}

impl Registration {
    /// Makes a registration. Dropping `keeper` ends the peer's access.
    pub fn new(handle: RemoteHandle, keeper: Option<Box<dyn Send>>) -> Self {
        Registration { handle, keeper }
    }

    /// Returns the handle for the peer.
    pub fn handle(&self) -> &RemoteHandle {
        &self.handle
    }

    /// Returns the guard to drop when the peer's access must end, or `None` if that makes no difference.
    pub fn into_keeper(self) -> Option<Box<dyn Send>> {
        self.keeper
    }
}
