//! Messages as they are added to a stream.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_pml::{Buffer, Error, OneSided, Place, PutPath, Signal, StreamBatch, StreamMessage};

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
    unsafe {
        match blocks {
            true => batch.send(on.raw(), raw_rank(to), tag, buffer),
            false => batch.isend(on.raw(), raw_rank(to), tag, buffer),
        }
    }
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
    unsafe {
        match blocks {
            true => batch.recv(on.raw(), from.raw(), tag.raw(), buffer),
            false => batch.irecv(on.raw(), from.raw(), tag.raw(), buffer),
        }
    }
}

/// Adds a put, for which the stream waits. Returns `None` if the stream makes it alone.
///
/// # Safety
/// As [`StreamBatch::put`].
pub(crate) unsafe fn put(
    batch: &mut StreamBatch<'_>,
    by: &Arc<OneSided>,
    from: Buffer<'_>,
    to: Place<'_>,
    signal: Option<Signal<'_>>,
) -> Result<Option<StreamMessage>, Error> {
    // SAFETY: the caller's promise.
    if unsafe { batch.put_alone(by, from, to, signal) }? == PutPath::Stream {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let message = unsafe { batch.put(by, from, to, signal) }?;
    batch.wait(&[&message]);
    Ok(Some(message))
}
