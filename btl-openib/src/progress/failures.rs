//! Links that fail or that their peers close, and a device that fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::{Error, Upcalls};

use super::Engine;
use crate::NAME;
use crate::link::{Link, State};
use crate::verbs::{Completion, Library, status};
use crate::work::Owner;

impl Engine {
    /// What the peers that ended had sent has been received, a goodbye among it or not.
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
            status::IBV_WC_REM_ACCESS_ERR => "it does not let us reach the memory that it named".to_owned(),
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

    /// Nothing more comes from, or goes to, this peer. Reported once nothing of it is under way.
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

    /// The device failed: every peer is lost.
    #[cold]
    pub(super) fn lose_device(&mut self, reason: &str) {
        log::error!("{NAME}: {} is of no use any more: {reason}", self.shared.port.context.name);
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
            // Over iWARP, what had not been reported when all completions since had been taken never will be; elsewhere
            // neither, if the device took no work that would have reported it.
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
                    // That the device of who said goodbye does not answer any more is no failure.
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
