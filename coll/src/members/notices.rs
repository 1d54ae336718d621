//! Carries the messages of agreements.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use cableway_pml::{ANY, Buffer, Engine, NOTICE, Outcome, Request, SendMode, Service};
use parking_lot::Mutex;

use super::Members;
use crate::agreement::Notice;

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
    sends: Mutex<Vec<Sending>>,
}

/// A message under way. The engine knows the addresses of both boxes.
struct Sending {
    request: Box<Request>,
    bytes: Box<[u8; Notice::LEN]>,
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
                match relay_of(bytes) {
                    Some(rank) if members.reach.relays_to(rank) => {
                        self.post(engine, &members, rank, without_relay(bytes));
                    }
                    Some(rank) => log::debug!("a notice for rank {rank}, to which this process passes on none"),
                    None => {
                        if let Some(notice) = Notice::decode(bytes) {
                            members.agreement.lock().receive(notice);
                        }
                    }
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

    fn send_in_order(&self, engine: &Engine, members: &Members) {
        loop {
            let Some((to, notice)) = members.agreement.lock().next_notice() else { break };
            let route = members.reach.route(to);
            let mut bytes = notice.encode();
            bytes[RELAY].copy_from_slice(&route.relay.map_or(0, |rank| rank + 1).to_le_bytes());
            self.post(engine, members, route.to, bytes);
        }
    }

    fn post(&self, engine: &Engine, members: &Members, to: u32, bytes: [u8; Notice::LEN]) {
        let (request, bytes) = (Box::new(Request::new()), Box::new(bytes));
        let buffer = Buffer::bytes(bytes.as_ptr(), Notice::LEN as u64);
        // SAFETY: the boxes are kept until the request is complete.
        let sent =
            unsafe { engine.isend(&members.on, to as i32, NOTICE, buffer, &SendMode::Standard, &raw const *request) };
        match sent {
            Ok(Outcome::Complete) => {}
            Ok(Outcome::Started) => {
                let mut sends = self.sends.lock();
                sends.retain(|sending| !sending.request.is_complete());
                sends.push(Sending { request, bytes });
            }
            // The member has died, and operations with it fail.
            Err(error) => log::debug!("cannot tell rank {to} who performs collective operations: {error}"),
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

impl Drop for Notices {
    fn drop(&mut self) {
        for sending in self.sends.get_mut().drain(..) {
            if !sending.request.is_complete() {
                // An engine that ended early may still know the addresses.
                std::mem::forget((sending.request, sending.bytes));
            }
        }
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

fn relay_of(bytes: [u8; Notice::LEN]) -> Option<u32> {
    u32::from_le_bytes(std::array::from_fn(|at| bytes[RELAY.start + at])).checked_sub(1)
}

fn without_relay(mut bytes: [u8; Notice::LEN]) -> [u8; Notice::LEN] {
    bytes[RELAY].fill(0);
    bytes
}
