//! Failed links, links closed by peers, and a failed device.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::{Error, Upcalls};

use super::Engine;
use crate::NAME;
use crate::link::{Link, State};
use crate::verbs::{Completion, Library, status};
use crate::work::Owner;

impl Engine {
    /// Fails the links of ended peers, once all their messages were received.
    #[cold]
    pub(super) fn fail_ended(&mut self) {
        for link in std::mem::take(&mut self.ended) {
            let error = link.error("its process has ended");
            self.fail(&link, error);
        }
    }

    pub(super) fn reason(&self, link: &Link, completion: &Completion) -> Error {
        let text = match completion.status {
            status::IBV_WC_RETRY_EXC_ERR => "its device does not answer".to_owned(),
            status::IBV_WC_REM_ACCESS_ERR => "it denied access to the memory that it named".to_owned(),
            code => match Library::load() {
                Ok(library) => library.status(code),
                Err(_) => format!("status {code}"),
            },
        };
        link.error(text)
    }

    #[cold]
    pub(super) fn broke(&mut self, link: &Arc<Link>, completion: &Completion) {
        let error = self.reason(link, completion);
        self.fail(link, error);
    }

    /// Breaks the link to a peer. It is reported once no work on it is under way.
    #[cold]
    pub(super) fn fail(&mut self, link: &Arc<Link>, error: Error) {
        link.tx.lock().break_off(&self.shared, link, error);
        self.part(link);
    }

    pub(super) fn part(&mut self, link: &Arc<Link>) {
        link.silenced.store(true, Ordering::Relaxed);
        if !self.failing.iter().any(|(failing, _)| Arc::ptr_eq(failing, link)) {
            self.failing.push((Arc::clone(link), self.polls));
        }
    }

    /// Fails every link after the device failed.
    #[cold]
    pub(super) fn lose_device(&mut self, reason: &str) {
        log::error!("{NAME}: device {} failed: {reason}", self.shared.port.context.name);
        self.dead = true;
        self.shared.lost.store(true, Ordering::Relaxed);
        for link in self.shared.all_links() {
            let error = link.error(format!("the device here failed: {reason}"));
            self.fail(&link, error);
        }
    }

    pub(super) fn report(&mut self, upcalls: &dyn Upcalls) -> usize {
        let before = self.failing.len();
        for (link, since) in std::mem::take(&mut self.failing) {
            // Over iWARP, work that was not reported when the queue next ran empty never will be. The same holds
            // elsewhere if the device refused the work that would have reported it.
            let abandoned = {
                let mut tx = link.tx.lock();
                let silent = self.iwarp || tx.mute;
                let over = self.dead || (silent && self.drained > since);
                if over { tx.abandon(&self.shared) } else { Vec::new() }
            };
            for owner in &abandoned {
                if let Owner::Transfer { token, .. } = owner {
                    let error = link.tx.lock().failure().unwrap_or_else(|| link.left());
                    upcalls.completed(*token, Err(error));
                }
            }
            let error = {
                let mut tx = link.tx.lock();
                if !tx.is_idle() {
                    drop(tx);
                    self.failing.push((link, since));
                    continue;
                }
                let state = std::mem::replace(&mut tx.state, State::Idle);
                let (next, error) = match state {
                    State::Broken(connection, error) => (State::Gone(error.clone(), Some(connection)), Some(error)),
                    State::Gone(error, connection) => (State::Gone(error.clone(), connection), Some(error)),
                    // After a goodbye, a device that does not answer is no failure.
                    other => {
                        tx.forget();
                        (other, None)
                    }
                };
                tx.state = next;
                error
            };
            if let Some(arrivals) = &link.arrivals {
                arrivals.lock().clear();
            }
            if !link.reported.swap(true, Ordering::Relaxed) {
                match error {
                    Some(error) => upcalls.peer_failed(link.rank, error),
                    None => upcalls.peer_left(link.rank),
                }
            }
        }
        before - self.failing.len()
    }
}
