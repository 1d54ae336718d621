//! State that the transport and its endpoint share.

use std::sync::Arc;

use cableway_btl::Region;
use cableway_common_cuda::Devices;
use parking_lot::Mutex;
use slab::Slab;

use crate::copy::Copies;
use crate::queue::Queue;

/// State that the transport and its endpoint share.
pub(crate) struct Shared {
    pub(crate) devices: Devices,
    pub(crate) queue: Arc<Queue>,
    pub(crate) copies: Mutex<Copies>,
    /// Memory that peers may `get`, by the key in its handle.
    pub(crate) registered: Arc<Mutex<Slab<Region>>>,
}
