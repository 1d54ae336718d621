//! Closes a link, by a goodbye of either side or after a failure.

use std::sync::Arc;

use cableway_btl::{Error, Remains};

use super::{Link, State, Tx};
use crate::NAME;
use crate::kept::{Kept, Message};
use crate::memory::Buffer;
use crate::order;
use crate::shared::Shared;
use crate::verbs::{Data, Work};
use crate::work::Owner;

impl Tx {
    /// Keeps a message whose connection broke before it was sent. Returns false if it is too late for that.
    pub(crate) fn keep(&mut self, buffer: Buffer, len: usize) -> bool {
        let broken = matches!(self.state, State::Broken(..) | State::Gone(..)) && !self.closing && !self.settled;
        if broken {
            self.kept.push(Message::Buffer { buffer, len, qp: 0, work: 0 });
        }
        broken
    }

    /// Drops all kept messages.
    pub(crate) fn forget(&mut self) {
        self.kept = Kept::default();
    }

    /// Returns the remains of a broken connection, once. None also if the peer claims more than was sent.
    pub(crate) fn remains(&mut self, received: u64) -> Option<Remains> {
        let State::Gone(_, connection) = &self.state else { return None };
        let delivered = connection.as_ref().map_or(0, |connection| connection.credits.read());
        if delivered > self.kept.sent() || std::mem::replace(&mut self.settled, true) {
            return None;
        }
        Some(Remains { received, delivered, uncertain: self.kept.take(delivered) })
    }

    /// Takes all work back, since the device will report no more completions.
    pub(crate) fn abandon(&mut self, shared: &Shared) -> Vec<Owner> {
        if self.mute
            && let State::Broken(connection, _) | State::Left { kept: Some(connection) } = &self.state
        {
            for error in connection.qps.iter().filter_map(|qp| qp.pair.reset().err()) {
                log::debug!("{NAME}: a queue pair cannot be reset: {error}");
            }
        }
        self.works.iter_mut().flat_map(|works| works.abandon(&shared.port)).collect()
    }

    /// Returns why the link broke, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &self.state {
            State::Broken(_, error) | State::Gone(error, _) => Some(error.clone()),
            _ => None,
        }
    }

    /// Sends a goodbye after the work under way. Nothing can be sent afterwards.
    pub(crate) fn close(&mut self, shared: &Shared, link: &Link) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        match &self.state {
            State::Idle => self.state = State::Gone(link.error("the link was closed here"), None),
            State::Connected(connection) => {
                let control_message = link.control.lock().as_ref().map(|control| control.goodbye);
                if let Some(goodbye) = control_message {
                    // Room for it was reserved.
                    if let Err(error) = self.send_control(shared, link, &goodbye) {
                        log::debug!("{NAME}: no goodbye to peer {}: {error}", link.rank);
                    }
                    return;
                }
                let (address, key) = connection.their_credits;
                let goodbye = Work::SendWithImmediate(order::immediate(self.kept.sent()) | order::GOODBYE);
                for qp in 0..self.works.len() {
                    // On the other queue pairs, a signalled write reports the unsignalled work before it.
                    let last = if qp == 0 { goodbye } else { Work::Write { address, key } };
                    if qp != 0 && self.works[qp].is_empty() {
                        continue;
                    }
                    // SAFETY: there is no data. Room for it was kept.
                    let sent = unsafe { self.start(shared, link, qp, last, Data::Nothing, true, Owner::Nothing) };
                    if let Err(error) = sent {
                        log::debug!("{NAME}: no goodbye to peer {}: {error}", link.rank);
                    }
                }
            }
            State::Connecting | State::Left { .. } | State::Broken(..) | State::Gone(..) => {}
        }
    }

    /// Handles the peer's goodbye: it receives nothing more. Returns false if that was known before.
    pub(crate) fn leave(&mut self, shared: &Shared, link: &Link) -> bool {
        self.stop(shared, link);
        let state = std::mem::replace(&mut self.state, State::Idle);
        let (next, new) = match state {
            State::Connected(connection) => (State::Left { kept: Some(connection) }, true),
            State::Idle | State::Connecting => (State::Left { kept: None }, true),
            other => (other, false),
        };
        self.state = next;
        new
    }

    /// Breaks the link off, and lets progress report it.
    #[cold]
    pub(crate) fn give_up(&mut self, shared: &Shared, link: &Arc<Link>, error: Error) {
        self.break_off(shared, link, error.clone());
        shared.notices.post(|notices| notices.failures.push((Arc::clone(link), error)));
    }

    /// Breaks the link off: work under way completes in error. Returns false if it was broken or gone already.
    pub(crate) fn break_off(&mut self, shared: &Shared, link: &Link, error: Error) -> bool {
        self.stop(shared, link);
        let state = std::mem::replace(&mut self.state, State::Idle);
        let (next, broken) = match state {
            State::Connected(connection) => (State::Broken(connection, error), true),
            State::Idle | State::Connecting => {
                self.unmade = true;
                (State::Gone(error, None), true)
            }
            other => (other, false),
        };
        self.state = next;
        broken
    }

    /// Flushes the work under way and stops receiving. Unsignalled work would stay in its queue forever, so one more
    /// signalled request is posted behind it, which fails at once and reports it.
    fn stop(&mut self, shared: &Shared, link: &Link) {
        for qp in 0..self.works.len() {
            let State::Connected(connection) = &self.state else { return };
            let stopped = connection.qps[qp].pair.fail();
            // On iWARP later work is not reported, and earlier work has been reported by now.
            if self.works[qp].is_empty() || shared.port.context.is_iwarp() {
                continue;
            }
            // SAFETY: there is no data. Room for it was kept.
            let last = unsafe { self.start(shared, link, qp, Work::Send, Data::Nothing, true, Owner::Nothing) };
            self.mute |= last.is_err();
            if let Err(error) = stopped.map_err(|error| error.to_string()).and(last.map_err(|error| error.to_string()))
            {
                log::debug!("{NAME}: the connection to peer {} cannot be stopped: {error}", link.rank);
            }
        }
    }
}
