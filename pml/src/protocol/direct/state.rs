//! State of direct moves.

use cableway_btl::Region;
use cableway_common_cuda::Strided;

use crate::core::Active;
use crate::error::Error;
use crate::wire::Exposed;

/// Bytes that this process moves between its memory and a peer's.
pub(crate) struct DirectJob {
    /// Whether the peer's memory is written.
    pub(super) store: bool,
    pub(super) local: Region,
    pub(super) remote: Exposed,
    /// Whether either memory is on a device.
    pub(super) on_device: bool,
    /// The offset of the bytes in the exposed memory.
    pub(super) offset: u64,
    /// The places of the bytes in both memories, unless they are runs. They move in one piece.
    pub(super) blocks: Option<[Strided; 2]>,
    /// The bytes to move.
    pub(super) len: usize,
    /// Bytes that the link took.
    pub(super) next: usize,
    pub(super) outstanding: usize,
    /// The first error. No piece starts after it.
    pub(super) error: Option<Error>,
    pub(super) request: Active,
}
