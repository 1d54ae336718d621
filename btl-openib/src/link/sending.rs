//! Starts work on a link's queue pairs and keeps account of it.

use std::sync::atomic::Ordering;

use cableway_btl::Error;

use super::{COPIED, ControlMessage, Link, State, Tx};
use crate::NAME;
use crate::kept::Message;
use crate::memory::Buffer;
use crate::order;
use crate::shared::Shared;
use crate::verbs::{Data, Gather, Post, Work};
use crate::work::{ConnectedQp, LEAST, Owner, WorkList};

impl Tx {
    /// Returns the queue pair for another message of `len` bytes, with room left for allocated fragments. Returns
    /// `None` if there is no room now.
    ///
    /// # Errors
    /// The peer claims to have consumed more than was sent, or to accept longer messages than its buffers hold.
    #[inline]
    pub(crate) fn has_room(&mut self, shared: &Shared, len: usize) -> Result<Option<usize>, String> {
        let State::Connected(connection) = &self.state else { return Ok(None) };
        let consumed = connection.credits.read();
        let sent = self.kept.sent();
        let Some(waiting) = sent.checked_sub(consumed) else {
            return Err(format!("it says that it has consumed {consumed} messages of {sent} sent"));
        };
        let qp = connection.qp(len);
        // The card may have arrived after the connection request.
        if connection.qps[qp].size < len {
            return Err(format!("it promised to take {len} bytes, into buffers of {}", connection.qps[qp].size));
        }
        let waiting = if connection.qps.len() == 1 {
            waiting
        } else {
            while self.message_qps.len() as u64 > waiting {
                let Some(qp) = self.message_qps.pop_front() else { break };
                self.works[usize::from(qp)].waiting -= 1;
            }
            self.works[qp].waiting
        };
        let works = &self.works[qp];
        let room = waiting + (works.reserved as u64) < connection.qps[qp].window && works.has_room(&shared.port);
        Ok(room.then_some(qp))
    }

    /// Sends an inline message if nothing prevents it. Returns `None` if nothing was done; the slow path then finds the
    /// reason.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[inline]
    pub(crate) fn send_at_once(
        &mut self,
        shared: &Shared,
        link: &Link,
        header: &[u8],
        payload: &[u8],
    ) -> Option<Result<(), Error>> {
        let State::Connected(connection) = &self.state else { return None };
        let ([qp], [works]) = (&connection.qps[..], &mut self.works[..]) else { return None };
        let waiting = self.kept.sent().checked_sub(connection.credits.read())?;
        let fits = header.len() + payload.len() <= qp.pair.inline().min(qp.size);
        if self.closing || !fits || waiting + works.reserved as u64 >= qp.window || !works.has_room(&shared.port) {
            return None;
        }
        let data = Data::Within(header, payload);
        // SAFETY: nothing registered.
        let begun = unsafe { begin(shared, link, (0, qp, works), Work::Send, data, false, Owner::Nothing) };
        if begun.is_ok() {
            self.kept.push(Message::copied(header, payload));
        }
        Some(begun)
    }

    /// Starts to send a message, the first `len` bytes of a buffer, and keeps it.
    ///
    /// # Errors
    /// As [`start`](Self::start). On an error it returns the buffer, which the device does not read.
    #[inline]
    pub(crate) fn send(
        &mut self,
        shared: &Shared,
        link: &Link,
        qp: usize,
        buffer: Buffer,
        len: usize,
    ) -> Result<(), (Error, Buffer)> {
        let work = self.works[qp].next();
        // A kept buffer is released when its queue pair reports completions. Of several queue pairs, this one may never
        // be used again.
        let signal = len > COPIED || self.works.len() > 1;
        let data = Data::Registered(Gather { address: buffer.address().as_ptr(), len, key: buffer.key() });
        // SAFETY: the buffer is kept until the work is done.
        match unsafe { self.start(shared, link, qp, self.work_of_message(), data, signal, Owner::Nothing) } {
            Ok(()) => {
                self.keep_sent(qp, Message::Buffer { buffer, len, qp: qp as u8, work });
                Ok(())
            }
            Err(error) => Err((error, buffer)),
        }
    }

    /// Starts to send an inline message. Keeps a copy, made after the message has left.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[inline]
    pub(crate) fn send_copy(
        &mut self,
        shared: &Shared,
        link: &Link,
        qp: usize,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), Error> {
        let data = Data::Within(header, payload);
        // SAFETY: nothing registered.
        unsafe { self.start(shared, link, qp, self.work_of_message(), data, false, Owner::Nothing) }?;
        self.keep_sent(qp, Message::copied(header, payload));
        Ok(())
    }

