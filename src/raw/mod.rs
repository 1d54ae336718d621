//! Operations whose buffers no lifetime protects, for interfaces to other languages.
//!
//! Rust programs use a [`Scope`](crate::Scope), which borrows the buffers until the operations complete.

mod collective;
mod message;
mod one_sided;
mod stream;

pub use collective::{RawCollective, RawParts, RawPartsMut};
pub use stream::{RawPrepared, RawStream};

use std::sync::Arc;

use cableway_pml::{Engine, StreamMessage};

use crate::Error;
use crate::collective::{Running, RunningList};
use crate::communicator::Communicator;
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::scope::described;
use crate::selector::Status;

/// A nonblocking operation on memory that the caller keeps in place until it completes. Dropping the request waits for
/// the operation.
///
/// It keeps the communicator alive. It may move to another thread, and is used by one thread at a time.
#[must_use = "dropping it waits for the operation"]
pub struct RawRequest {
    // Dropped before the communicator, whose engine it uses.
    under_way: UnderWay,
    communicator: Communicator,
}

enum UnderWay {
    /// A message or a one-sided operation.
    Message(InFlight<'static>, Operation),
    /// A collective operation. The list has it as its one entry, and waits in its drop.
    Collective(RunningList<'static>, Arc<Running>),
    /// A message on a stream.
    Stream(OnStream, Operation),
}

/// A message on a stream, whose end the drop waits for unless it was left to the stream.
struct OnStream(Option<Arc<StreamMessage>>);

impl Drop for OnStream {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|message| message.wait_over()) {
            log::debug!("a message on a stream was not waited for: {error}");
        }
    }
}

impl RawRequest {
    fn of_message(communicator: &Communicator, request: InFlight<'static>, operation: Operation) -> Self {
        RawRequest { under_way: UnderWay::Message(request, operation), communicator: communicator.clone() }
    }

    fn of_collective(communicator: &Communicator, running: Arc<Running>) -> Self {
        let list = RunningList::new(lasting(communicator));
        list.push(running.clone());
        RawRequest { under_way: UnderWay::Collective(list, running), communicator: communicator.clone() }
    }

    fn of_stream(communicator: &Communicator, message: Arc<StreamMessage>, operation: Operation) -> Self {
        let under_way = UnderWay::Stream(OnStream(Some(message)), operation);
        RawRequest { under_way, communicator: communicator.clone() }
    }

    fn stream_message(&self) -> Option<&Arc<StreamMessage>> {
        match &self.under_way {
            UnderWay::Stream(message, _) => message.0.as_ref(),
            UnderWay::Message(..) | UnderWay::Collective(..) => None,
        }
    }

    /// Gives up the request of a message on a stream without waiting for the message: its [`RawStream`] keeps it. Any other
    /// operation is waited for.
    pub fn leave_to_stream(mut self) {
        if let UnderWay::Stream(message, _) = &mut self.under_way {
            message.0 = None;
        }
    }

    /// Makes an inactive request, to be passed to [`of_message`](Self::of_message) with the same communicator.
    fn in_flight(communicator: &Communicator) -> InFlight<'static> {
        InFlight::new(lasting(communicator))
    }

    /// Returns whether the operation is complete, so that [`wait`](Self::wait) would return at once. Progresses messages
    /// if it is not.
    pub fn is_complete(&self) -> bool {
        self.has_ended() || {
            self.communicator.engine().progress();
            self.has_ended()
        }
    }

    /// Cancels a receive that no message has matched. Has no effect on other operations.
    pub fn cancel(&self) {
        match &self.under_way {
            UnderWay::Message(request, _) => {
                request.cancel();
            }
            UnderWay::Stream(message, _) => message.0.iter().for_each(|message| message.cancel()),
            UnderWay::Collective(..) => {}
        }
    }

    /// Waits until the operation completes. Returns the status as [`Request::wait`](crate::Request::wait) does, or `None`
    /// if the receive was cancelled. A collective operation has an empty status: of 0 bytes from rank 0, with tag 0.
    ///
    /// # Errors
    /// The operation failed.
    pub fn wait(self) -> Result<Option<Status>, Error> {
        let empty = Status { source: 0, tag: 0, bytes: 0 };
        let (result, operation) = match &self.under_way {
            UnderWay::Message(request, operation) => {
                request.wait();
                (request.result(), operation)
            }
            UnderWay::Collective(list, running) => return list.wait(running).map(|()| Some(empty)),
            UnderWay::Stream(message, operation) => match &message.0 {
                Some(message) => (message.wait(), operation),
                None => return Ok(Some(empty)),
            },
        };
        match result {
            Ok(status) if status.cancelled => Ok(None),
            Ok(status) => Ok(Some(described(operation, status))),
            Err(error) => Err(operation.failed(error)),
        }
    }

    /// Waits until one of the requests is complete and returns its index (`MPI_Waitany`). Returns `None` if there are
    /// none.
    pub fn wait_any(requests: &[&RawRequest]) -> Option<usize> {
        let engine = requests.first()?.communicator.engine();
        let mut found = None;
        engine.wait_until(|| {
            // The others progress here if they are of another world: a process without a launcher may have several.
            for other in requests.iter().map(|request| request.communicator.engine()) {
                if !std::ptr::eq(other, engine) {
                    other.progress();
                }
            }
            found = requests.iter().position(|request| request.has_ended());
            found.is_some()
        });
        // In a forked child no request completes. Waiting for the first one returns the error.
        found.or(Some(0))
    }

    fn has_ended(&self) -> bool {
        match &self.under_way {
            UnderWay::Message(request, _) => !request.is_active(),
            UnderWay::Collective(_, running) => running.has_ended(),
            UnderWay::Stream(message, _) => message.0.as_ref().is_none_or(|message| message.is_over()),
        }
    }
}

/// Returns the engine of a communicator, for a request that keeps a clone of the communicator and is dropped before it.
fn lasting(communicator: &Communicator) -> &'static Engine {
    // SAFETY: the engine is in an `Arc` and does not move. Every caller's request is dropped before its communicator: as
    // the field before it, or within the borrow of the communicator if no operation started.
    unsafe { &*std::ptr::from_ref(communicator.engine()) }
}
