//! Blocking one-sided operations.

use std::ops::RangeInclusive;

use cableway_base::Rank;
use cableway_common_cuda::MemoryClass;
use cableway_pml::{Explained as Protocol, Place, Signal, Target};

use super::Communicator;
use crate::Error;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::one_sided;
use crate::word::{Atomic, Word};

/// A key says which rank of the job owns the memory. That rank need not be in this communicator. It serves the
/// operations in any call of the library that waits or makes progress. docs/one-sided.md says how operations are
/// ordered.
impl Communicator {
    /// Copies `data`, in host or device memory, to registered memory of another rank: from a place on, or to elements of a
    /// layout ([`Place::typed`]). Returns once the data is there, so that the owner can read it.
    ///
    /// ```no_run
    /// # use cableway::{Communicator, Error, Layout, RemoteKey, TypedSlice};
    /// # fn halo(everyone: &Communicator, key: &RemoteKey, field: &[f64]) -> Result<(), Error> {
    /// // The last column of a field of 100 x 100 becomes the first column of the neighbour's, in its second half.
    /// let column = Layout::rows(100, 8, 800)?;
    /// everyone.put(&TypedSlice::new(&field[99..], 1, &column)?, key.at(80_000).typed(1, &column))
    /// # }
    /// ```
    ///
    /// # Errors
    /// The target is not within the registered memory, or has another length than the data, the key is not valid or not
    /// valid any more, or the owner died. Then nothing was written, unless the owner died or its device failed.
    pub fn put<'k>(&self, data: &(impl SendBuffer + ?Sized), to: impl Into<Target<'k>>) -> Result<(), Error> {
        one_sided::put(self.world(), data, to.into(), None)
    }

    /// Copies as [`put`](Self::put) does, and then changes the signal's word. Whoever sees the new word sees the data.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put). The signal's memory belongs to another rank than the data's, or its word
    /// is misaligned.
    pub fn put_signal<'k>(
        &self,
        data: &(impl SendBuffer + ?Sized),
        to: impl Into<Target<'k>>,
        signal: Signal<'_>,
    ) -> Result<(), Error> {
        one_sided::put(self.world(), data, to.into(), Some(signal))
    }

    /// Fills `buffer`, in host or device memory, from registered memory of another rank: from a place on, or from elements
    /// of a layout.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put). The content of the buffer is undefined then.
    pub fn get<'k>(&self, buffer: &mut (impl RecvBuffer + ?Sized), from: impl Into<Target<'k>>) -> Result<(), Error> {
        one_sided::get(self.world(), buffer, from.into(), None)
    }

    /// Fills `buffer` as [`get`](Self::get) does, and then changes the signal's word. Whoever sees the new word may write
    /// the memory again: its bytes have been read. After an error that the owner answers, or one of this process's device,
    /// the word is unchanged.
    ///
    /// ```no_run
    /// # use cableway::{Communicator, Error, RegisteredMemory, RemoteKey, Signal, SignalUpdate};
    /// # fn consume(everyone: &Communicator, key: &RemoteKey, block: &mut [u64]) -> Result<(), Error> {
    /// // Word 0 counts the blocks that were read.
    /// let read = Signal { at: key.at(0), update: SignalUpdate::Add(1) };
    /// everyone.get_signal(block, key.at(64), read)
    /// # }
    /// # fn produce(window: &RegisteredMemory, consumer: u32, next: &[u64]) -> Result<(), Error> {
    /// // At the owner, which may then write the next block.
    /// window.wait_until(0, consumer, |blocks| blocks == 1)?;
    /// window.write(64, next)
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get). The signal's memory belongs to another rank than the data's, or its word
    /// is misaligned.
    pub fn get_signal<'k>(
        &self,
        buffer: &mut (impl RecvBuffer + ?Sized),
        from: impl Into<Target<'k>>,
        signal: Signal<'_>,
    ) -> Result<(), Error> {
        one_sided::get(self.world(), buffer, from.into(), Some(signal))
    }

    /// Changes a word of registered memory, and returns the word before. The word is aligned to its size.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put), and the word is misaligned.
    pub fn atomic<T: Word>(&self, operation: Atomic<T>, at: Place<'_>) -> Result<T, Error> {
        one_sided::atomic(self.world(), operation, at)
    }

    /// Adds `value` to a word, as [`atomic`](Self::atomic) does, and returns the word before.
    ///
    /// # Errors
    /// The same as those of [`atomic`](Self::atomic).
    pub fn fetch_add<T: Word>(&self, value: T, at: Place<'_>) -> Result<T, Error> {
        self.atomic(Atomic::Add(value), at)
    }

    /// Orders operations of this process on memory of rank `target` that start later after all earlier ones. Does not
    /// wait.
    ///
    /// # Errors
    /// The communicator has no such rank.
    pub fn fence(&self, target: Rank) -> Result<(), Error> {
        self.world().one_sided.fence(Some(self.process(target)?));
        Ok(())
    }

    /// Orders as [`fence`](Self::fence) does the operations on memory of each rank of the job. Operations on memory of
    /// two ranks stay independent of each other.
    pub fn fence_all(&self) {
        self.world().one_sided.fence(None);
    }

    /// Waits until all operations that this process has started on memory of rank `target` are complete. Their requests
    /// return their errors.
    ///
    /// # Errors
    /// The communicator has no such rank.
    pub fn flush(&self, target: Rank) -> Result<(), Error> {
        self.world().one_sided.flush(Some(self.process(target)?));
        Ok(())
    }

    /// Returns which way puts of `sizes` (in bytes) to memory of rank `target` take, and why, as
    /// [`explain`](Self::explain) does for messages. `from` and `to` are the classes of the caller's memory and of the
    /// target's, which is taken to have been accessed before.
    ///
    /// # Errors
    /// The communicator has no such rank, or no transport reaches it.
    pub fn explain_put(
        &self,
        target: Rank,
        from: MemoryClass,
        to: MemoryClass,
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Protocol>, Error> {
        Ok(self.world().one_sided.explain(self.process(target)?, true, [from, to], sizes)?)
    }

    /// Returns which way gets take, as [`explain_put`](Self::explain_put) does. `from` is the class of the target's
    /// memory, `to` that of the caller's.
    ///
    /// # Errors
    /// The same as those of [`explain_put`](Self::explain_put).
    pub fn explain_get(
        &self,
        target: Rank,
        from: MemoryClass,
        to: MemoryClass,
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Protocol>, Error> {
        Ok(self.world().one_sided.explain(self.process(target)?, false, [to, from], sizes)?)
    }

    /// Waits as [`flush`](Self::flush) does for operations on memory of any rank of the job.
    pub fn flush_all(&self) {
        self.world().one_sided.flush(None);
    }
}
