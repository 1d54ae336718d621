//! Types for network devices that access device memory themselves (GPUDirect RDMA).

use std::os::fd::{FromRawFd, OwnedFd};

/// Pages of device memory, exported for other drivers.
#[derive(Debug)]
pub struct DmaBuf {
    /// The buffer that contains them.
    pub descriptor: OwnedFd,
    /// The offset of their first byte in the buffer.
    pub offset: u64,
}

/// Takes ownership of a descriptor that a driver has just returned. Returns `None` if it is invalid.
pub(crate) fn owned(descriptor: std::ffi::c_int) -> Option<OwnedFd> {
    // SAFETY: nobody else closes it.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// An allocation of device memory, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The address of the first byte.
    pub base: usize,
    /// The length in bytes.
    pub len: usize,
    /// The driver's id. Unlike an address it is never reused.
    pub id: u64,
}

/// The driver's report on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectSupport {
    /// The device's memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// The driver lends the device's memory to other kernel drivers through a module such as nvidia_peermem.
    pub peer_memory: bool,
    /// The visibility of writes by other devices into its memory.
    pub writes: WritesSeen,
}

/// The time at which every device of this process sees the bytes that a NIC has written into device memory, relative to
/// the moment when the CPU sees the NIC's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritesSeen {
    /// Immediately.
    AtOnce,
    /// After [`Devices::flush_remote_writes`](crate::Devices::flush_remote_writes).
    AfterFlush,
    /// Unknown: the driver does not report it.
    Never,
}
