//! Messages that a running kernel starts.

use std::sync::{Arc, Weak};

use cableway_common_cuda::Vendor;

use super::gated::{Gated, StartGate};
use super::kernel_words::{KernelWords, MessageOrder};
use super::message::StreamMessage;
use super::operation::{Described, Message, StreamJob};
use super::shared::Shared;
use super::streams::Streams;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::tag::Communicator;

/// The gate of a message that starts when a kernel says so. The message is polled once the earlier ones to the same rank
/// have started.
struct ByKernel {
    /// Its lists may hold this value.
    shared: Weak<Shared>,
    words: Arc<KernelWords>,
    /// Tells when a send may start besides.
    gate: Option<Box<dyn StartGate>>,
    order: Arc<MessageOrder>,
}

impl StartGate for ByKernel {
    fn is_open(&mut self) -> Result<bool, Error> {
        if !self.words.is_started()? {
            return Ok(false);
        }
        self.gate.as_mut().map_or(Ok(true), |gate| gate.is_open())
    }

    fn note_started(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            gate.note_started();
        }
        let next = self.order.pass();
        if let (Some(next), Some(shared)) = (next, self.shared.upgrade()) {
            shared.look_after(next);
        }
    }
}

impl KernelWords {
    /// Has *over* set once a message is over. The words are used again only after the kernel has said that it saw it.
    pub fn follow(self: &Arc<Self>, message: &StreamMessage) {
        self.note_wait();
        let words = self.clone();
        message.then(move |result| words.tell_end(result.is_ok()));
    }
}

impl Streams {
    /// Takes words by which kernels in the context of a stream of the program start a message and wait for it. The
    /// handles of the default streams mean those of the current context. Call it before such kernels run: the driver may
    /// wait for them when it registers memory.
    ///
    /// # Safety
    /// The stream exists during the call.
    ///
    /// # Errors
    /// As [`stream`](Self::stream).
    pub unsafe fn kernel_words(&self, vendor: Vendor, handle: usize) -> Result<Arc<KernelWords>, Error> {
        // SAFETY: the caller's promise.
        let program = unsafe { self.described(vendor, handle) }?;
        let shared = self.started()?;
        let held = shared.engine.devices().hold_mappings_firmly();
        shared.kernels.take(&program, held).map(Arc::new).map_err(Error::Stream)
    }

    /// Describes a send that starts once a kernel has stored to *start* and the gate is open. Messages to one rank start in the
    /// order in which they are described.
    ///
    /// # Safety
    /// The buffer stays valid until the message is over, and unwritten once the kernel has stored to *start*. The
    /// communicator stays in the engine.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn isend_by_kernel(
        &self,
        words: &Arc<KernelWords>,
        to: &Arc<Communicator>,
        (dest, tag): (i32, i32),
        buffer: Buffer<'_>,
        gate: Box<dyn StartGate>,
    ) -> Result<StreamMessage, Error> {
        let described = Described::send(to, dest, tag, buffer)?;
        described.check_early(self.started()?.engine.devices())?;
        // SAFETY: the caller's promise.
        unsafe { self.start_by_kernel(words, to, dest, Message::new(described), Some(gate)) }
    }

    /// Describes a job to rank `dest` that starts once a kernel has stored to *start*, in the order of messages.
    ///
    /// # Safety
    /// The memory that the job uses stays valid until it is over.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub unsafe fn run_by_kernel(
        &self,
        words: &Arc<KernelWords>,
        to: &Arc<Communicator>,
        dest: i32,
        job: Box<dyn StreamJob>,
    ) -> Result<StreamMessage, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_by_kernel(words, to, dest, Message::job(job), None) }
    }

    /// # Safety
    /// As [`isend_by_kernel`](Self::isend_by_kernel).
    unsafe fn start_by_kernel(
        &self,
        words: &Arc<KernelWords>,
        to: &Arc<Communicator>,
        dest: i32,
        message: Arc<Message>,
        gate: Option<Box<dyn StartGate>>,
    ) -> Result<StreamMessage, Error> {
        let shared = self.started()?;
        let order = shared.kernels.order(Arc::as_ptr(to).expose_provenance(), dest);
        let gate = ByKernel { shared: Arc::downgrade(shared), words: words.clone(), gate, order: order.clone() };
        let message = Message::job(Box::new(Gated::new(&shared.engine, message, Box::new(gate))));
        if let Some(first) = order.add(message.clone()) {
            shared.look_after(first);
        }
        Ok(StreamMessage::new(shared.clone(), message))
    }
}
