//! The segment for device data between processes of one node. Both processes register it with the driver. The sender's
//! device copies into a fragment of it, and the receiver's device copies out of the same pages.

use std::io;
use std::sync::Arc;

use cableway_common_cuda::{Devices, HostRegistration};

use crate::pool::Pool;
use crate::segment::{Class, DeviceGeometry, Memory};

/// This process's device segment.
pub(crate) struct DeviceSegment {
    /// Dropped before the memory.
    _registration: HostRegistration,
    pub(crate) memory: Arc<Memory>,
    /// Small fragments, and chunks.
    pub(crate) pools: [Pool; 2],
}

impl DeviceSegment {
    pub(crate) fn create(geometry: &DeviceGeometry, devices: &Devices) -> io::Result<Self> {
        let (classes, len) = geometry.layout().map_err(io::Error::other)?;
        let memory = Arc::new(Memory::create("cableway-sm-device", len)?);
        let pools = classes.map(|class| Pool::new(memory.clone(), class, usize::MAX));
        Ok(DeviceSegment { _registration: register(&memory, devices), memory, pools })
    }
}

/// A peer's device segment, mapped here.
pub(crate) struct DeviceMapping {
    /// Dropped before the memory.
    _registration: HostRegistration,
    pub(crate) memory: Arc<Memory>,
    pub(crate) classes: [Class; 2],
}

impl DeviceMapping {
    pub(crate) fn new(memory: Memory, classes: [Class; 2], devices: &Devices) -> Self {
        let memory = Arc::new(memory);
        DeviceMapping { _registration: register(&memory, devices), memory, classes }
    }
}

fn register(memory: &Memory, devices: &Devices) -> HostRegistration {
    // SAFETY: the registration is kept beside the memory and dropped before it.
    unsafe { devices.register_host(memory.at(0, memory.len()).as_ptr(), memory.len()) }
}
