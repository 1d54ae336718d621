//! Memory of a user, local or made reachable for a peer.

use cableway_common_cuda::{Location, Order, Spread, Strided};

/// A contiguous range of this process's memory and where it lives.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First byte.
    pub address: *mut u8,
    /// Length in bytes.
    pub len: usize,
    /// Where it lives.
    pub location: Location,
    /// The order that a device's copy from or to it observes.
    pub order: Order,
}

// SAFETY: a region is an address, no permission to use it: every method that acts on one is unsafe and says what must
// hold.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A stretch of a message in this process's device memory, in blocks that a kernel finds by itself.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'s> {
    /// The address that the blocks are relative to.
    pub user: *mut u8,
    /// All of the message's blocks, which lie in one allocation.
    pub spread: &'s Spread,
    /// The packed bytes before the stretch.
    pub position: u64,
    /// Packed bytes of the stretch.
    pub len: usize,
    /// Where the blocks live.
    pub location: Location,
    /// The order that a copy observes. A kernel that waits for a stream looks like one without room, so synchronize
    /// with the stream before.
    pub order: Order,
}

/// The memory of this process that a `get` fills or a `put` reads.
#[derive(Clone, Copy, Debug)]
pub enum Local<'s> {
    /// All of a region.
    Run(Region),
    /// Blocks at regular distances, in packing order. Their offsets count from the region's first byte, and the region
    /// holds all of them.
    Blocks {
        /// The memory that holds the blocks.
        region: Region,
        /// Where in it they lie.
        blocks: Strided,
        /// Packed bytes to be transferred.
        len: u64,
    },
    /// Blocks that a kernel finds by itself. Where no kernel can do that now, the call or the completion says
    /// [`Error::Unavailable`](crate::Error::Unavailable).
    Packed(Packed<'s>),
}

impl Local<'_> {
    /// Bytes to be transferred.
    pub fn len(&self) -> u64 {
        match self {
            Local::Run(region) => region.len as u64,
            Local::Blocks { len, .. } => *len,
            Local::Packed(packed) => packed.len as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Region> for Local<'_> {
    fn from(region: Region) -> Self {
        Local::Run(region)
    }
}

/// The memory of the peer that a `get` reads or a `put` fills.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'h> {
    /// What the peer has registered.
    pub handle: &'h RemoteHandle,
    /// Where in it the data begins; 0 where it is in blocks.
    pub offset: u64,
    /// Blocks at regular distances, in packing order, if it is not one run. Their offsets count from the first byte of
    /// what is registered.
    pub blocks: Option<Strided>,
}

impl<'h> Remote<'h> {
    /// One run from `offset` on.
    pub fn at(handle: &'h RemoteHandle, offset: u64) -> Self {
        Remote { handle, offset, blocks: None }
    }
}

/// What a peer may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The peer's `get`.
    RemoteRead,
    /// The peer's `put`.
    RemoteWrite,
}

/// The handle that names registered memory to a peer. It travels in `pml`'s headers and is opaque to all but the BTL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteHandle {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl RemoteHandle {
    /// Longest handle: a CUDA IPC handle is 64 bytes, and what it belongs to comes on top.
    pub const MAX: usize = 136;
    /// Bytes of a word, by which two handles are compared.
    pub const WORD: usize = 8;

    /// None if `bytes` is longer than [`MAX`](Self::MAX).
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = RemoteHandle { bytes: [0; Self::MAX], len: u8::try_from(bytes.len()).ok()? };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// The handle's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The words in which it differs from another one, a bit each from the lowest on; none if that is of another length.
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

    /// A word of it, filled up with zeros; of zeros where there is none.
    #[inline]
    pub fn word(&self, index: usize) -> [u8; Self::WORD] {
        self.bytes.as_chunks::<{ Self::WORD }>().0.get(index).copied().unwrap_or_default()
    }

    /// Replaces a word; false, and nothing has happened, if some of it would lie beyond the handle.
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

// Else its last bytes would be in no word.
const _: () =
    assert!(RemoteHandle::MAX.is_multiple_of(RemoteHandle::WORD) && RemoteHandle::MAX / RemoteHandle::WORD <= 32);

impl std::fmt::Debug for RemoteHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteHandle({} bytes)", self.len)
    }
}

/// Memory that a peer can reach until this is dropped.
pub struct Registration {
    handle: RemoteHandle,
    keeper: Option<Box<dyn Send>>,
}

impl Registration {
    /// `keeper`'s drop takes the permission back.
    pub fn new(handle: RemoteHandle, keeper: Option<Box<dyn Send>>) -> Self {
        Registration { handle, keeper }
    }

    /// Returns the handle for the peer.
    pub fn handle(&self) -> &RemoteHandle {
        &self.handle
    }

    /// Returns the guard to drop when the peer must no longer reach the memory; none if that makes no difference.
    pub fn into_keeper(self) -> Option<Box<dyn Send>> {
        self.keeper
    }
}
