//! What parameters say of how copies are made.

use std::time::Duration;

use cableway_base::Parameters;
use cableway_base::parameters::DeviceProtocols;

/// The parameters that concern contexts, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) kernels: bool,
    /// How long a job may wait for room on its device.
    pub(crate) patience: Duration,
    /// Average size of plain copies up to which a kernel makes them.
    pub(crate) kernel_limit: usize,
    /// Whether `kernel_limit` was set by hand, and so holds whatever was measured.
    pub(crate) kernel_limit_set: bool,
    /// What a kernel takes longer to pack than a copy engine to copy the same.
    pub(crate) pack_latency: Duration,
    /// Whether a kernel stays for small copies, for how long with nothing to do, and for how long in any case.
    pub(crate) copier: bool,
    pub(crate) copier_idle: Duration,
    pub(crate) copier_lease: Duration,
    /// How long the bytes of a small copy to the host are polled before the driver is asked.
    pub(crate) landing: Duration,
    /// Bytes of device memory for lists of blocks.
    pub(crate) list_memory: usize,
    /// Largest copies to the host, and to a device, that the CPU makes through a mapping.
    pub(crate) mapped_read: usize,
    pub(crate) mapped_write: usize,
}

impl Settings {
    pub(crate) fn new(parameters: &Parameters) -> Settings {
        Settings {
            kernels: parameters.device_kernels && parameters.device_protocols == DeviceProtocols::Auto,
            patience: parameters.device_kernel_patience,
            kernel_limit: parameters.device_kernel_limit,
            kernel_limit_set: parameters.is_set("device_kernel_limit"),
            pack_latency: parameters.device_pack_latency,
            copier: parameters.device_copier,
            copier_idle: parameters.device_copier_idle,
            copier_lease: parameters.device_copier_lease,
            landing: parameters.device_landing_patience,
            list_memory: parameters.device_list_memory,
            mapped_read: parameters.device_mapped_read_limit,
            mapped_write: parameters.device_mapped_write_limit,
        }
    }
}
