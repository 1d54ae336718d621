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
    /// No work, because an earlier batch of the same operation has waited.
    None,
}

/// Where the two sides of a batch's copies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// All memory is on the context's device.
    OneDevice,
    /// Some memory is on another device and mapped.
    OneNode,
}

/// The work of copy engines that would replace a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineWork {
    /// The number of driver calls.
    pub calls: u64,
    /// The number of rows in all calls.
    pub rows: u64,
}
