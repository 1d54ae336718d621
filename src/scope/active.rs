//! Active messages with borrowed data.

use cableway_base::Rank;
use cableway_pml::Outcome;

use super::{Request, Scope};
use crate::Error;
use crate::buffer::SendBuffer;
use crate::error::Operation;
use crate::in_flight::InFlight;

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Posts an active message to rank `to` of this communicator, as [`Poster::post`](crate::Poster::post) does, with
    /// data that the program keeps. The request completes when the buffer can be reused, which may be before the message
    /// is handled. Handlers see the sender's rank in the job.
    ///
    /// # Errors
    /// The header is too long, or the rank does not exist or is gone. [`Request::wait`] returns later failures.
    pub fn post_am(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        id: u32,
        header: &[u8],
    ) -> Result<Request<'scope, 'env>, Error> {
        let buffer = buffer.readable()?;
        let operation = Operation::post(&buffer, to);
        let process = self.communicator.process(to).map_err(|error| operation.failed(error))?;
        let poster = self.communicator.active().poster();
        // SAFETY: the data is borrowed.
        let inline = unsafe { poster.post_inline(process, id, header, buffer) };
        if inline.map_err(|error| operation.failed(error))? {
            return Ok(Request::complete(self, to, 0, &buffer));
        }
        let request = InFlight::new(self.communicator.engine());
        // SAFETY: the buffer is borrowed for as long as the scope; the request is new and ends before the scope does.
        let posted = unsafe { poster.post_apart(process, id, header, buffer, &raw const *request) };
        match posted.map_err(|error| operation.failed(error))? {
            Outcome::Complete => Ok(Request::complete(self, to, 0, &buffer)),
            Outcome::Started => Ok(self.pending(request, operation)),
        }
    }
}
