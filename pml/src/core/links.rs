//! The links to a peer, and the queues that wait for them.

use cableway_btl::{Distance, Error, Fragment, Sent};
use slab::Slab;
use smallvec::SmallVec;

use super::control::{Control, Gathered};
use super::flow::Credit;
use super::link::{Abilities, Link};
use super::replacement::{Break, Failover};
use crate::wire::{BtlTag, Header, HeaderBuffer, Id, WholePut};

/// `O` is the layers' state of an operation of a link.
pub(crate) struct Links<O> {
    /// Links that carry messages. The first carries headers.
    pub(crate) active: SmallVec<[Link; 1]>,
    /// Standby links of lower exclusivity, the best last. They replace active links that prove unusable before their
    /// first message.
    pub(crate) standby: Vec<Link>,
    pub(crate) credit: Credit,
    /// Each `put`, `get` or `send_in_place` under way. Its index and the peer's rank make its token.
    pub(crate) operations: Slab<O>,
    pub(crate) control: Control,
    /// Whether the peer is in the engine's list of peers with waiting work.
    pub(crate) listed: bool,
    /// The replacement of a broken link under way; `active` is empty meanwhile.
    pub(crate) failover: Option<Box<Failover>>,
    /// The longest message of such a link.
    pub(crate) longest: usize,
    /// Transports whose links were replaced, and the peer's report about each.
    pub(crate) replaced: Vec<(usize, u64)>,
    /// A link's error that the next turn of progress handles.
    pub(crate) broken: Option<(usize, Error)>,
}

impl<O> Links<O> {
    pub(crate) fn new(active: SmallVec<[Link; 1]>, standby: Vec<Link>, window: u64) -> Self {
        Links {
            active,
            standby,
            credit: Credit::new(window),
            operations: Slab::new(),
            control: Control::default(),
            listed: false,
            failover: None,
            longest: 0,
            replaced: Vec::new(),
            broken: None,
        }
    }

    /// Returns whether the core has nothing that waits for a link.
    #[inline]
    pub(crate) fn are_idle(&self) -> bool {
        self.control.is_empty() && self.failover.is_none() && self.broken.is_none()
    }

    #[inline]
    pub(crate) fn abilities(&self) -> Abilities {
        Abilities::of(&self.active)
    }

    /// Returns how far the peer's processors are, if a transport knows.
    pub(crate) fn distance(&self) -> Option<Distance> {
        self.active.iter().find_map(|link| link.endpoint.distance())
    }

    /// Finds the link with a serial number.
    pub(crate) fn by_serial(&mut self, serial: u32) -> Option<&mut Link> {
        self.active.iter_mut().find(|link| link.serial == serial)
    }

    /// Sends a fragment of `len` bytes that a device has filled, through the link that made it. If that link is gone,
    /// keeps a copy for the next one.
    pub(crate) fn send_copied(&mut self, serial: u32, mut fragment: Fragment, len: usize) {
        let Some(link) = self.by_serial(serial) else {
            return self.control.late.push_back(fragment.copied(len));
        };
        link.carried = true;
        if let Err(error) = link.endpoint.send(fragment, len) {
            self.broken = Some((link.btl, error));
        }
    }

    /// Finds the link that a peer's header names, if it satisfies `usable`.
    pub(crate) fn named(&self, tag: BtlTag, ordinal: u8, usable: impl Fn(&Link) -> bool) -> Option<u32> {
        let link = self.active.iter().find(|link| link.tag == tag && link.ordinal == ordinal)?;
        usable(link).then_some(link.serial)
    }

    /// Notes that the link of headers failed.
    pub(crate) fn main_broke(&mut self, error: Error) {
        if let Some(link) = self.active.first() {
            self.broken = Some((link.btl, error));
        }
    }

    /// Returns the links that carry messages, or the replacement that will.
    pub(super) fn in_use(&self) -> &[Link] {
        self.failover.as_ref().map_or(&self.active, |failover| failover.by.as_slice())
    }

