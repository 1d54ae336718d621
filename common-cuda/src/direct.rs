//! Types for network devices that access device memory themselves (GPUDirect RDMA).

/// An allocation of device memory, as the driver knows it at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first byte.
    pub base: usize,
    /// Bytes.
    pub len: usize,
    /// The driver's id: never given out again, unlike the address.
    pub id: u64,
}

/// The driver's report on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectSupport {
    /// Its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// The driver lends its memory to other drivers of the kernel, where a module asks for it.
    pub peer_memory: bool,
    /// When what others wrote into its memory is seen.
    pub writes: WritesSeen,
}

/// When every device of this process sees what a network device has written into device memory, of which the CPU has
/// been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritesSeen {
    /// At once.
    AtOnce,
    /// After [`Devices::flush_remote_writes`](crate::Devices::flush_remote_writes).
    AfterFlush,
    /// The driver does not say.
    Never,
}
