//! Types for network devices that access device memory themselves (GPUDirect RDMA).

/// An allocation of device memory, as the driver knows it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first byte.
    pub base: usize,
    /// Bytes.
    pub len: usize,
    /// The driver's id. Unlike the address it is never used again.
    pub id: u64,
}

/// The driver's report on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectSupport {
    /// Its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// The driver lends its memory to other kernel drivers, if a module asks for it.
    pub peer_memory: bool,
    /// When devices see writes by others into its memory.
    pub writes: WritesSeen,
}

/// When every device of this process sees the bytes that a network device has written into device memory, after the CPU
/// has seen the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritesSeen {
    /// At once.
    AtOnce,
    /// After [`Devices::flush_remote_writes`](crate::Devices::flush_remote_writes).
    AfterFlush,
    /// The driver does not say.
    Never,
}
