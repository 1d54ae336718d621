//! The loops of puts, gets, active messages and registrations, which take turns: one is under way at a time.

use cableway::{RawMemory, World};

use super::active::Active;
use super::remote::Remote;
use super::side::{Side, number};
use crate::cli::Failure;

impl Side<'_> {
    /// Puts from both ranks into each other's inbox, in turns. A checked message differs from the one before it, so that a
    /// put that writes nothing is found.
    pub(super) fn put(&mut self, remote: &mut Remote<'_>, size: u64, count: u32) -> Result<(), Failure> {
        let check = self.plan.check;
        for _ in 0..count {
            if self.on.rank() == 0 {
                self.fill_if(check, size)?;
                remote.ping(&self.out.message(0, size), size)?;
                self.verify_if(check, size)?;
                self.poison_gaps(size)?;
            } else {
                remote.pong()?;
                self.verify_if(check, size)?;
                self.poison_gaps(size)?;
                self.fill_if(check, size)?;
                remote.put(&self.out.message(0, size), size)?;
            }
        }
        Ok(())
    }

    /// Gets by rank 0 of rank 1's messages.
    pub(super) fn get(&mut self, remote: &Remote<'_>, size: u64, count: u32) -> Result<(), Failure> {
        // Every checked message is another one. Otherwise rank 1 has nothing to do between them.
        let (rounds, gets) = if self.plan.check { (count, 1) } else { (1, count) };
        for _ in 0..rounds {
            if self.on.rank() == 0 {
                if self.plan.check {
                    self.poison(size, 1)?;
                }
                let buffer = &mut self.inbox.buffers(1, size, false)[0];
                remote.while_served(|| (0..gets).try_for_each(|_| remote.get(buffer, size)))?;
                self.verify_if(self.plan.check, size)?;
            } else {
                self.fill_if(self.plan.check, size)?;
                remote.serve()?;
            }
        }
        Ok(())
    }

    /// Active messages from both ranks to each other, in turns.
    pub(super) fn post(&mut self, active: &mut Active<'_>, size: u64, count: u32) -> Result<(), Failure> {
        let (check, peer) = (self.plan.check, self.peer());
        for _ in 0..count {
            if self.on.rank() == 0 {
                self.fill_if(check, size)?;
                active.ping(&self.out.message(0, size), peer)?;
                self.verify_landed(active, size)?;
            } else {
                active.pong()?;
                self.verify_landed(active, size)?;
                self.fill_if(check, size)?;
                active.post(&self.out.message(0, size), peer)?;
            }
        }
        Ok(())
    }

    /// Registers and deregisters rank 0's memory.
    pub(super) fn register(&self, world: &World, size: u64, count: u32) -> Result<(), Failure> {
        for _ in 0..if self.on.rank() == 0 { count } else { 0 } {
            // SAFETY: the registration ends here, before the memory does. Its key goes nowhere.
            drop(world.register(unsafe { RawMemory::new(self.out.whole().0.cast(), size) })?);
        }
        Ok(())
    }

    fn peer(&self) -> u32 {
        1 - self.on.rank()
    }

    fn fill_if(&mut self, check: bool, size: u64) -> Result<(), Failure> {
        if check { self.fill(size, 1) } else { Ok(()) }
    }

    fn verify_if(&mut self, check: bool, size: u64) -> Result<(), Failure> {
        let peer = self.peer();
        if check { self.verify(peer, size, 1) } else { Ok(()) }
    }

    fn verify_landed(&mut self, active: &Active<'_>, size: u64) -> Result<(), Failure> {
        if !self.plan.check {
            return Ok(());
        }
        let (from, message) = (self.peer(), self.received);
        self.received += 1;
        match active.verify(size, number(from, message))? {
            Some(fault) => Err(self.failed(from, size, message, fault)),
            None => Ok(()),
        }
    }
}
