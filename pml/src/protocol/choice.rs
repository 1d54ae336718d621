//! Chooses the protocol: probes all of them, and takes the cheapest. Of equal costs the first in the list wins.
//!
//! The sender chooses by [`start`], the receiver by [`data`] once an announced message has matched.
//! [`mod@super::explain`] prints the same probes.
//!
//! | message | protocol |
//! |---|---|
//! | fits the inline limit, host, one run | inline: header and data in one store |
//! | from a device, up to `device_push_limit`, the link reaches device memory | announced; the receiver exposes its buffer, the sender stores |
//! | the same, larger | announced with a remote key; the receiver fetches |
//! | larger, between page-locked memory and a device, the link can do that | announced; the process with the host memory stores or fetches |
//! | fits the eager limit | eager: data comes along; a device's is copied into a fragment first |
//! | the same, synchronous, host | announced with its data; the receiver confirms |
//! | larger, one run, the link can GET | announced with a remote key; the receiver fetches |
//! | the same, host, the link can OFFER | the same, but the sender may copy into fragments the ranges that it claims |
//! | the same, if earlier messages of the size were fastest so | the same; the receiver fetches one half, the sender stores the other |
//! | larger, one run, the link can only PUT | announced; the receiver exposes its buffer, the sender stores |
//! | larger, blocks on a device, a kernel packs them | announced; a receiver with one run exposes its buffer, the sender's kernel stores |
//! | blocks on both sides that only kernels find | announced; the sender stores pieces in scratch memory of the receiver, which unpacks them |
//! | anything else | announced; fragments are sent through internal buffers |

use super::probe::{Announcement, Data, Message, Probe, Quote, Start};
use super::{eager, fragments, get, halves, offered, pieces, put, rendezvous};

/// The protocols' answers about one message.
pub(crate) struct Probes<How, const N: usize> {
    pub(crate) probes: [(&'static str, Probe<How>); N],
    /// The protocol that can carry any message.
    pub(crate) last: (&'static str, Quote<How>),
}

/// Asks the protocols at the sender.
#[inline]
pub(crate) fn probe_start(message: &Message) -> Probes<Start, 3> {
    Probes {
        probes: [
            ("put", put::probe_send(message)),
            ("get", get::probe_send(message)),
            ("eager", eager::probe_send(message)),
        ],
        last: ("announce", rendezvous::probe_send(message)),
    }
}

/// Asks the protocols at the receiver of an announcement.
#[inline]
pub(crate) fn probe_data(incoming: &Announcement) -> Probes<Data, 5> {
    let get = get::probe_receive(incoming);
    Probes {
        probes: [
            // The receiver fetches the ranges that the sender does not claim.
            ("offered", get.and_then(|_| offered::probe_receive(incoming))),
            ("get", get),
            ("halves", get.and_then(|_| halves::probe_receive(incoming))),
            ("put", put::probe_receive(incoming)),
            ("pieces", pieces::probe_receive(incoming)),
        ],
        last: ("fragments", fragments::probe_receive(incoming)),
    }
}

/// Chooses how a message starts, as the cheapest of [`probe_start`]. Each message of a device comes here, so the probes
/// are compared one by one: their answers together take longer to build than to compare.
#[inline(always)]
pub(crate) fn start(message: &Message) -> Start {
    let best = rendezvous::probe_send(message);
    let best = cheaper(best, put::probe_send(message), message.len);
    let best = cheaper(best, get::probe_send(message), message.len);
    cheaper(best, eager::probe_send(message), message.len).how
}

/// Chooses how an announced message's data moves.
pub(crate) fn data(incoming: &Announcement) -> Data {
    probe_data(incoming).cheapest(incoming.len).how
}

/// Returns the cheaper offer for `len` bytes; of equal ones, the first.
#[inline(always)]
fn cheaper<How: Copy>(best: Quote<How>, probe: Probe<How>, len: u64) -> Quote<How> {
    match probe {
        Ok(next) if next.cost.beats(&best.cost, len) => next,
        _ => best,
    }
}

impl<How: Copy, const N: usize> Probes<How, N> {
    /// Returns the cheapest quote for `len` bytes; of equal quotes, the first.
    #[inline]
    pub(crate) fn cheapest(&self, len: u64) -> Quote<How> {
        self.probes.iter().fold(self.last.1, |best, (_, probe)| cheaper(best, *probe, len))
    }

    /// Returns why a protocol cannot carry the message, or `None` if it can.
    pub(crate) fn refusal(&self, name: &str) -> Option<&'static str> {
        self.probes.iter().find(|(other, _)| *other == name)?.1.err()
    }
}
