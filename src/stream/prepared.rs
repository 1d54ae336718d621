//! Operations that are described once and posted on a stream many times.

use std::marker::PhantomData;
use std::rc::Rc;

use cableway_base::Rank;
use cableway_pml::{Prepared, PreparedPath, StreamBatch};

use super::lent::{Lent, Use, Uses};
use super::scope::StreamScope;
use crate::communicator::Communicator;
use crate::error::{Error, Operation};
use crate::selector::{Sender, Tag, raw_rank};

/// A send or receive that its stream posts many times ([`StreamScope::post`]). The scope keeps it until its end.
///
/// The n-th post of the sender goes to the n-th post of the receiver. The later work of the sender's stream may change the
/// buffer, that of the receiver's stream finds the data in it.
pub struct PreparedMessage<'scope> {
    prepared: Rc<Prepared>,
    operation: Operation,
    kind: Use,
    uses: Uses,
    scope: PhantomData<&'scope ()>,
}

impl<'scope> StreamScope<'scope, '_> {
    /// Prepares a send to rank `to`, which prepares a receive of this communicator and tag. Returns at once. Prepared
    /// operations match in the order in which they are prepared, and match no other messages.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// # let (world, handle) = (cableway::World::init()?, std::ptr::null_mut::<()>());
    /// # let (everyone, device) = (world.communicator(), cableway::DeviceIndex(0));
    /// # // SAFETY: the program destroys the stream after this value.
    /// # let stream = unsafe { world.stream(cableway::Vendor::Nvidia, handle) }?;
    /// # let mut buffer = cableway::DeviceBuffer::new(world.devices(), device, cableway::BufferKind::Device, 1 << 20)?;
    /// stream.scope(|scope| {
    ///     let data = scope.lend(&mut buffer)?;
    ///     let there = scope.prepare_send(everyone, &data, 1, 7)?;
    ///     let back = scope.prepare_recv(everyone, &data, 1, 8)?;
    ///     println!("moved by {:?} and {:?}", there.agree()?, back.agree()?);
    ///     for _step in 0..1000 {
    ///         // Launch a kernel on the stream that changes the data, at `data.as_ptr()`.
    ///         scope.post(&[&there, &back])?;
    ///     }
    ///     Ok::<(), cableway::Error>(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `to`, the tag is negative, or the peer is gone.
    pub fn prepare_send(
        &'scope self,
        on: &Communicator,
        buffer: &Lent<'scope>,
        to: Rank,
        tag: i32,
    ) -> Result<PreparedMessage<'scope>, Error> {
        let operation = Operation::send(&buffer.buffer(), to, tag);
        // SAFETY: the buffer is borrowed for as long as the scope, which drops the operation. `post` refuses conflicts.
        let prepared = unsafe { self.stream().prepare_send(on.raw(), raw_rank(to), tag, buffer.buffer()) };
        self.keep(on, buffer, operation, Use::Read, prepared)
    }

    /// Prepares a receive from rank `from`, as [`prepare_send`](Self::prepare_send).
    ///
    /// # Errors
    /// As there, the buffer was lent for sending only, or this process has prepared 8192 receives.
    pub fn prepare_recv(
        &'scope self,
        on: &Communicator,
        buffer: &Lent<'scope>,
        from: Rank,
        tag: i32,
    ) -> Result<PreparedMessage<'scope>, Error> {
        buffer.check_kind(Use::Write)?;
        let operation = Operation::receive(&buffer.buffer(), Sender::from(from), Tag::from(tag));
        // SAFETY: as in `prepare_send`.
        let prepared = unsafe { self.stream().prepare_recv(on.raw(), raw_rank(from), tag, buffer.buffer()) };
        self.keep(on, buffer, operation, Use::Write, prepared)
    }

    fn keep(
        &'scope self,
        on: &Communicator,
        buffer: &Lent<'scope>,
        operation: Operation,
        kind: Use,
        prepared: Result<Prepared, cableway_pml::Error>,
    ) -> Result<PreparedMessage<'scope>, Error> {
        let prepared = Rc::new(prepared.map_err(|error| operation.failed(error))?);
        self.keep_prepared(prepared.clone(), on);
        Ok(PreparedMessage { prepared, operation, kind, uses: buffer.uses(), scope: PhantomData })
    }

    /// Posts prepared operations in their order, by one call of the driver where it allows that. If the stream captures a
    /// graph, they become part of it. Each launch of the graph then posts them. Launches must not overlap, must be ordered
    /// with other posts of the same operations, and must be over before the scope ends.
    ///
    /// # Errors
    /// An earlier message on the stream failed and no one was told, a peer is gone or has dropped its side, a nonblocking
    /// message conflicts, the driver refused, or the stream captures a graph, which cannot contain an operation that a
    /// thread moves. Then no operation is posted.
    pub fn post(&'scope self, messages: &[&PreparedMessage<'scope>]) -> Result<(), Error> {
        messages.iter().try_for_each(|message| message.check())?;
        let mut batch = self.stream().batch()?;
        messages.iter().try_for_each(|message| message.append_to(&mut batch))?;
        Ok(batch.post()?)
    }
}

impl PreparedMessage<'_> {
    /// Waits until the peer has prepared its side, too, and returns what moves the data: the two streams alone, which
    /// needs device memory of one node, or the thread of streams. The first post does the same.
    ///
    /// A driver maps the peer's memory only after it has waited for streams. So agree before the described streams have
    /// work: otherwise the thread moves the data.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn agree(&self) -> Result<PreparedPath, Error> {
        self.prepared.agree().map_err(|error| self.operation.failed(error))
    }

    /// Checks that no message under way conflicts, and agrees.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.uses.check(self.kind)?;
        self.agree().map(drop)
    }

    /// Appends a post.
    pub(super) fn append_to(&self, batch: &mut StreamBatch<'_>) -> Result<(), Error> {
        batch.prepared(&self.prepared).map_err(|error| self.operation.failed(error))
    }
}

impl std::fmt::Debug for PreparedMessage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PreparedMessage({})", self.operation)
    }
}
