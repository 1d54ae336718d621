//! Plain types that describe copies by a device.

/// The direction of a copy. Each direction has its own stream, so that both overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From device to host memory.
    DeviceToHost,
    /// From host to device memory.
    HostToDevice,
    /// Between device memories that this process can address.
    DeviceToDevice,
}

/// The work that a batch of copies waits for first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Work already in the context's legacy default stream, where the parameter `default_stream_order` says so. For
    /// the first batch of an operation on a user's buffer.
    AfterDefaultStream,
    /// Nothing: an earlier batch of the same operation has waited.
    None,
}

/// The distance between the two sides of a batch's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// All of them lie on the context's device.
    OneDevice,
    /// Some lie on another device, whose memory is mapped.
    OneNode,
}

/// Describes the work of copy engines that would pack or unpack in place of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineWork {
    /// Calls of the driver.
    pub calls: u64,
    /// Rows of all of them.
    pub rows: u64,
}
