//! Which of this rank's memory the default stream has done its work on.

use cableway_common_cuda::Location;
use cableway_pml::DeviceRange;
use smallvec::SmallVec;

use super::scene::Scene;
use crate::error::Error;

/// Locations of memory that may be lent to other ranks. The question costs calls of the driver, so it is asked once for all
/// of them where that is enough.
#[derive(Default)]
pub(super) struct Settled(SmallVec<[Location; 2]>);

impl Settled {
    /// Checks whether the default stream's work on this memory is done.
    pub(super) fn has(&mut self, scene: &Scene<'_>, memory: &DeviceRange) -> Result<bool, Error> {
        let (engine, at) = (&scene.shared.engine, &memory.location);
        if self.0.iter().any(|asked| scene.shared.pools.devices.is_settled_beside(at, asked)) {
            return Ok(true);
        }
        let settled = engine.is_settled(memory)?;
        if settled {
            self.0.push(*at);
        }
        Ok(settled)
    }
}
