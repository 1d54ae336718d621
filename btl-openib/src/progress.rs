//! Progress: handles completions. One thread at a time executes it.

mod failures;

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::{Error, Received, SharedBytes, Token, Upcalls};
use smallvec::SmallVec;

use crate::NAME;
use crate::inbound::Inbound;
use crate::link::{ControlKind, ControlMessage, Link, State, of_work_id};
use crate::order::{self, EarlyArrival};
use crate::receives::{Keeping, RECEIVE, Receives};
use crate::shared::Shared;
use crate::verbs::{Completion, opcode, status};
use crate::work::Owner;

/// The number of completions taken at a time.
const COMPLETIONS: usize = 16;

pub(crate) struct Engine {
    shared: Arc<Shared>,
    completions: [Completion; COMPLETIONS],
    /// The queue pair that last received something, by its number. A queue pair stays until the transport closes.
    latest: Option<(u32, Arc<Inbound>)>,
    /// Consumed shared buffers to post again: queue and index.
    spent: Vec<(usize, usize)>,
    /// The shared receive buffers of each queue.
    receives: Box<[Option<Arc<Receives>>]>,
    /// Links that owe their peers credits.
    owing: Vec<Arc<Link>>,
    /// Broken links and links closed by the peer, with the poll that found them. Each is reported once no work on it is
    /// under way.
    failing: Vec<(Arc<Link>, u64)>,
    /// Links whose peers have ended. Their last messages may still be among the completions.
    ended: Vec<Arc<Link>>,
    /// The device failed.
    dead: bool,
    /// The device speaks iWARP: control messages replace immediate data, and broken connections do not report later
    /// work.
    iwarp: bool,
    /// The number of polls, and the last poll that emptied the queue.
    polls: u64,
    drained: u64,
}

