//! State of PUTs.

use cableway_btl::RemoteHandle;
use cableway_common_cuda::Strided;

use crate::wire::Id;

/// A range that the receiver asked to have stored.
pub(crate) struct PutJob {
    pub(crate) id: Id,
    pub(crate) receiver: Id,
    /// The range in the message. The handle's memory begins with its first byte.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes of it that the link took.
    pub(crate) next: u64,
    pub(crate) link: u32,
    pub(crate) handle: RemoteHandle,
    /// The blocks in the handle's memory, if there are several.
    pub(crate) blocks: Option<Strided>,
    /// Whether a kernel packs it.
    pub(crate) packed: bool,
    pub(crate) outstanding: usize,
    pub(crate) failed: bool,
}
