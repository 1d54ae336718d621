//! Messages as they are added to a stream.

use cableway_base::Rank;
use cableway_pml::{Buffer, Error, StreamBatch, StreamMessage};

use crate::communicator::Communicator;
use crate::selector::{Sender, Tag, raw_rank};

/// Adds a send. If it `blocks`, the stream's later work begins when the buffer can be reused.
///
/// # Safety
/// As [`StreamBatch::isend`].
pub(crate) unsafe fn send(
    batch: &mut StreamBatch<'_>,
    on: &Communicator,
    buffer: Buffer<'_>,
    (to, tag): (Rank, i32),
    blocks: bool,
) -> Result<StreamMessage, Error> {
    on.check_tag(tag)?;
    // SAFETY: the caller's promise.
    let message = unsafe { batch.isend(on.raw(), raw_rank(to), tag, buffer) }?;
    if blocks {
        batch.wait(&[&message]);
    }
    Ok(message)
}

/// Adds a receive. If it `blocks`, the stream's later work begins when the message is in the buffer.
///
/// # Safety
/// As [`StreamBatch::irecv`].
pub(crate) unsafe fn receive(
    batch: &mut StreamBatch<'_>,
    on: &Communicator,
    buffer: Buffer<'_>,
    (from, tag): (Sender, Tag),
    blocks: bool,
) -> Result<StreamMessage, Error> {
    on.check_selector(tag)?;
    // SAFETY: the caller's promise.
    let message = unsafe { batch.irecv(on.raw(), from.raw(), tag.raw(), buffer) }?;
    if blocks {
        batch.wait(&[&message]);
    }
    Ok(message)
}
