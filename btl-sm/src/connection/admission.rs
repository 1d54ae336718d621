//! Admits connections: only of this process's user, and only a limited number that has not introduced itself.
//!
//! Anybody on the node can connect to an abstract socket. The kernel says which user it is, so a connection of another
//! user is closed as it is accepted. What waits to be accepted takes no descriptor of this process.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use cableway_base::descriptors;

use super::{Connection, Connections, Stage, socket};
use crate::NAME;
use crate::inner::Inner;

/// A connection that has not said who it is by then is closed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections taken from the queue in one look. A process that connects again and again must not keep progress busy.
const ACCEPTED_AT_ONCE: usize = 64;
/// Connections that may have been accepted and not have said who they are, where descriptors are plenty. A caller says
/// so at once.
const MOST_ACCEPTED: usize = 64;

/// The bound for this process. It leaves room for what the program opens.
pub(super) fn most_accepted() -> usize {
    descriptors::share(MOST_ACCEPTED)
}

impl Connections {
    pub(super) fn accept(&mut self, inner: &Inner, now: Instant) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(listener) = &self.listener else { return };
            let socket = match socket::accept(listener) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    // For example, no descriptor is left. The connection stays in the queue, and its maker waits.
                    cableway_base::warn_once("sm/accept", || format!("{NAME}: a connection waits: {error}"));
                    return;
                }
            };
            match socket::credentials(socket.as_fd()) {
                Ok(credentials) if credentials.uid == inner.uid => {
                    self.make_room();
                    let _ = self.insert(socket, credentials, Stage::Accepted, None);
                }
                // One line is enough: a flood of connections must not flood the log.
                Ok(other) => {
                    cableway_base::warn_once("sm/other-user", || {
                        let (pid, uid, own) = (other.pid, other.uid, inner.uid);
                        format!("{NAME}: process {pid} of user {uid} connects to a process of user {own}: refused")
                    });
                }
                Err(error) => log::warn!("{NAME}: refused a connection that tells no owner: {error}"),
            }
        }
        self.turn_silent_away(now);
    }

    /// Closes the oldest connection that has not said who it is, if there are as many as may be.
    fn make_room(&mut self) {
        if self.accepted().count() >= self.most_accepted
            && let Some((_, oldest)) = self.accepted().map(|(key, connection)| (connection.since, key)).min()
        {
            self.turn_away(oldest, "too many others wait");
        }
    }

    /// Closes connections that should have said who they are.
    pub(super) fn turn_silent_away(&mut self, now: Instant) {
        let late = |connection: &Connection| now.saturating_duration_since(connection.since) > PATIENCE;
        let late: Vec<_> = self.accepted().filter(|(_, connection)| late(connection)).map(|(key, _)| key).collect();
        for key in late {
            self.turn_away(key, "it says nothing");
        }
    }

    fn turn_away(&mut self, key: usize, reason: &str) {
        log::warn!("{NAME}: closed a connection of {}: {reason}", self.who(key));
        self.remove(key);
    }

    /// Connections that have not said who they are.
    fn accepted(&self) -> impl Iterator<Item = (usize, &Connection)> {
        self.all.iter().filter(|(_, connection)| connection.stage == Stage::Accepted)
    }
}
