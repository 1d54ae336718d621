//! Puts with signals, and waits for signals, in the order of a stream.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_pml::{Place, PutPath, RemoteKey, Signal};

use super::kept::Kept;
use super::lent::{Lent, Use};
use super::scope::StreamScope;
use super::{StreamRef, add};
use crate::error::{Error, Operation};
use crate::registration::RegisteredMemory;

impl StreamRef {
    /// Maps registered memory of another rank of this node, so that this stream and others of its context put into it alone:
    /// no CPU then takes part in [`StreamScope::put`]. Returns what makes puts to it from now on. The memory of the data and
    /// that of the signal's word are mapped by one call each; they may be one registration.
    ///
    /// Waits until the owner answers, which it does in calls that make progress. A driver maps memory only after it has
    /// waited for streams. So map before streams have work: otherwise nothing is mapped, and [`PutPath::Thread`] says so.
    /// A later call may try again.
    ///
    /// # Errors
    /// The key is not valid or not valid any more, or its rank is gone.
    pub fn map_for_puts(&self, key: &RemoteKey) -> Result<PutPath, Error> {
        let operation = Operation::one_sided("map for puts", &key.at(0), key.len());
        self.stream.map_for_puts(&self.world.one_sided, key).map_err(|error| operation.failed(error))
    }
}

impl<'scope> StreamScope<'scope, '_> {
    /// Puts a buffer into registered memory of a rank when the stream gets there. Then the signal is given. The stream's
    /// later work begins when both are done at the target. [`StreamRef::map_for_puts`] lets the stream do it alone;
    /// otherwise a thread makes the put. [`put_path`](Self::put_path) tells which.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// use cableway::{Signal, SignalUpdate};
    ///
    /// # let (world, handle) = (cableway::World::init()?, std::ptr::null_mut::<()>());
    /// let everyone = world.communicator();
    /// let peer = 1 - everyone.rank();
    /// let mut field = world.device(0)?.zeroed::<f32>(1 << 20)?;
    /// // The data of the peer, and behind it a word that counts its puts.
    /// let window = world.register(world.device(0)?.zeroed::<f32>((1 << 20) + 2)?)?;
    /// let mut keys = [cableway::RemoteKey::default(); 2];
    /// everyone.allgather(&[*window.key()], &mut keys)?;
    /// let (theirs, behind) = (&keys[peer as usize], 4 << 20);
    /// // SAFETY: the program destroys the stream after this value.
    /// let stream = unsafe { world.stream(cableway::Vendor::Nvidia, handle) }?;
    /// println!("moved by {:?}", stream.map_for_puts(theirs)?);
    /// stream.scope(|scope| {
    ///     let field = scope.lend(&mut field)?;
    ///     let signal = Signal { at: theirs.at(behind), update: SignalUpdate::Set(1) };
    ///     scope.put(&field, theirs.at(0), Some(signal))?;
    ///     scope.wait_signal(&window, behind, 1, peer)?;
    ///     // Launch a kernel on the stream that reads what the peer has put.
    ///     Ok::<(), cableway::Error>(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The place is not within the memory, the buffer is not one run of bytes, the signal is misaligned or of another
    /// rank, the target is gone, a nonblocking receive into the buffer is not waited for, an earlier message on the
    /// stream failed and no one was told, or the driver refused. Nothing was added then. Later failures are told by the
    /// next call on the stream.
    pub fn put(&'scope self, from: &Lent<'scope>, to: Place<'_>, signal: Option<Signal<'_>>) -> Result<(), Error> {
        from.check(Use::Read)?;
        let operation = Operation::one_sided("put", &to, from.buffer().len());
        let put = || {
            let (mut batch, by) = (self.stream().batch()?, &self.world().one_sided);
            // SAFETY: the buffer is borrowed for as long as the scope, which ends after the put. `Lent` refuses conflicts.
            let message = unsafe { add::put(&mut batch, by, from.buffer(), to, signal) }?;
            batch.post().map(|()| message)
        };
        match put().map_err(|error| operation.failed(error))? {
            Some(message) => {
                self.keep_message(Kept { message: Arc::new(message), operation, _communicator: None });
            }
            None => self.world().one_sided.note_stream_put(),
        }
        Ok(())
    }

    /// Returns what would make such a [`put`](Self::put) now: the stream alone, or a thread, and then why. Adds nothing.
    ///
    /// # Errors
    /// Those of wrong arguments of [`put`](Self::put), or the target is gone.
    pub fn put_path(
        &'scope self,
        from: &Lent<'scope>,
        to: Place<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<PutPath, Error> {
        let operation = Operation::one_sided("put", &to, from.buffer().len());
        let path = self.stream().put_path(&self.world().one_sided, from.buffer(), to, signal);
        path.map_err(|error| operation.failed(error))
    }

    /// Makes the stream wait until the word of 8 bytes at `offset` has at least this value, by a cyclic comparison: a
    /// signal that rank `from` of the job gives. The data of the put is there for the stream's later work.
    ///
    /// The stream itself waits for a word in device memory of its vendor or in pinned host memory. For any other word a
    /// thread looks at it.
    ///
    /// # Errors
    /// The word is not within the memory or is misaligned, rank `from` is gone and has not given the signal, an earlier
    /// message on the stream failed and no one was told, or the driver refused. Nothing was added then. If the rank goes
    /// later, the stream goes on, and the next call on the stream tells it. The word then has the value as well, if the
    /// stream itself waited.
    pub fn wait_signal(
        &'scope self,
        memory: &'scope RegisteredMemory,
        offset: u64,
        value: u64,
        from: Rank,
    ) -> Result<(), Error> {
        let place = memory.key().at(offset);
        let operation = Operation { peer: Some(from), ..Operation::one_sided("wait for a signal", &place, 8) };
        let wait = || {
            let mut batch = self.stream().batch()?;
            // SAFETY: the registration is borrowed for as long as the scope, whose end waits for the stream.
            let message = unsafe { batch.wait_signal(&self.world().one_sided, memory.raw(), offset, value, from) }?;
            batch.post().map(|()| message)
        };
        let message = Arc::new(wait().map_err(|error| operation.failed(error))?);
        self.keep_message(Kept { message, operation, _communicator: None });
        Ok(())
    }
}
