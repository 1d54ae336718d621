//! Admits connections of this process's user only, and limits the number of connections without an introduction.
//!
//! Any process on the node can connect to an abstract socket. The kernel reports its user, so a connection of another
//! user is closed when it is accepted. A connection that waits to be accepted needs no descriptor of this process.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use cableway_base::descriptors;

use super::{Connection, Connections, Stage, socket};
use crate::NAME;
use crate::inner::Inner;

/// The time limit for the introduction of an accepted connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of connections accepted at a time, so that a process that connects repeatedly does not occupy progress.
const ACCEPTED_AT_ONCE: usize = 64;
/// The number of accepted connections without an introduction if descriptors are plentiful. A caller introduces itself
/// at once.
const MOST_ACCEPTED: usize = 64;

/// Returns the limit for this process. It leaves room for the program's descriptors.
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
                    // For example, no descriptor is left. The connection stays in the queue, and the caller waits.
                    cableway_base::warn_once("sm/accept", || format!("{NAME}: a connection waits: {error}"));
                    return;
                }
            };
            match socket::credentials(socket.as_fd()) {
                Ok(credentials) if credentials.uid == inner.uid => {
                    self.make_room();
                    let _ = self.insert(socket, credentials, Stage::Accepted, None);
                }
                // Log only once: a flood of connections must not flood the log.
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

    /// Closes the oldest connection without an introduction if there are too many.
    fn make_room(&mut self) {
        if self.accepted().count() >= self.most_accepted
            && let Some((_, oldest)) = self.accepted().map(|(key, connection)| (connection.since, key)).min()
        {
            self.turn_away(oldest, "too many unidentified connections");
        }
    }

    /// Closes connections whose introduction is overdue.
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

    /// Returns the connections without an introduction.
    fn accepted(&self) -> impl Iterator<Item = (usize, &Connection)> {
        self.all.iter().filter(|(_, connection)| connection.stage == Stage::Accepted)
    }
}
