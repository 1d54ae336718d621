//! Simulates messages of many senders to one process at once. The senders share its receive buffers. Without a free
//! buffer, the receiver's device answers RNR, and the sender's device waits before it tries again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::random::Random;

/// The traffic, and the assumed receiver and link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incast {
    pub(crate) senders: u32,
    /// Messages of each sender, which sends them without waiting for credits.
    pub(crate) messages: u32,
    /// Bytes in a message.
    pub(crate) size: u64,
    /// Shared receive buffers.
    pub(crate) buffers: u32,
    /// Bytes a second of the receiver's link.
    pub(crate) link: u64,
    /// Latency in one direction.
    pub(crate) latency: Duration,
    /// Time to deliver a message and to post its buffer again, without the copy.
    pub(crate) handle: Duration,
    /// Bytes a second at which the receiver copies messages out of their buffers.
    pub(crate) copy: u64,
    /// Wait of a sender after an RNR answer.
    pub(crate) pause: Duration,
    /// Period within which senders start.
    pub(crate) skew: Duration,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    /// Time until the last message is delivered.
    pub(crate) last: Duration,
    /// The time if the link, or the receiver if it is slower, were never idle.
    pub(crate) ideal: Duration,
    /// Deliveries that failed for lack of a buffer. A message may count several times.
    pub(crate) refused: u64,
    /// Most buffers that were full at one time.
    pub(crate) most: u32,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A sender's next message leaves.
    Leaves(u32),
    /// The message reaches the receiver's device.
    Arrives(u32),
    /// The receiver has delivered a message.
    Handled,
}

/// Simulates the arrival of the messages. A sender keeps their order: while one waits, no later one leaves.
pub(crate) fn simulate(incast: &Incast, seed: u64) -> Arrived {
    let nanoseconds = |bytes: u64, rate: u64| bytes * 1_000_000_000 / rate;
    let (wire, copy) = (nanoseconds(incast.size, incast.link), nanoseconds(incast.size, incast.copy));
    let (latency, pause) = (incast.latency.as_nanos() as u64, incast.pause.as_nanos() as u64);
    let handle = incast.handle.as_nanos() as u64 + copy;
    let total = u64::from(incast.senders) * u64::from(incast.messages);
    let mut arrived = Arrived { ideal: Duration::from_nanos(total * wire.max(handle)), ..Arrived::default() };
    let mut random = Random::new(seed);
    let mut left = vec![incast.messages; incast.senders as usize];
    let mut events = BinaryHeap::new();
    for sender in 0..incast.senders {
        events.push(Reverse((random.below(incast.skew.as_nanos() as u64 + 1), Event::Leaves(sender))));
    }
    let (mut full, mut waiting, mut link_free) = (0, 0_u32, 0);
    while let Some(Reverse((now, event))) = events.pop() {
        match event {
            Event::Leaves(sender) => {
                // The last link carries one message after the other.
                link_free = link_free.max(now + latency) + wire;
                events.push(Reverse((link_free, Event::Arrives(sender))));
            }
            Event::Arrives(sender) if full == incast.buffers => {
                arrived.refused += 1;
                events.push(Reverse((now + latency + pause, Event::Leaves(sender))));
            }
            Event::Arrives(sender) => {
                full += 1;
                waiting += 1;
                arrived.most = arrived.most.max(full);
                if waiting == 1 {
                    events.push(Reverse((now + handle, Event::Handled)));
                }
                let left = &mut left[sender as usize];
                *left -= 1;
                if *left != 0 {
                    // The sender's own link is not the bottleneck.
                    events.push(Reverse((now, Event::Leaves(sender))));
                }
            }
            Event::Handled => {
                full -= 1;
                waiting -= 1;
                arrived.last = Duration::from_nanos(now);
                if waiting != 0 {
                    events.push(Reverse((now + handle, Event::Handled)));
                }
            }
        }
    }
    arrived
}
