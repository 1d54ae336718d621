//! The parameters that govern copies.

use std::time::Duration;

use cableway_base::Parameters;
use cableway_base::parameters::{DefaultStreamOrder, DeviceProtocols};

/// The parameters of contexts, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// True if work follows the program's default streams.
    pub(crate) ordered: bool,
    /// True if the driver is asked to complete the program's synchronous calls, so that work need not follow.
    pub(crate) synchronises: bool,
    pub(crate) kernels: bool,
    /// The longest wait of a job for room on its device.
    pub(crate) patience: Duration,
    /// The average size of plain copies up to which a kernel makes them.
    pub(crate) kernel_limit: usize,
    /// True if the user set `kernel_limit`. It then overrides measurements.
    pub(crate) kernel_limit_set: bool,
    /// The extra time of a kernel that packs, over a copy engine's copy of the same bytes.
    pub(crate) pack_latency: Duration,
    /// Present if a resident kernel makes small copies: its maximal idle time, and its maximal run time.
    pub(crate) copier: bool,
    pub(crate) copier_idle: Duration,
    pub(crate) copier_lease: Duration,
    /// How long the CPU polls memory for a small copy to the host before it asks the driver.
    pub(crate) landing: Duration,
    /// The time until a device has changed contexts.
    pub(crate) turn: Duration,
    /// The bytes of device memory for lists of blocks.
    pub(crate) list_memory: usize,
    /// The largest copies to the host, and to a device, that the CPU makes through a mapping.
    pub(crate) mapped_read: usize,
    pub(crate) mapped_write: usize,
}

impl Settings {
    pub(crate) fn new(parameters: &Parameters) -> Settings {
        Settings {
            ordered: parameters.default_stream_order != DefaultStreamOrder::None,
            synchronises: parameters.default_stream_order == DefaultStreamOrder::Auto,
            kernels: parameters.device_kernels && parameters.device_protocols == DeviceProtocols::Auto,
            patience: parameters.device_kernel_patience,
            kernel_limit: parameters.device_kernel_limit,
            kernel_limit_set: parameters.is_set("device_kernel_limit"),
            pack_latency: parameters.device_pack_latency,
            copier: parameters.device_copier,
            copier_idle: parameters.device_copier_idle,
            copier_lease: parameters.device_copier_lease,
            landing: parameters.device_landing_patience,
            turn: parameters.device_turn_latency,
            list_memory: parameters.device_list_memory,
            mapped_read: parameters.device_mapped_read_limit,
            mapped_write: parameters.device_mapped_write_limit,
        }
    }
}