    #[inline]
    fn work_of_message(&self) -> Work<'static> {
        if self.works.len() > 1 { Work::SendWithImmediate(order::immediate(self.kept.sent())) } else { Work::Send }
    }

    /// Consumed messages are released when later work completes.
    #[inline]
    fn keep_sent(&mut self, qp: usize, message: Message) {
        self.kept.push(message);
        if self.works.len() > 1 {
            self.works[qp].waiting += 1;
            self.message_qps.push_back(qp as u8);
        }
    }

    /// Releases messages that the peer has consumed.
    #[inline]
    pub(crate) fn release(&mut self) {
        if let State::Connected(connection) = &self.state {
            let works = &self.works;
            self.kept.release(connection.credits.read(), |qp, work| works[qp].is_under_way(work));
        }
    }

    /// Releases the memory of queues that were long and are empty.
    pub(crate) fn rest(&mut self) {
        self.release();
        self.works.iter_mut().for_each(WorkList::rest);
        if self.kept.is_empty() {
            self.kept.shrink_to(LEAST);
        }
    }

    /// Starts work. There must be room for it.
    ///
    /// # Safety
    /// As [`QueuePair::post`](crate::verbs::QueuePair::post). `owner` keeps the necessary objects alive.
    ///
    /// # Errors
    /// The device refused. Break the link off.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "each is a word of one request")]
    pub(crate) unsafe fn start(
        &mut self,
        shared: &Shared,
        link: &Link,
        qp: usize,
        work: Work<'_>,
        data: Data<'_>,
        signal: bool,
        owner: Owner,
    ) -> Result<(), Error> {
        let State::Connected(connection) = &self.state else { return Err(link.error("there is no connection")) };
        let works = &mut self.works[qp];
        // SAFETY: the caller's promise.
        unsafe { begin(shared, link, (qp, &connection.qps[qp], works), work, data, signal, owner) }
    }

    /// Completes work `number` of a queue pair and all work before it, and passes their owners to `each`. Returns false
    /// if there is no such work.
    #[inline]
    pub(crate) fn finish(&mut self, shared: &Shared, qp: usize, number: u32, each: impl FnMut(Owner, bool)) -> bool {
        let known = self.works.get_mut(qp).is_some_and(|works| works.finish(&shared.port, number, each));
        self.release();
        known
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.works.iter().all(WorkList::is_empty)
    }

    /// Returns whether some work in flight would report the peer's death.
    pub(crate) fn is_watched(&self) -> bool {
        self.works.iter().any(WorkList::is_watched)
    }

    /// Reports to the peer how many of its messages were consumed. Returns false if that is impossible now.
    pub(crate) fn tell_consumed(&mut self, shared: &Shared, link: &Link, watch: bool) -> Result<bool, Error> {
        let State::Connected(connection) = &self.state else { return Ok(true) };
        if self.closing {
            return Ok(true);
        }
        if !self.works[0].has_spare_room(&shared.port) {
            return Ok(false);
        }
        let (address, key) = connection.their_credits;
        let consumed = link.consumed.load(Ordering::Relaxed);
        self.start_copied(shared, link, Work::Write { address, key }, &consumed.to_le_bytes(), watch)?;
        link.told.store(consumed, Ordering::Relaxed);
        Ok(true)
    }

    /// Starts work on a copy of a few bytes, on the first queue pair. There must be room for it.
    fn start_copied(
        &mut self,
        shared: &Shared,
        link: &Link,
        work: Work<'static>,
        bytes: &[u8],
        signal: bool,
    ) -> Result<(), Error> {
        let State::Connected(connection) = &self.state else { return Err(link.error("there is no connection")) };
        if connection.qps[0].pair.inline() >= bytes.len() {
            // SAFETY: nothing registered.
            return unsafe { self.start(shared, link, 0, work, Data::Within(bytes, &[]), signal, Owner::Nothing) };
        }
        let buffer = shared.pool.take(bytes.len())?;
        // SAFETY: a fresh buffer of at least as many bytes.
        unsafe { buffer.address().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let data = Gather { address: buffer.address().as_ptr(), len: bytes.len(), key: buffer.key() };
        let (data, owner) = (Data::Registered(data), Owner::Buffer { _buffer: buffer });
        // SAFETY: the buffer is kept by its owner.
        unsafe { self.start(shared, link, 0, work, data, signal, owner) }
    }

    /// Sends a control message. There must be room for it, also at the peer.
    pub(crate) fn send_control(
        &mut self,
        shared: &Shared,
        link: &Link,
        control_message: &ControlMessage,
    ) -> Result<(), Error> {
        self.start_copied(shared, link, Work::Send, control_message, true)
    }
}

/// Posts work on a queue pair.
///
/// # Safety
/// As [`Tx::start`].
///
/// # Errors
/// As [`Tx::start`].
#[inline]
unsafe fn begin(
    shared: &Shared,
    link: &Link,
    (number, qp, works): (usize, &ConnectedQp, &mut WorkList),
    work: Work<'_>,
    data: Data<'_>,
    signal: bool,
    owner: Owner,
) -> Result<(), Error> {
    let signalled = signal || works.is_due(&shared.port);
    let post = Post { id: link.work_id(number, works.next()), signalled };
    // SAFETY: the caller's promise.
    unsafe { qp.pair.post(work, data, post) }
        .map_err(|error| Error::system(NAME, format!("cannot send to peer {}", link.rank), error))?;
    works.push(&shared.port, owner, signalled);
    Ok(())
}
