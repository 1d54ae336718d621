//! Timers: retries, time limits, and checks of silent peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pending::{Failure, Phase, Side};
use super::{Engine, Source};
use crate::sys::Liveness;
use crate::{NAME, sys};

/// The clock is read at every this many calls of progress.
const CALLS: u32 = 64;
/// The interval for checks of retries and time limits.
const ROUND: Duration = Duration::from_millis(10);
/// The longest interval between queries of the kernel about the peers.
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);
/// Rejected connections that are logged in one window; others are only counted.
const LOGGED: u32 = 8;
const WINDOW: Duration = Duration::from_secs(10);

pub(super) struct Clock {
    peer_timeout: Duration,
    calls: u32,
    next_round: Instant,
    next_question: Instant,
    window: Instant,
    turned_away: u32,
}

impl Clock {
    pub(super) fn new(peer_timeout: Duration) -> Self {
        let now = Instant::now();
        Clock { peer_timeout, calls: 0, next_round: now, next_question: now, window: now, turned_away: 0 }
    }

    /// Logs a rejected connection. A flood of them does not flood the log.
    pub(super) fn log_turned_away(&mut self, from: Option<SocketAddr>, reason: &str) {
        let now = Instant::now();
        if now.duration_since(self.window) >= WINDOW {
            if self.turned_away > LOGGED {
                log::warn!("{NAME}: {} more connections were turned away", self.turned_away - LOGGED);
            }
            self.window = now;
            self.turned_away = 0;
        }
        self.turned_away += 1;
        if self.turned_away <= LOGGED {
            let from = from.map_or_else(|| "an unknown address".to_owned(), |from| from.to_string());
            log::warn!("{NAME}: a connection from {from} was turned away: {reason}");
        }
    }

    /// Returns whether a peer is dead, after a query of its connection's state in the kernel: the peer owes an
    /// acknowledgement, and has owed it for most of the permitted time. Both the kernel's count and this process's
    /// count must show that, since the kernel also counts silence without outstanding data. The rest of the time is for
    /// the probes to begin. One probe may stay unanswered: a kernel answers the probes of a full window at most twice a
    /// second.
    fn is_dead(&self, liveness: Liveness, silent_since: &mut Option<Instant>, now: Instant) -> bool {
        let owes = liveness.unacknowledged != 0 || liveness.probes >= 2;
        if !owes || liveness.silent < self.peer_timeout / 8 {
            *silent_since = None;
            return false;
        }
        let since = *silent_since.get_or_insert(now);
        liveness.silent >= self.peer_timeout * 9 / 10 && now.duration_since(since) >= self.peer_timeout / 2
    }
}

impl Engine {
    pub(super) fn look_around(&mut self) {
        self.clock.calls = self.clock.calls.wrapping_add(1);
        if !self.clock.calls.is_multiple_of(CALLS) {
            return;
        }
        let now = Instant::now();
        if now < self.clock.next_round {
            return;
        }
        self.clock.next_round = now + ROUND;
        self.retry(now);
        self.look_after_ended();
        self.limit_pending(now);
        if now >= self.clock.next_question {
            self.clock.next_question = now + (self.clock.peer_timeout / 16).min(LONGEST_INTERVAL);
            self.ask_after_peers(now);
        }
    }

    fn retry(&mut self, now: Instant) {
        let mut index = 0;
        while index < self.retries.len() {
            if self.retries[index].0 <= now {
                let (_, attempt) = self.retries.swap_remove(index);
                self.connect(attempt);
            } else {
                index += 1;
            }
        }
    }

    /// Ends attempts without an answer, and accepted connections that do not identify themselves.
    fn limit_pending(&mut self, now: Instant) {
        let timeout = self.clock.peer_timeout;
        let mut late = Vec::new();
        for (key, entry) in &self.entries {
            let Source::Pending(pending) = &entry.source else { continue };
            let limit = match (&pending.side, &pending.phase) {
                (Side::Client(attempt), Phase::Connecting) => {
                    timeout / u32::try_from(attempt.link.routes.lock().len().max(1)).unwrap_or(u32::MAX)
                }
                // A peer may be busy computing, so only silence of its kernel counts.
                (Side::Client(_), Phase::Talking(_)) | (Side::Server { proved: true, .. }, _) => continue,
                (Side::Server { proved: false, .. }, _) => timeout,
            };
            if now.duration_since(pending.since) >= limit {
                late.push(key);
            }
        }
        for key in late {
            match self.entries.get(key).map(|entry| &entry.source) {
                Some(Source::Pending(pending)) if matches!(pending.side, Side::Client(_)) => {
                    self.attempt_failed(key, &Failure::Timeout);
                }
                _ => self.turn_away(key, "it did not identify itself"),
            }
        }
    }

    fn ask_after_peers(&mut self, now: Instant) {
        let mut dead = Vec::new();
        for (key, entry) in &mut self.entries {
            let (socket, silent_since) = match &mut entry.source {
                Source::Reader(reader) => (&reader.socket, &mut reader.silent_since),
                Source::Pending(pending) if matches!(pending.phase, Phase::Talking(_)) => {
                    (&pending.socket, &mut pending.silent_since)
                }
                _ => continue,
            };
            if let Ok(liveness) = sys::liveness(socket)
                && self.clock.is_dead(liveness, silent_since, now)
            {
                dead.push((key, liveness.silent));
            }
        }
        for (key, silent) in dead {
            match self.entries.get(key).map(|entry| &entry.source) {
                Some(Source::Reader(reader)) => {
                    let peer = Arc::clone(&reader.link.peer);
                    let error = peer.error(format!("it did not answer for {:.1} s", silent.as_secs_f64()));
                    self.failures.push((peer, error));
                }
                Some(Source::Pending(_)) => self.closed(key),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn liveness(unacknowledged: u32, probes: u8, silent: u64) -> Liveness {
        Liveness { unacknowledged, probes, silent: Duration::from_secs(silent), since_data: Duration::ZERO }
    }

    #[test]
    fn silence_alone_does_not_mean_a_dead_peer() {
        let clock = Clock::new(Duration::from_secs(10));
        let (mut since, now) = (None, Instant::now());
        assert!(!clock.is_dead(liveness(0, 0, 1000), &mut since, now));
        // After an hour of silence data is sent. An acknowledgement is owed from now on.
        assert!(!clock.is_dead(liveness(1, 0, 3600), &mut since, now));
        assert!(!clock.is_dead(liveness(1, 0, 3601), &mut since, now + Duration::from_secs(4)));
        assert!(!clock.is_dead(liveness(0, 0, 0), &mut since, now + Duration::from_secs(5)));
        assert_eq!(since, None);
    }

    #[test]
    fn an_overdue_answer_means_a_dead_peer() {
        let clock = Clock::new(Duration::from_secs(10));
        for (unacknowledged, probes) in [(1, 0), (0, 2)] {
            let (mut since, start) = (None, Instant::now());
            let dead_at = (2..20).find(|&second| {
                clock.is_dead(liveness(unacknowledged, probes, second), &mut since, start + Duration::from_secs(second))
            });
            assert!(dead_at.is_some_and(|second| second <= 10), "{dead_at:?}");
        }
    }
}
