//! One-sided operations in scopes.

use cableway_pml::{OneSided, Outcome, Place, Request as RawRequest, Signal, Target};

use super::{Request, Scope};
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::registration::ScopedRegistration;
use crate::word::{Atomic, Word};
use crate::{Error, ErrorKind};

/// Requests of one-sided operations are complete when the operation is complete at its target. Their status has the
/// target's rank in the job as its source.
impl<'scope, 'env> Scope<'scope, 'env> {
    /// Registers memory as [`World::register`](crate::World::register) does, until the scope ends. The memory stays
    /// borrowed until then, so the program does not access it otherwise.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut table = [0_u64; 16];
    /// everyone.scope(|scope| {
    ///     let window = scope.register(&mut table)?;
    ///     // Rank 0 counts for all.
    ///     let mut key = [*window.key()];
    ///     everyone.broadcast(&mut key, 0)?;
    ///     everyone.fetch_add(1_u64, key[0].at(0))?;
    ///     everyone.barrier()
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The buffer is not one run of bytes, or lies in several allocations.
    pub fn register(
        &'scope self,
        memory: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<ScopedRegistration<'scope>, Error> {
        let buffer = memory.writable()?;
        if buffer.layout().is_some() {
            return Err(ErrorKind::BadBuffer("memory is registered as bytes, without a datatype".to_owned()).into());
        }
        // SAFETY: the memory is borrowed exclusively for as long as the scope, whose end drops the list.
        unsafe { self.registrations.add(self.communicator.world(), buffer.address(), buffer.len()) }
    }

    /// Starts what [`Communicator::put`](crate::Communicator::put) does.
    ///
    /// # Errors
    /// Those that can be known before the owner answers. [`Request::wait`] returns the others.
    pub fn put<'k>(
        &'scope self,
        data: &'scope (impl SendBuffer + ?Sized),
        to: impl Into<Target<'k>>,
    ) -> Result<Request<'scope, 'env>, Error> {
        self.start_put(data, to.into(), None)
    }

    /// Starts what [`Communicator::put_signal`](crate::Communicator::put_signal) does.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn put_signal<'k>(
        &'scope self,
        data: &'scope (impl SendBuffer + ?Sized),
        to: impl Into<Target<'k>>,
        signal: Signal<'_>,
    ) -> Result<Request<'scope, 'env>, Error> {
        self.start_put(data, to.into(), Some(signal))
    }

    /// Starts what [`Communicator::get`](crate::Communicator::get) does.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn get<'k>(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        from: impl Into<Target<'k>>,
    ) -> Result<Request<'scope, 'env>, Error> {
        self.start_get(buffer, from.into(), None)
    }

    /// Starts what [`Communicator::get_signal`](crate::Communicator::get_signal) does.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn get_signal<'k>(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        from: impl Into<Target<'k>>,
        signal: Signal<'_>,
    ) -> Result<Request<'scope, 'env>, Error> {
        self.start_get(buffer, from.into(), Some(signal))
    }

    /// Starts what [`Communicator::atomic`](crate::Communicator::atomic) does. `old` gets the word before.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn atomic<T: Word>(
        &'scope self,
        old: &'scope mut T,
        operation: Atomic<T>,
        at: Place<'_>,
    ) -> Result<Request<'scope, 'env>, Error> {
        let place = std::ptr::from_mut(old).cast();
        self.start_one_sided(Operation::one_sided("atomic", &at, size_of::<T>() as u64), |one_sided, request| {
            // SAFETY: as in `start_get`; the place has as many bytes as the word.
            unsafe { one_sided.atomic(operation.raw(), T::WIDTH, at, place, request) }
        })
    }

    fn start_put(
        &'scope self,
        data: &'scope (impl SendBuffer + ?Sized),
        to: Target<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<Request<'scope, 'env>, Error> {
        let from = data.readable()?;
        self.start_one_sided(Operation::one_sided("put", &to.place(), from.len()), |one_sided, request| {
            // SAFETY: as in `start_get`; the buffer is only read.
            unsafe { one_sided.put(from, to, signal, request) }
        })
    }

    fn start_get(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        from: Target<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<Request<'scope, 'env>, Error> {
        let into = buffer.writable()?;
        self.start_one_sided(Operation::one_sided("get", &from.place(), into.len()), |one_sided, request| {
            // SAFETY: the request is new and ends before the scope does; the buffer is borrowed until then.
            unsafe { one_sided.get(into, from, signal, request) }
        })
    }

    fn start_one_sided(
        &'scope self,
        operation: Operation,
        start: impl FnOnce(&OneSided, *const RawRequest) -> Result<Outcome, cableway_pml::Error>,
    ) -> Result<Request<'scope, 'env>, Error> {
        let request = InFlight::new(self.communicator.engine());
        let started = start(&self.communicator.world().one_sided, &raw const *request);
        match started.map_err(|error| operation.failed(error))? {
            Outcome::Complete => Ok(Request::complete_of(self, &operation)),
            Outcome::Started => Ok(self.pending(request, operation)),
        }
    }
}