// SAFETY: completions are plain values; they name memory by number only.
unsafe impl Send for Engine {}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        // SAFETY: a structure of integers.
        let blank: Completion = unsafe { std::mem::zeroed() };
        let iwarp = shared.port.context.is_iwarp();
        let queues = shared.settings.queues.len();
        Engine {
            shared,
            completions: [blank; COMPLETIONS],
            latest: None,
            spent: Vec::with_capacity(COMPLETIONS),
            receives: vec![None; queues].into(),
            owing: Vec::new(),
            failing: Vec::new(),
            ended: Vec::new(),
            dead: false,
            iwarp,
            polls: 0,
            drained: 0,
        }
    }

    pub(crate) fn progress(&mut self, upcalls: &dyn Upcalls) -> usize {
        let mut events = 0;
        if let Some(notices) = self.shared.notices.collect() {
            events += notices.failures.len() + notices.closed.len();
            for (link, error) in notices.failures {
                self.fail(&link, error);
            }
            for link in notices.closed {
                self.hear_goodbye(&link);
            }
            self.ended.extend(notices.ended);
            if let Some(reason) = notices.device {
                self.lose_device(&reason);
            }
        }
        // Reposting and credits wait for the next call, so that an answer can leave first.
        let (spent, owing) = (self.spent.len(), self.owing.len());
        if !self.dead {
            self.polls += 1;
            match self.shared.port.completions.poll(&mut self.completions) {
                Ok(count) => {
                    for index in 0..count {
                        let completion = self.completions[index];
                        self.complete(&completion, upcalls);
                    }
                    events += count;
                    if count < COMPLETIONS {
                        self.drained = self.polls;
                    }
                    if count < COMPLETIONS && !self.ended.is_empty() {
                        self.fail_ended();
                    }
                }
                Err(error) => self.lose_device(&error.to_string()),
            }
        }
        if !self.spent.is_empty() || !self.owing.is_empty() {
            // When several messages arrived at once, optimize for rate.
            let several = self.spent.len() > spent + 1;
            self.clear_up(if several { (self.spent.len(), self.owing.len()) } else { (spent, owing) });
        }
        if !self.failing.is_empty() {
            events += self.report(upcalls);
        }
        events
    }

    /// Posts the first `spent` buffers again and sends credits to the first `owing` peers.
    fn clear_up(&mut self, (spent, owing): (usize, usize)) {
        if self.dead {
            self.spent.clear();
            self.owing.clear();
            return;
        }
        for (queue, index) in self.spent.drain(..spent) {
            if let Some(receives) = &self.receives[queue] {
                receives.post(index);
            }
        }
        if owing != 0 {
            for link in self.owing.drain(..owing).collect::<SmallVec<[_; 4]>>() {
                self.tell_consumed(&link);
            }
        }
    }

    /// Adds descriptors that become readable with the next completion and the next notice. Returns false if there is
    /// work that neither announces.
    pub(crate) fn arm<'a>(&self, shared: &'a Shared, wakers: &mut Vec<BorrowedFd<'a>>) -> bool {
        let clear = self.spent.is_empty() && self.owing.is_empty();
        if self.dead || !(clear && self.failing.is_empty() && self.ended.is_empty()) {
            return false;
        }
        let Some(wakeup) = shared.notices.listen() else { return false };
        // Drain events of an earlier sleep.
        shared.port.channel.drain();
        if let Err(error) = shared.port.completions.arm() {
            cableway_base::warn_once("openib/arm", || {
                format!("{NAME}: {} wakes no sleeping thread, so calls poll: {error}", shared.port.context.name)
            });
            return false;
        }
        wakers.extend([shared.port.channel.descriptor(), wakeup]);
        true
    }

    #[inline]
    fn complete(&mut self, completion: &Completion, upcalls: &dyn Upcalls) {
        if completion.wr_id & RECEIVE != 0 {
            self.received(completion, upcalls);
        } else {
            self.done(completion, upcalls);
        }
    }

    #[inline]
    fn received(&mut self, completion: &Completion, upcalls: &dyn Upcalls) {
        let number = completion.qp_num;
        let inbound = match self.latest.take() {
            Some((latest, inbound)) if latest == number => inbound,
            _ => match self.shared.directory.read().by_number.get(&number) {
                Some(inbound) => Arc::clone(inbound),
                None => return self.shared.repost(completion.wr_id),
            },
        };
        self.received_by(&inbound, completion, upcalls);
        self.latest = Some((number, inbound));
    }

    #[inline]
    fn received_by(&mut self, inbound: &Arc<Inbound>, completion: &Completion, upcalls: &dyn Upcalls) {
        let Some(index) = inbound.receives.took(completion.wr_id) else { return };
        let link = &inbound.link;
        if link.silenced.load(Ordering::Relaxed) {
            inbound.give_back(index);
            return;
        }
        if completion.status != status::IBV_WC_SUCCESS {
            // The service thread decides about pending connections: over iWARP a rejected request flushes the
            // connection's own buffers.
            if !self.iwarp || !matches!(link.tx.lock().state, State::Idle | State::Connecting) {
                self.broke(link, completion);
                inbound.give_back(index);
            }
            return;
        }
        if completion.opcode != opcode::IBV_WC_RECV {
            let reason = "it sent an RDMA write with immediate data".to_owned();
            self.fail(link, Error::Malformed { btl: NAME, peer: link.rank, reason });
            inbound.give_back(index);
            return;
        }
        if self.iwarp
            && let Some(kind) = self.control_kind(inbound, index, completion.byte_len as usize)
        {
            inbound.give_back(index);
            match kind {
                ControlKind::Greeting => self.shared.welcome(link),
                ControlKind::Goodbye => self.hear_goodbye(link),
            }
            return;
        }
        if link.arrivals.is_some() || self.has_word(completion) {
            self.in_turn(inbound, index, completion, upcalls);
        } else {
            self.hand_up(inbound, index, completion.byte_len as usize, upcalls);
        }
    }

    #[inline(always)]
    fn hand_up(&mut self, inbound: &Inbound, index: usize, len: usize, upcalls: &dyn Upcalls) {
        let receives = &inbound.receives;
        // SAFETY: the completion gave the buffer back to us, and it is posted again only when it is spent, or by its
        // keeper.
        let bytes = unsafe { receives.bytes(index, len) };
        let keeping = Keeping { receives, index, kept: Cell::new(false) };
        upcalls.receive(inbound.link.rank, Received::new(bytes, receives.plenty().then_some(&keeping)));
        let spent = !keeping.kept.get();
        // Post the peer's own buffers before the credit: the peer relies on them.
        if spent && !receives.is_shared() {
            inbound.give_back(index);
        }
        self.consumed(&inbound.link, receives.queue());
        if spent && receives.is_shared() {
            let queue = receives.queue();
            self.receives[queue].get_or_insert_with(|| Arc::clone(receives));
            self.spent.push((queue, index));
        }
    }

    /// Handles a message with immediate data: a goodbye, or any message of a connection of several queue pairs.
    fn in_turn(&mut self, inbound: &Arc<Inbound>, index: usize, completion: &Completion, upcalls: &dyn Upcalls) {
        let link = &inbound.link;
        let immediate = self.has_word(completion).then(|| {
            // SAFETY: the flag says that the union holds a word, and integers are valid whatever was written.
            u32::from_be(unsafe { completion.imm_data_invalidated_rkey_union.imm_data })
        });
        let goodbye = immediate.is_some_and(|immediate| immediate & order::GOODBYE != 0);
        // The peer may be at most one window ahead of what was consumed here.
        let most = if link.arrivals.is_some() { self.shared.settings.window() } else { 0 };
        let before = link.consumed.load(Ordering::Relaxed);
        let ahead =
            immediate.filter(|_| goodbye || link.arrivals.is_some()).map(|immediate| order::ahead(immediate, before));
        let Some(ahead) = ahead.filter(|&ahead| ahead as usize <= most) else {
            inbound.give_back(index);
            let reason = format!("it sent a message with {immediate:?} beside it, after {before}");
            return self.fail(link, Error::Malformed { btl: NAME, peer: link.rank, reason });
        };
        match (ahead, goodbye) {
            (0, false) => self.hand_up(inbound, index, completion.byte_len as usize, upcalls),
            (0, true) => {
                inbound.give_back(index);
                return self.hear_goodbye(link);
            }
            (ahead, goodbye) => {
                let what = if goodbye {
                    EarlyArrival::Goodbye
                } else {
                    // SAFETY: the completion gave the buffer back to us, and it is posted again only below.
                    let bytes = unsafe { inbound.receives.bytes(index, completion.byte_len as usize) };
                    let mut copy = vec![0; bytes.len()].into_boxed_slice();
                    bytes.copy_to(&mut copy);
                    EarlyArrival::Message(inbound.receives.queue(), copy)
                };
                inbound.give_back(index);
                let place = before + u64::from(ahead);
                let new = link.arrivals.as_ref().is_some_and(|arrivals| arrivals.lock().keep(place, what));
                if !new {
                    let reason = format!("it sent message {place} twice");
                    self.fail(link, Error::Malformed { btl: NAME, peer: link.rank, reason });
                }
                return;
            }
        }
        // Deliver the messages that waited for this one.
        while let Some(arrivals) = &link.arrivals {
            let next = arrivals.lock().next(link.consumed.load(Ordering::Relaxed));
            match next {
                Some(EarlyArrival::Message(queue, bytes)) => {
                    upcalls.receive(link.rank, Received::new(SharedBytes::from_private(&bytes), None));
                    self.consumed(link, queue);
                }
                Some(EarlyArrival::Goodbye) => return self.hear_goodbye(link),
                None => return,
            }
        }
    }

    /// Counts a delivered message of a queue. Credits go back in batches.
    #[inline(always)]
    fn consumed(&mut self, link: &Arc<Link>, queue: usize) {
        // Only progress writes it.
        let consumed = link.consumed.load(Ordering::Relaxed) + 1;
        link.consumed.store(consumed, Ordering::Relaxed);
        let untold = match &link.arrivals {
            None => (consumed - link.told.load(Ordering::Relaxed)) as usize,
            Some(arrivals) => arrivals.lock().consume(queue),
        };
        // Compare for equality, so that a link is queued once per credit.
        if untold == self.shared.port.queues[queue].options.instalment {
            self.owing.push(Arc::clone(link));
        }
    }

    /// Recognizes a control message on a network without immediate data.
    fn control_kind(&self, inbound: &Inbound, index: usize, len: usize) -> Option<ControlKind> {
        let mut message = ControlMessage::default();
        if len != message.len() {
            return None;
        }
        // SAFETY: the completion gave the buffer back to us, and it is not posted again meanwhile.
        unsafe { inbound.receives.bytes(index, len) }.copy_to(&mut message);
        inbound.link.control_kind(&message)
    }

    fn has_word(&self, completion: &Completion) -> bool {
        const WITH_WORD: u32 = 1 << 1;
        completion.wc_flags & WITH_WORD != 0
    }

    /// Handles the peer's goodbye, its last message. Work under way is flushed before the link is reported.
    fn hear_goodbye(&mut self, link: &Arc<Link>) {
        if link.tx.lock().leave(&self.shared, link) {
            log::debug!("{NAME}: peer {} said goodbye", link.rank);
            self.part(link);
        }
    }

    fn tell_consumed(&mut self, link: &Arc<Link>) {
        let mut tx = link.tx.lock();
        if matches!(tx.state, State::Connecting) {
            self.owing.push(Arc::clone(link));
            return;
        }
        match tx.tell_consumed(&self.shared, link, false) {
            Ok(true) => {
                if let Some(arrivals) = &link.arrivals {
                    arrivals.lock().told();
                }
            }
            Ok(false) => self.owing.push(Arc::clone(link)),
            Err(error) => {
                drop(tx);
                self.fail(link, error);
            }
        }
    }

    /// Own work has completed or was flushed.
    #[inline]
    fn done(&mut self, completion: &Completion, upcalls: &dyn Upcalls) {
        let (id, qp, number) = of_work_id(completion.wr_id);
        let link = self.shared.directory.read().by_id.get(id).map(Arc::clone);
        let Some(link) = link else { return };
        let failed = completion.status != status::IBV_WC_SUCCESS;
        let mut tokens: SmallVec<[(Token, bool); 4]> = SmallVec::new();
        {
            let mut tx = link.tx.lock();
            let known = tx.finish(&self.shared, qp, number, |owner, last| {
                if let Owner::Transfer { token, .. } = owner {
                    tokens.push((token, failed && last));
                }
            });
            if !known {
                log::error!("{NAME}: the device reports work that was never begun, for peer {}", link.rank);
            }
        }
        // Break the link first: an upcall may drop the endpoint, which would send a goodbye on a link not known to be
        // broken.
        if failed {
            self.broke(&link, completion);
        }
        for (token, failed) in tokens {
            let left = matches!(link.tx.lock().state, State::Left { .. });
            let result = match (failed, left) {
                (false, _) => Ok(()),
                (true, true) => Err(link.left()),
                (true, false) => Err(link.tx.lock().failure().unwrap_or_else(|| self.reason(&link, completion))),
            };
            upcalls.completed(token, result);
        }
    }
}
