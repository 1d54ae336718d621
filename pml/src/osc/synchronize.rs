//! The synchronization calls of a window.

use super::Window;
use super::epochs::OutOfEpoch;
use super::sync::Awaited;
use super::wire::{NOTICE, Notice};
use crate::am::Poster;
use crate::buffer::Buffer;
use crate::error::Error;

impl From<OutOfEpoch> for Error {
    fn from(OutOfEpoch(advice): OutOfEpoch) -> Self {
        Error::OutOfEpoch { advice }
    }
}

/// Sends a notice.
pub(super) fn send(poster: &Poster, to: u32, notice: Notice) -> Result<(), Error> {
    // SAFETY: there is no data.
    unsafe { poster.post_inline(to, NOTICE, &notice.to_bytes(), Buffer::EMPTY) }.map(drop)
}

/// Synchronization. Each call returns the first error of the operations that it completes, and an error if a call is out
/// of order or a member has died.
impl Window {
    /// Completes this process's operations for a fence. The host lets no member go on before all members have made this
    /// call. `followed`: operations may follow.
    ///
    /// # Errors
    /// See above.
    pub fn fence(&self, followed: bool) -> Result<(), Error> {
        self.epochs.lock().fence(followed)?;
        self.complete_to(None)
    }

    /// Begins an access to `targets`, ranks of the communicator. Waits until each has posted an exposure to this process.
    ///
    /// # Errors
    /// See above.
    pub fn begin(&self, targets: Vec<u32>) -> Result<(), Error> {
        self.epochs.lock().start(targets.clone())?;
        self.wait_for(Awaited::Post, &targets)
    }

    /// Ends such an access, and completes its operations.
    ///
    /// # Errors
    /// See above.
    pub fn end(&self) -> Result<(), Error> {
        let targets = self.epochs.lock().complete()?;
        let completed = self.complete_to(None);
        // The targets wait, whatever has failed.
        for target in targets {
            self.send(target, Notice::Complete)?;
        }
        completed
    }

    /// Exposes the memory to `origins`, ranks of the communicator. Does not wait.
    ///
    /// # Errors
    /// See above.
    pub fn post(&self, origins: Vec<u32>) -> Result<(), Error> {
        self.epochs.lock().post(origins.clone())?;
        origins.into_iter().try_for_each(|origin| self.send(origin, Notice::Post))
    }

    /// Waits until all origins of the exposure have ended their accesses.
    ///
    /// # Errors
    /// See above.
    pub fn wait(&self) -> Result<(), Error> {
        let origins = self.epochs.lock().exposed_to()?.to_vec();
        self.wait_for(Awaited::Complete, &origins)?;
        self.epochs.lock().end_exposure();
        Ok(())
    }

    /// Returns whether all origins of the exposure have ended their accesses, which ends it. Makes progress.
    ///
    /// # Errors
    /// See above.
    pub fn test(&self) -> Result<bool, Error> {
        let origins = self.epochs.lock().exposed_to()?.to_vec();
        self.engine.progress();
        let over = self.sync.lock().take(Awaited::Complete, &origins);
        if over {
            self.epochs.lock().end_exposure();
        } else {
            self.check()?;
        }
        Ok(over)
    }

    /// Locks a target's memory, shared or for this process alone. Waits for it.
    ///
    /// # Errors
    /// See above.
    pub fn lock(&self, target: u32, exclusive: bool) -> Result<(), Error> {
        self.epochs.lock().lock(target)?;
        self.send(target, if exclusive { Notice::LockExclusive } else { Notice::LockShared })?;
        self.wait_for(Awaited::Granted, &[target])
    }

    /// Completes the operations to a target, and gives its lock back.
    ///
    /// # Errors
    /// See above.
    pub fn unlock(&self, target: u32) -> Result<(), Error> {
        self.epochs.lock().unlock(target)?;
        self.give_back(&[target])
    }

    /// Locks the memory of all members, shared. Other members need not make this call.
    ///
    /// # Errors
    /// See above.
    pub fn lock_all(&self) -> Result<(), Error> {
        self.epochs.lock().lock_all()?;
        let all = self.everyone();
        all.iter().try_for_each(|&target| self.send(target, Notice::LockShared))?;
        self.wait_for(Awaited::Granted, &all)
    }

    /// Completes the operations to all members, and gives their locks back.
    ///
    /// # Errors
    /// See above.
    pub fn unlock_all(&self) -> Result<(), Error> {
        self.epochs.lock().unlock_all()?;
        self.give_back(&self.everyone())
    }

    /// Completes the operations to a locked target, or to every one.
    ///
    /// # Errors
    /// See above.
    pub fn flush(&self, target: Option<u32>) -> Result<(), Error> {
        self.epochs.lock().flush(target)?;
        self.complete_to(target)
    }

    /// Checks that the window may end, and completes what operations are left.
    ///
    /// # Errors
    /// See above.
    pub fn finish(&self) -> Result<(), Error> {
        self.epochs.lock().free()?;
        self.complete_to(None)
    }

    fn everyone(&self) -> Vec<u32> {
        (0..self.communicator.group().len() as u32).collect()
    }

    fn send(&self, to: u32, notice: Notice) -> Result<(), Error> {
        self.engine.core().check_open()?;
        send(self.active.poster(), to, notice)
    }

    fn give_back(&self, targets: &[u32]) -> Result<(), Error> {
        let only = if let [target] = targets { Some(*target) } else { None };
        let completed = self.complete_to(only);
        // Others wait for the lock, whatever has failed.
        targets.iter().try_for_each(|&target| self.send(target, Notice::Unlock))?;
        // Once it is given back, the next lock of this process asks anew.
        self.wait_for(Awaited::Unlocked, targets)?;
        completed
    }

    fn complete_to(&self, target: Option<u32>) -> Result<(), Error> {
        self.until(|| self.origin.is_complete(target))?;
        self.origin.take_error(target)
    }

    fn wait_for(&self, what: Awaited, peers: &[u32]) -> Result<(), Error> {
        self.until(|| self.sync.lock().take(what, peers))
    }

    /// Waits until `over` returns true, or a member has died.
    fn until(&self, mut over: impl FnMut() -> bool) -> Result<(), Error> {
        let mut result = Ok(());
        self.host.wait_until(&self.engine, &mut || {
            if over() {
                return true;
            }
            result = self.check();
            result.is_err()
        });
        // In a forked child nothing waits.
        if self.engine.is_forked() { Err(Error::Forked) } else { result }
    }
}
