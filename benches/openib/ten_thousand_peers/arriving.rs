//! Messages of many senders to one process at once, whose receive buffers they share: where there is none, the receiver's
//! device says so (RNR), and the sender's waits before it tries again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::random::Random;

/// What is sent, and what the receiver and its link are taken to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incast {
    pub(crate) senders: u32,
    /// Messages of each sender, which it has room to send.
    pub(crate) messages: u32,
    /// Of a message, in bytes.
    pub(crate) size: u64,
    /// Shared receive buffers.
    pub(crate) buffers: u32,
    /// Bytes a second, of the receiver's link.
    pub(crate) link: u64,
    /// One way.
    pub(crate) latency: Duration,
    /// To hand up a message and to post its buffer again, beside the copy.
    pub(crate) handle: Duration,
    /// Bytes a second, at which the receiver copies messages out of their buffers.
    pub(crate) copy: u64,
    /// What a sender waits that found no buffer.
    pub(crate) pause: Duration,
    /// Within which senders begin.
    pub(crate) skew: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    /// Until the last message is handed up.
    pub(crate) last: Duration,
    /// If the link, or the receiver where that is slower, were never idle.
    pub(crate) ideal: Duration,
    /// Messages that found no buffer, each time that they came.
    pub(crate) refused: u64,
    /// Most buffers that were full at a time.
    pub(crate) most: u32,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A sender's next message leaves.
    Leaves(u32),
    /// It reaches the receiver's device.
    Comes(u32),
    /// The receiver has handed one up.
    Handled,
}

/// Has the messages arrive. A sender keeps their order: while it waits, none of its others leave.
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
                // The last link takes one message after the other.
                link_free = link_free.max(now + latency) + wire;
                events.push(Reverse((link_free, Event::Comes(sender))));
            }
            Event::Comes(sender) if full == incast.buffers => {
                arrived.refused += 1;
                events.push(Reverse((now + latency + pause, Event::Leaves(sender))));
            }
            Event::Comes(sender) => {
                full += 1;
                waiting += 1;
                arrived.most = arrived.most.max(full);
                if waiting == 1 {
                    events.push(Reverse((now + handle, Event::Handled)));
                }
                let left = &mut left[sender as usize];
                *left -= 1;
                if *left != 0 {
                    // Its link is not what is scarce.
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
