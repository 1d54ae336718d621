//! Puts and their signals in the order of a stream.
//!
//! The thread makes a put when its stream gets there. A signal is waited for by the stream itself where the device reaches
//! the word, and by the thread elsewhere. The thread makes progress meanwhile, because the owner of memory serves puts,
//! and lets the stream go on if the process that was to give the signal is gone.

use std::sync::{Arc, Weak};

use cableway_base::Rank;
use cableway_common_cuda::{MemoryClass, WaitCondition, WordOperation};

use super::batch::StreamBatch;
use super::message::StreamMessage;
use super::operation::StreamJob;
use super::state::StreamState;
use crate::buffer::{Buffer, OwnedBuffer};
use crate::error::Error;
use crate::rma::{OneSided, Place, Registered, RegisteredWord, RemoteKey, Signal, SignalUpdate};
use crate::status::Outcome;
use crate::tag::Request;

impl StreamBatch<'_> {
    /// Puts when the stream gets there, as [`OneSided::put`]. What it returns is over once the data and the signal are at
    /// the target.
    ///
    /// # Safety
    /// The buffer stays valid, and unwritten other than by earlier work of the stream, until the put is over.
    ///
    /// # Errors
    /// As [`OneSided::put`]. The other calls of the batch are not affected.
    pub unsafe fn put(
        &mut self,
        by: &Arc<OneSided>,
        from: Buffer<'_>,
        to: Place<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<StreamMessage, Error> {
        by.check_put(from, to, signal)?;
        // The driver is asked for a new allocation now, and not while the stream waits.
        from.classify(self.shared.engine.devices());
        let put = Put {
            by: by.clone(),
            from: from.to_owned(),
            to: (*to.key, to.offset),
            signal: signal.map(|signal| (*signal.at.key, signal.at.offset, signal.update)),
            request: Request::new(),
            started: false,
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { self.run(Box::new(put)) })
    }

    /// Makes the stream wait until the word of 8 bytes at `offset`, which process `from` changes, has at least this value
    /// by a cyclic comparison. The stream itself waits for a word in device memory or in host memory that the driver knows,
    /// the thread for any other.
    ///
    /// If process `from` is gone and the word is less, the wait ends with an error, which a later call on the stream
    /// tells. The word becomes `value` then, if the stream itself waits.
    ///
    /// # Safety
    /// The registration lives until the stream has passed the wait.
    ///
    /// # Errors
    /// The word is not within the memory or is misaligned, or there is no such process, or it is gone.
    pub unsafe fn wait_signal(
        &mut self,
        by: &Arc<OneSided>,
        memory: &Registered,
        offset: u64,
        value: u64,
        from: Rank,
    ) -> Result<StreamMessage, Error> {
        let word = memory.word(offset)?;
        let awaited = Awaited { by: by.clone(), from, word, value };
        awaited.check()?;
        if !matches!(memory.location().class, MemoryClass::Device | MemoryClass::Pinned) {
            // SAFETY: the job uses no memory but the word, which it checks to be registered.
            let message = unsafe { self.run(Box::new(Look(awaited))) };
            self.wait(&[&message]);
            return Ok(message);
        }
        let address = memory.address().expose_provenance() as u64 + offset;
        let state = Arc::downgrade(self.state);
        let wait = WordOperation::wait(address, value, WaitCondition::GreaterOrEqual);
        Ok(self.run_beside(wait, |passed| Box::new(Watch { awaited, state, passed, lost: None })))
    }
}

/// Compares as streams do.
fn has_reached(word: u64, value: u64) -> bool {
    word.wrapping_sub(value) as i64 >= 0
}

/// A put that starts at its first poll.
struct Put {
    by: Arc<OneSided>,
    from: OwnedBuffer,
    to: (RemoteKey, u64),
    signal: Option<(RemoteKey, u64, SignalUpdate)>,
    request: Request,
    started: bool,
}

impl StreamJob for Put {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        if !std::mem::replace(&mut self.started, true) {
            let signal =
                self.signal.as_ref().map(|(key, offset, update)| Signal { at: key.at(*offset), update: *update });
            let (to, offset) = &self.to;
            // The stream has passed the program's work on the buffer, and may hold up the default stream.
            let from = self.from.borrow().settled();
            // SAFETY: the job is in a box, which lives until it is over. The caller of `StreamBatch::put` keeps the buffer.
            let started = unsafe { self.by.put(from, to.at(*offset), signal, &raw const self.request) };
            match started {
                Err(error) => return Some(Err(error)),
                Ok(Outcome::Complete) => return Some(Ok(())),
                Ok(Outcome::Started) => {}
            }
        }
        self.request.is_complete().then(|| self.request.result().map(drop))
    }
}

/// A word of this process, and who changes it.
struct Awaited {
    by: Arc<OneSided>,
    from: Rank,
    word: RegisteredWord,
    value: u64,
}

impl Awaited {
    fn is_there(&self) -> Result<bool, Error> {
        Ok(has_reached(self.word.load()?, self.value))
    }

    /// Fails if the word is less and will stay so. What came before its process ended counts.
    fn check(&self) -> Result<(), Error> {
        match self.by.check_peer(self.from) {
            Err(error) if !self.is_there()? => Err(error),
            _ => Ok(()),
        }
    }
}

/// The thread looks at the word.
struct Look(Awaited);

impl StreamJob for Look {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        match self.0.is_there() {
            Ok(true) => Some(Ok(())),
            Ok(false) => self.0.check().err().map(Err),
            Err(error) => Some(Err(error)),
        }
    }
}

/// The stream waits for the word, and the thread watches the process that changes it.
struct Watch {
    awaited: Awaited,
    state: Weak<StreamState>,
    /// The stream writes this number when it has passed the wait.
    passed: u64,
    /// Why the signal does not come.
    lost: Option<Error>,
}

impl StreamJob for Watch {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        let Some(state) = self.state.upgrade() else { return Some(self.lost.take().map_or(Ok(()), Err)) };
        if state.has_passed(self.passed) {
            let passed = if state.has_reached(self.passed) { Ok(()) } else { state.check() };
            return Some(self.lost.take().map_or(passed, Err));
        }
        if self.lost.is_none()
            && let Err(error) = self.awaited.check()
        {
            self.lost = Some(error);
            self.let_go();
        }
        None
    }

    fn let_go(&mut self) {
        if self.awaited.is_there().unwrap_or(false) {
            return;
        }
        // Also after the registration has ended the stream must not wait for ever, so the failure is told.
        if let Err(error) = self.awaited.word.store(self.awaited.value) {
            log::error!("a stream waits for a signal of rank {} and is not released: {error}", self.awaited.from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_cyclically() {
        assert!(has_reached(5, 5) && has_reached(6, 5) && !has_reached(4, 5));
        assert!(has_reached(0, u64::MAX) && !has_reached(u64::MAX, 0));
    }
}
