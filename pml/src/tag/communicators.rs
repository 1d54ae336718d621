//! Adds and removes communicators.

use std::ops::RangeInclusive;
use std::sync::Arc;

use cableway_base::Rank;

use super::arrive::{deliver_early, refuse_all};
use super::communicator::{Communicator, Matching};
use super::engine::Engine;
use super::inbox::Mail;
use crate::abort::Abort;
use crate::core::{Done, Gone};
use crate::error::Error;

impl Engine {
    /// Adds a communicator with this context. `group[r]` is the process of rank `r`, and `rank` is this process's rank.
    /// Processes count from 0 in the job, and those of other jobs follow. For an intercommunicator `group` is the remote
    /// group. Delivers messages that arrived before.
    ///
    /// A context may be used again after [`remove_communicator`](Self::remove_communicator), even while messages of the
    /// old communicator are on their way. Two processes count the communicators with one context that they share, so
    /// both must add and remove these in the same order.
    ///
    /// # Errors
    /// The context is in use, or the group names a process that cannot be connected.
    pub fn add_communicator(&self, context: u32, group: Vec<Rank>, rank: u32) -> Result<Arc<Communicator>, Error> {
        self.core().check_open()?;
        let size = self.protocols.peers.most(self.core());
        if let Some(&unknown) = group.iter().find(|&&process| process as usize >= size) {
            return Err(Error::NoSuchRank { rank: unknown as i32, size });
        }
        let added = self.registry.write(|registry| {
            if registry.get(context).is_some() {
                return Err(Error::ContextInUse { context });
            }
            let epoch = |process| registry.epoch(context, process);
            let added = Arc::new(Communicator::new(context, group, rank, self.core().locking, epoch));
            registry.insert(added.clone());
            Ok(added)
        })?;
        // If a peer fails from now on, the handler finds the communicator in the registry.
        for (rank, &process) in added.group().iter().enumerate() {
            if let Some(gone) = self.known(process).and_then(|slot| slot.peer.gone()) {
                added.matching.lock().note_gone((rank as u32, process), matches!(gone, Gone::Failed(_)));
            }
        }
        let mut done = Done::default();
        deliver_early(self, context, &mut done);
        done.run();
        Ok(added)
    }

    /// Removes a communicator. Posted receives end with [`Error::CommunicatorRemoved`]. Unexpected messages are dropped
    /// and aborted at senders that wait. Sends under way continue.
    pub fn remove_communicator(&self, communicator: &Communicator) {
        if self.is_forked() {
            return;
        }
        let known = |other: &Arc<Communicator>| std::ptr::eq(&**other, communicator);
        if !self.registry.read(|registry| registry.get(communicator.context()).is_some_and(known)) {
            return;
        }
        communicator.matching.lock().removed = true;
        if !self.registry.write(|registry| registry.remove(communicator)) {
            return;
        }
        let mut mail = Mail::default();
        let (receives, messages) = {
            let mut matching = communicator.matching.lock();
            matching.matcher.take_inbox(&mut mail);
            matching.matcher.drain()
        };
        let mut done = Done::default();
        self.refuse_mail(communicator, mail, Abort::CommunicatorRemoved, &mut done);
        for receive in receives {
            receive.fail(Error::CommunicatorRemoved { context: communicator.context() }, &mut done);
        }
        refuse_all(self, communicator, Some((messages, Abort::CommunicatorRemoved)), &mut done);
        done.run();
    }

    /// Says which tags belong to operations in which all processes of a communicator take part. Once one has failed, some
    /// of the others may not begin such an operation any more. From then on, an unexpected message with such a tag is
    /// refused if its sender waits for the receiver. Messages that posted receives match, and messages that have come whole,
    /// are received as ever.
    pub fn set_joint_tags(&self, of: &Communicator, tags: RangeInclusive<i32>) {
        self.refuse_after(of, |matching| matching.set_joint_tags(tags));
    }

    /// Notes that a process has failed, as another one says that has refused such a message. This process acts as if it knew
    /// that itself: [`check_members`](Self::check_members) returns an error from now on.
    pub fn note_told_of_failure(&self, of: &Communicator, failed: Rank) {
        self.refuse_after(of, |matching| matching.note_failure(failed));
    }

    fn refuse_after(&self, of: &Communicator, change: impl FnOnce(&mut Matching)) {
        let refused = {
            let mut matching = of.matching.lock();
            change(&mut matching);
            matching.take_refused()
        };
        let mut done = Done::default();
        refuse_all(self, of, refused, &mut done);
        done.run();
    }
}
