//! Two ranks on one device. The receiver has learnt that the sender stores, so it sends invitations.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, Devices};
use cableway_pml::{Buffer, Outcome, Request, SendMode};
use test_nodes::devices;

use super::memory::Memory;
use super::{Link, Ranks, pattern};

pub const ALL: Flags =
    Flags::GET.union(Flags::PUT).union(Flags::DEVICE_GET).union(Flags::DEVICE_PUT).union(Flags::OFFER);
pub const ROOM: usize = 20_000;

/// Returns a link whose senders store.
pub fn link() -> Link {
    Link::new("net", ALL | Flags::DEVICE_TO_DEVICE).with(|link| {
        link.capabilities.device_min_rdma_size = 1;
        (link.asynchronous, link.push) = (true, true);
    })
}

/// Two ranks; the second knows that the first stores. Only one pair exists at a time, because the process has one
/// default stream.
pub struct Pair {
    _alone: MutexGuard<'static, ()>,
    pub devices: Devices,
    pub ranks: Ranks,
}

impl Pair {
    pub fn new(link: Link) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = devices();
        let ranks = Ranks::on(&devices, 2, &[link], &[("device_invitations", "yes")], false);
        let pair = Pair { _alone, devices, ranks };
        let (mut source, mut target) = (pair.memory(&pattern(100, 1)), pair.memory(&[0; 100]));
        let (send, receive) = (Request::new(), Request::new());
        pair.send(&mut source, 100, 1, &send);
        pair.receive(&mut target, (0, 1), &receive);
        pair.ranks.finish(&[&send, &receive]);
        assert_eq!(pair.invitations(), 0, "the receiver knew nothing of the sender");
        pair
    }

    pub fn memory(&self, content: &[u8]) -> Memory {
        Memory::new(&self.devices, Some(BufferKind::Device), content)
    }

    pub fn send(&self, from: &mut Memory, len: usize, tag: i32, request: &Request) {
        let buffer = Buffer::bytes(from.address(), len as u64);
        let (engine, world) = (&self.ranks.engines[0], &self.ranks.world[0]);
        // SAFETY: tests keep memory and request until the message is received.
        let outcome = unsafe { engine.isend(world, 1, tag, buffer, &SendMode::Standard, request) }.unwrap();
        assert_eq!(outcome, Outcome::Started);
    }

    /// Posts a receive into all of the memory, once the default stream is idle: invitations need that.
    pub fn receive(&self, to: &mut Memory, (source, tag): (i32, i32), request: &Request) {
        let len = match to {
            Memory::Host(bytes) => bytes.len(),
            Memory::Device(buffer) => buffer.len(),
        };
        let at = self.devices.classify(to.address(), len);
        while !self.devices.ask_default_stream(&at).unwrap() {}
        let buffer = Buffer::bytes(to.address(), len as u64);
        // SAFETY: as above.
        unsafe { self.ranks.engines[1].irecv(&self.ranks.world[1], source, tag, buffer, request) }.unwrap();
    }

    pub fn invitations(&self) -> u64 {
        self.ranks.counter(1, "invitations")
    }

    pub fn nothing_is_left(&self) {
        self.ranks.settle();
        let net = &self.ranks.net;
        assert_eq!((net.offers(), net.registered(), net.fragments()), (0, 0, 0));
        assert_eq!(self.ranks.counter(0, "malformed") + self.ranks.counter(1, "malformed"), 0);
    }
}
