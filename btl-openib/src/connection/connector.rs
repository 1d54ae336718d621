//! The interface between the service thread and the two connection methods, datagrams and librdmacm.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::common::ConnectorCommon;
use crate::link::Link;

/// Makes connections on behalf of the service thread.
pub(super) trait Connector: Send {
    fn common(&self) -> &ConnectorCommon;

    fn common_mut(&mut self) -> &mut ConnectorCommon;

    /// Returns a descriptor that becomes readable when something arrives after [`arm`](Self::arm). Read once after
    /// arming, since something may have arrived before.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// # Errors
    /// The device refuses.
    fn arm(&mut self) -> io::Result<()>;

    /// Makes the descriptor unreadable again.
    fn drain(&mut self);

    /// Repairs the datagram queue pair after a failure.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn mend(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Reads everything that has arrived.
    ///
    /// # Errors
    /// The device or the system failed.
    fn read(&mut self) -> io::Result<()>;

    /// Handles everything that was read.
    fn hear_all(&mut self) {}

    /// Starts a connection that this process wants to send on.
    fn want(&mut self, link: Arc<Link>);

    /// Does some of the pending work.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn work(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether no work is pending.
    fn is_idle(&self) -> bool {
        true
    }

    /// Handles timeouts; returns when to call again.
    fn tick(&mut self, now: Instant) -> Option<Instant>;

    /// Handles the end of a peer's process. Returns false if its connection is established.
    fn peer_ended(&mut self, link: &Arc<Link>) -> bool;

    /// Stops making connections because this process ends.
    fn close(&mut self);
}