    /// Returns whether a link of the transport broke and is being replaced.
    pub(crate) fn is_suspended(&self, btl: usize) -> bool {
        self.failover.as_ref().is_some_and(|failover| failover.breaks.iter().any(|broke| broke.btl == btl))
    }

    pub(super) fn broke(&mut self, btl: usize) -> Option<&mut Break> {
        self.failover.as_mut()?.breaks.iter_mut().find(|broke| broke.btl == btl)
    }

    /// Returns which standby link could carry every message of the broken ones.
    pub(super) fn substitute(&self) -> Option<usize> {
        let longest = self.in_use().iter().map(Link::longest).max().unwrap_or(self.longest);
        self.standby.iter().rposition(|link| link.capabilities().max_send_size >= longest)
    }

    /// Sends a header without payload, now or as soon as the link takes it.
    pub(crate) fn send_control(&mut self, header: &impl Header) {
        self.send_gathered();
        self.send_or_queue(HeaderBuffer::new(header).as_bytes());
    }

    /// Queues a header without payload. It leaves with the headers after it.
    pub(crate) fn queue_control(&mut self, header: &impl Header) {
        self.control.waiting.push_back(HeaderBuffer::new(header).as_bytes().into());
    }

    fn send_or_queue(&mut self, bytes: &[u8]) {
        if !self.control.waiting.is_empty() || !self.send_small(bytes) {
            self.control.waiting.push_back(bytes.into());
        }
    }

    /// Sends a PUT request to the sender, for one link.
    pub(crate) fn ask_to_put(&mut self, put: &WholePut<'_>, via: (BtlTag, u8)) {
        self.gather(|gathered| gathered.puts.add(put, via));
    }

    /// Sends a FIN for a PUT to the receiver.
    pub(crate) fn send_put_fin(&mut self, receiver: Id, len: u64) {
        self.gather(|gathered| gathered.put_fins.add_put_fin(receiver, len));
    }

    /// Sends a FIN to the sender.
    pub(crate) fn send_fin(&mut self, sender: Id) {
        self.gather(|gathered| gathered.fins.add_fin(sender));
    }

    /// Adds an answer to the gathered ones. If it does not fit, those leave first.
    fn gather(&mut self, add: impl Fn(&mut Gathered) -> bool) {
        if !add(self.control.gathered()) {
            self.send_gathered();
            let added = add(self.control.gathered());
            debug_assert!(added, "an empty message holds any header");
        }
    }

    /// Moves the gathered answers to the end of the queue.
    pub(crate) fn send_gathered(&mut self) {
        let Links { active, broken, control, .. } = self;
        control.drain_gathered(|control, bytes| {
            if !control.waiting.is_empty() || !send_by_first(active, broken, bytes) {
                control.waiting.push_back(bytes.into());
            }
        });
    }

    /// Sends queued headers, then messages that were made for a broken link. Returns false if some are left.
    pub(crate) fn flush_control(&mut self) -> bool {
        self.send_gathered();
        let Links { active, control, broken, .. } = self;
        for queue in [&mut control.waiting, &mut control.late] {
            while let Some(message) = queue.front() {
                if !send_by_first(active, broken, message) {
                    return false;
                }
                queue.pop_front();
            }
        }
        true
    }

    /// Sends a short message from host memory. Returns false if the link is busy or broken.
    pub(crate) fn send_small(&mut self, message: &[u8]) -> bool {
        send_by_first(&mut self.active, &mut self.broken, message)
    }
}

fn send_by_first(active: &mut [Link], broken: &mut Option<(usize, Error)>, message: &[u8]) -> bool {
    let Some(link) = active.first_mut() else { return false };
    match link.send_small(message, &[]) {
        Ok(sent) => sent == Sent::Done,
        Err(error) => {
            *broken = Some((link.btl, error));
            false
        }
    }
}
