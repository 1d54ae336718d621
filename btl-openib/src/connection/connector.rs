//! What the service thread asks of whatever makes connections, be it datagrams or librdmacm.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::ends::Ends;
use crate::link::Link;

/// A way in which connections come about, as the thread has it.
pub(super) trait Connector: Send {
    fn ends(&self) -> &Ends;

    fn ends_mut(&mut self) -> &mut Ends;

    /// Readable once something has come, if that was since [`arm`](Self::arm); read after, as it may have come before.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// # Errors
    /// The device refuses.
    fn arm(&mut self) -> io::Result<()>;

    /// Makes the descriptor unreadable again.
    fn drain(&mut self);

    /// What it hears by may have failed: has it work again.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn mend(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Takes what has come, until there is no more.
    ///
    /// # Errors
    /// The device or the system does not answer any more.
    fn read(&mut self) -> io::Result<()>;

    /// Deals with all that was taken.
    fn hear_all(&mut self) {}

    /// This process wants to send.
    fn want(&mut self, link: Arc<Link>);

    /// Does some of what waits to be done.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn work(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether nothing waits to be done.
    fn is_idle(&self) -> bool {
        true
    }

    /// Does what the time demands; returns when to do so again.
    fn tick(&mut self, now: Instant) -> Option<Instant>;

    /// A peer has ended. False: its connection stands.
    fn peer_ended(&mut self, link: &Arc<Link>) -> bool;

    /// This process ends.
    fn close(&mut self);
}
