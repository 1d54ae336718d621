//! Carries the messages of agreements.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway_coll::Notice;
use cableway_pml::{ANY, Buffer, Engine, NOTICE, Outcome, Request, SendMode};
use parking_lot::Mutex;

use super::members::{ALL, Members};

/// The engine's count of notices when they were last received. [`AGAIN`] differs from every count.
static SEEN: AtomicU64 = AtomicU64::new(0);
const AGAIN: u64 = u64::MAX;

/// Held by the thread that carries notices. Agreements need them in order between each two members, so only one thread at
/// a time receives them, and takes them from an agreement and sends them.
static CARRIER: Mutex<()> = Mutex::new(());

/// Sends that are not complete.
static SENDS: Mutex<Vec<Sending>> = Mutex::new(Vec::new());

/// A message under way. The engine knows the addresses of both boxes.
struct Sending {
    request: Box<Request>,
    _bytes: Box<[u8; Notice::LEN]>,
}

/// Makes the next [`progress`] receive notices of all communicators.
pub(super) fn look_again() {
    SEEN.store(AGAIN, Ordering::Release);
}

/// Receives the notices that have arrived, and sends the answers. Returns the number of notices.
#[inline]
pub(crate) fn progress(engine: &Engine) -> usize {
    let arrived = engine.notices();
    if SEEN.load(Ordering::Relaxed) == arrived { 0 } else { receive_all(engine, arrived) }
}

#[cold]
fn receive_all(engine: &Engine, arrived: u64) -> usize {
    let Some(_carrier) = CARRIER.try_lock() else { return 0 };
    // Later ones change the engine's count.
    SEEN.store(arrived, Ordering::Release);
    let all: Vec<Arc<Members>> = ALL.lock().iter().filter_map(std::sync::Weak::upgrade).collect();
    let mut received = 0;
    for members in all {
        while let Some(bytes) = receive(engine, &members) {
            match relay_of(bytes) {
                Some(rank) if members.reach.relays_to(rank) => post(engine, &members, rank, without_relay(bytes)),
                Some(rank) => log::debug!("a notice for rank {rank}, to which this process passes on none"),
                None => {
                    if let Some(notice) = Notice::decode(bytes) {
                        members.agreement.lock().receive(notice);
                    }
                }
            }
            received += 1;
        }
        send_in_order(engine, &members);
    }
    received
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

/// Sends what an agreement has to say. If another thread carries notices, the next [`progress`] does it.
pub(super) fn send(engine: &Engine, members: &Members) {
    match CARRIER.try_lock() {
        Some(_carrier) => send_in_order(engine, members),
        None => look_again(),
    }
}

fn send_in_order(engine: &Engine, members: &Members) {
    loop {
        let Some((to, notice)) = members.agreement.lock().next_notice() else { break };
        let route = members.reach.route(to);
        let mut bytes = notice.encode();
        bytes[RELAY].copy_from_slice(&route.relay.map_or(0, |rank| rank + 1).to_le_bytes());
        post(engine, members, route.to, bytes);
    }
}

fn post(engine: &Engine, members: &Members, to: u32, bytes: [u8; Notice::LEN]) {
    let (request, bytes) = (Box::new(Request::new()), Box::new(bytes));
    let buffer = Buffer::bytes(bytes.as_ptr(), Notice::LEN as u64);
    // SAFETY: the boxes are kept until the request is complete.
    let sent =
        unsafe { engine.isend(&members.on, to as i32, NOTICE, buffer, &SendMode::Standard, &raw const *request) };
    match sent {
        Ok(Outcome::Complete) => {}
        Ok(Outcome::Started) => {
            let mut sends = SENDS.lock();
            sends.retain(|sending| !sending.request.is_complete());
            sends.push(Sending { request, _bytes: bytes });
        }
        // The member has died, and operations with it fail.
        Err(error) => log::debug!("cannot tell rank {to} who performs collective operations: {error}"),
    }
}
