//! Carries the messages of agreements.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use cableway_pml::{ANY, Buffer, Engine, Error, NOTICE, Request, SendMode, Service};
use parking_lot::Mutex;

use super::Members;
use super::proposal::Proposal;
use crate::agreement::{Notice, Route};
use crate::run::Note;

/// The notices of all communicators of an engine. The engine polls it.
pub struct Notices {
    /// All communicators whose members agree.
    all: Mutex<Vec<Weak<Members>>>,
    /// The engine's count of notices when they were last received.
    seen: AtomicU64,
    /// Something is left to receive or to send, whatever the engine's count is.
    behind: AtomicBool,
    /// Held by the thread that carries notices. Agreements need them in order between each two members, so only one thread
    /// at a time receives them, and takes them from an agreement and sends them.
    carrier: Mutex<()>,
    /// Sends that are not complete.
    sends: Mutex<Vec<Note<{ Notice::LEN }>>>,
}

impl Notices {
    /// Has an engine carry notices as long as it lives.
    pub fn carried_by(engine: &Engine) -> Arc<Notices> {
        let notices = Arc::new(Notices {
            all: Mutex::default(),
            seen: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            carrier: Mutex::new(()),
            sends: Mutex::default(),
        });
        engine.add_service(notices.clone());
        notices
    }

    /// Adds a communicator. Notices for it may have come before.
    pub(super) fn add(&self, engine: &Engine, members: &Arc<Members>) {
        let mut all = self.all.lock();
        all.retain(|members| members.strong_count() != 0);
        all.push(Arc::downgrade(members));
        drop(all);
        self.look_again(engine);
    }

    /// Has the engine poll soon.
    fn look_again(&self, engine: &Engine) {
        self.behind.store(true, Ordering::Release);
        engine.poll_services();
    }

    #[cold]
    fn receive_all(&self, engine: &Engine, arrived: u64) -> usize {
        let Some(_carrier) = self.carrier.try_lock() else {
            self.behind.store(true, Ordering::Release);
            return 0;
        };
        self.behind.store(false, Ordering::Relaxed);
        // Later ones change the engine's count.
        self.seen.store(arrived, Ordering::Release);
        let all: Vec<Arc<Members>> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        let mut received = 0;
        for members in all {
            while let Some(bytes) = receive(engine, &members) {
                match decode(bytes) {
                    (Some(rank), Some(notice)) if members.reach.relays_to(rank) => {
                        members.relayed.note(rank, notice);
                        self.post(engine, &members, Route { to: rank, relay: None }, notice);
                    }
                    (None, Some(notice)) => members.receive(notice),
                    (rank, notice) => log::debug!("this process passes no notice {notice:?} on to {rank:?}"),
                }
                received += 1;
            }
            self.send_in_order(engine, &members);
        }
        received
    }

    /// Sends what an agreement has to say. If another thread carries notices, the next poll does it.
    pub(super) fn send(&self, engine: &Engine, members: &Members) {
        match self.carrier.try_lock() {
            Some(_carrier) => self.send_in_order(engine, members),
            None => self.look_again(engine),
        }
    }

    /// Sends what an agreement has to say, and returns what `then` says while nobody else carries notices. Returns false if
    /// another thread does.
    pub(super) fn send_all(&self, engine: &Engine, members: &Members, then: impl FnOnce() -> bool) -> bool {
        let Some(_carrier) = self.carrier.try_lock() else { return false };
        self.send_in_order(engine, members);
        then()
    }

    fn send_in_order(&self, engine: &Engine, members: &Members) {
        loop {
            let Some((to, notice)) = members.agreement.lock().next_notice() else { break };
            self.post(engine, members, members.reach.route(to), notice);
        }
    }

    fn post(&self, engine: &Engine, members: &Members, Route { to, relay }: Route, notice: Notice) {
        let is_proposal = matches!(notice, Notice::Propose { .. });
        let mode = if is_proposal { SendMode::Synchronous } else { SendMode::Standard };
        match Note::send((engine, &members.on), (to, NOTICE), Some(encode(notice, relay)), &mode) {
            Ok(note) if is_proposal => {
                let members = members.this.clone();
                let lost = move |error| {
                    if let Some(members) = members.upgrade() {
                        members.notices.lose(members.engine(), &members, to, &error);
                        members.notices.send(members.engine(), &members);
                    }
                };
                engine.add_task(Arc::new(Proposal::new(note, lost)));
            }
            Ok(note) if note.is_over() => {}
            Ok(note) => {
                let mut sends = self.sends.lock();
                sends.retain(|sent| !sent.is_over());
                sends.push(note);
            }
            Err(error) if is_proposal => self.lose(engine, members, to, &error),
            Err(error) => log::debug!("cannot tell rank {to} who performs collective operations: {error}"),
        }
    }

    /// Notes that a proposal has not reached a rank. The caller sees to it that notices are sent.
    fn lose(&self, engine: &Engine, members: &Members, to: u32, error: &Error) {
        log::debug!("rank {to} makes no collective operation any more: {error}");
        if members.relayed.lose(to) {
            // Rank 0 of the other group leads.
            self.post(engine, members, Route { to: 0, relay: None }, Notice::Lost);
        } else {
            members.agreement.lock().lose();
        }
    }
}

impl Service for Notices {
    fn poll(&self, engine: &Engine) -> usize {
        let arrived = engine.notices();
        let is_behind = self.behind.load(Ordering::Acquire);
        if is_behind || self.seen.load(Ordering::Relaxed) != arrived { self.receive_all(engine, arrived) } else { 0 }
    }

    fn is_idle(&self) -> bool {
        !self.behind.load(Ordering::Acquire)
    }
}

fn receive(engine: &Engine, members: &Members) -> Option<[u8; Notice::LEN]> {
    let message = engine.improbe(&members.on, ANY, NOTICE).ok()??;
    let mut bytes = [0; Notice::LEN];
    let request = Request::new();
    // SAFETY: both live until the request is complete, which is waited for below.
    unsafe { engine.imrecv(message, Buffer::bytes(bytes.as_mut_ptr(), Notice::LEN as u64), &raw const request) };
    engine.wait_until(|| request.is_complete());
    request.result().ok()?;
    Some(bytes)
}

/// Where a notice's bytes hold the rank to which it is passed on, plus one, or zero. The number of its kind is small.
const RELAY: std::ops::Range<usize> = 4..8;

fn encode(notice: Notice, relay: Option<u32>) -> [u8; Notice::LEN] {
    let mut bytes = notice.encode();
    bytes[RELAY].copy_from_slice(&relay.map_or(0, |rank| rank + 1).to_le_bytes());
    bytes
}

/// Returns the rank to which a notice is to be passed on, and the notice, if the bytes are one.
fn decode(mut bytes: [u8; Notice::LEN]) -> (Option<u32>, Option<Notice>) {
    let relay = u32::from_le_bytes(std::array::from_fn(|at| bytes[RELAY.start + at])).checked_sub(1);
    bytes[RELAY].fill(0);
    (relay, Notice::decode(bytes))
}
