//! State of PUTs.

use cableway_btl::RemoteHandle;
use cableway_common_cuda::Strided;

use crate::wire::Id;

/// A range that the receiver asked to have stored.
pub(crate) struct PutJob {
    pub(super) id: Id,
    pub(super) receiver: Id,
    /// The range in the message. The handle's memory begins with its first byte.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Bytes of it that the link took.
    pub(super) next: u64,
    pub(super) link: u32,
    pub(super) handle: RemoteHandle,
    /// The blocks in the handle's memory, if there are several.
    pub(super) blocks: Option<Strided>,
    /// Whether a kernel packs it.
    pub(super) packed: bool,
    /// Whether a device copies it.
    pub(super) by_device: bool,
    pub(super) outstanding: usize,
    pub(super) failed: bool,
}
