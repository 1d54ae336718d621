//! What the operations of one engine share.

use std::sync::Arc;

use cableway_base::Parameters;
use cableway_common_cuda::HostPool;
use cableway_pml::Engine;

use super::memory::{Pools, ScratchCache};
use crate::choice::Choice;

/// The collective operations of one engine.
pub struct Collectives {
    pub(super) engine: Arc<Engine>,
    pub(super) choice: Choice,
    pub(super) device_limit: u64,
    pub(super) pools: Pools,
}

impl Collectives {
    /// Creates the collective operations of an engine. Allocates nothing.
    pub fn new(engine: Arc<Engine>, parameters: &Parameters) -> Arc<Self> {
        let devices = engine.devices().clone();
        let host = HostPool::new(&devices, parameters.staging_limit);
        Arc::new(Collectives {
            choice: Choice::new(parameters),
            device_limit: parameters.coll_device_limit as u64,
            pools: Pools { devices, host, scratch: ScratchCache::default() },
            engine,
        })
    }
}
