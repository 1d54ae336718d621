//! The order after the program's default streams, as messages ask for it.

use super::{Completion, Devices};
use crate::error::DeviceError;
use crate::location::Location;
use crate::order;

/// When something began, as [`Devices::settled_since`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Devices {
    /// What is done once the work is that the default stream of the buffer at `at` holds now, where the parameter
    /// `default_stream_order` asks for that order: before then no other process is to be told that it may read or write
    /// the buffer. Done at once for host memory.
    ///
    /// # Errors
    /// The buffer's context is gone, or the calling thread captures a graph.
    pub fn default_stream(&self, at: &Location) -> Result<Completion, DeviceError> {
        match self.platform() {
            Some(platform) if at.on_device() => Ok(Completion { operation: platform.default_stream(at)? }),
            _ => Ok(Completion::DONE),
        }
    }

    /// This moment, to be remembered with an operation that begins.
    pub fn moment(&self) -> Moment {
        Moment(order::moment())
    }

    /// Whether the work that the default stream of the buffer at `at` held at a moment is known to be done, so that
    /// nothing needs to wait for it ([`Order::None`](crate::Order::None)). Asks nobody.
    pub fn settled_since(&self, at: &Location, moment: Moment) -> bool {
        self.platform().is_none_or(|platform| platform.settled_since(at, moment.0))
    }

    /// Asks the driver whether that stream has nothing left to do: what [`settled_since`](Self::settled_since) knows is
    /// known from here. Takes more than a microsecond, so it is for a thread that has nothing better to do.
    ///
    /// # Errors
    /// As [`default_stream`](Self::default_stream).
    pub fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        match self.platform() {
            Some(platform) if at.on_device() => platform.ask_default_stream(at),
            _ => Ok(true),
        }
    }
}
