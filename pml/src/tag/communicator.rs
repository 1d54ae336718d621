//! Communicators: a context, a group of processes, and the messages and receives that wait.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ahash::RandomState;
use cableway_base::Rank;
use cableway_base::lock::{Lock, Locking};

use super::matching::{Lengths, Matcher, Pattern};
use super::request::Receive;
use crate::abort::Abort;
use crate::error::Error;
use crate::protocol::UnexpectedMessage;
use crate::status::ANY;

/// A context and a group of processes in one engine. Created by
/// [`Engine::add_communicator`](crate::Engine::add_communicator).
pub struct Communicator {
    context: u32,
    rank: u32,
    group: Box<[Rank]>,
    sources: Sources,
    members: Box<[Member]>,
    pub(crate) matching: Lock<Matching>,
    /// Lengths of the communicator's queues.
    lengths: Arc<Lengths>,
}

/// Lengths of a communicator's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLengths {
    /// Posted receives without a message.
    pub posted: usize,
    /// Unexpected messages, also those that wait for a service.
    pub unexpected: usize,
}

/// State of a rank of a communicator.
pub(crate) struct Member {
    /// Number of earlier communicators with this context that were shared with the process. It distinguishes their
    /// messages from this one's.
    pub(crate) epoch: u16,
    /// Sequence number of the next message to it. Written under the peer's lock.
    next_seq: AtomicU32,
}

impl Member {
    /// Returns the sequence number of a message that leaves now. The caller holds the peer's lock.
    #[inline]
    pub(crate) fn next_seq(&self) -> u32 {
        self.next_seq.load(Ordering::Relaxed)
    }

    /// Advances the sequence number after that message has left. The caller still holds the lock.
    #[inline]
    pub(crate) fn advance_seq(&self, seq: u32) {
        self.next_seq.store(seq.wrapping_add(1), Ordering::Relaxed);
    }
}

/// Maps a process to its rank in the communicator.
enum Sources {
    /// They are equal.
    Same,
    Map(HashMap<Rank, u32, RandomState>),
}

/// The matching state of one communicator.
pub(crate) struct Matching {
    pub(crate) matcher: Matcher<Receive, UnexpectedMessage>,
    /// Ranks whose processes failed.
    failed: Vec<u32>,
    /// Ranks whose processes left, or were never reached.
    absent: Vec<u32>,
    /// The tags of operations that fail once a process of the communicator has.
    joint_tags: Option<RangeInclusive<i32>>,
    /// The process whose failure this one has learned of first, by itself or from another one.
    first_failed: Option<Rank>,
    pub(crate) removed: bool,
}

/// Messages that are refused, with their sources, and the reason.
pub(super) type Refused = (Vec<(u32, UnexpectedMessage)>, Abort);

impl Matching {
    /// Notes that a rank's process is gone. `died` says whether receives from any source may have waited for it.
    pub(crate) fn note_gone(&mut self, (rank, process): (u32, Rank), died: bool) {
        if died {
            self.note_failure(process);
        }
        let list = if died { &mut self.failed } else { &mut self.absent };
        if !list.contains(&rank) {
            list.push(rank);
        }
    }

    /// Returns a rank that is gone and that a receive of `source` would wait for.
    #[inline]
    pub(crate) fn gone_source(&self, source: i32) -> Option<u32> {
        if self.failed.is_empty() && self.absent.is_empty() {
            return None;
        }
        let failed = self.failed.iter().find(|&&rank| source == ANY || source == rank as i32);
        failed.or_else(|| self.absent.iter().find(|&&rank| source == rank as i32)).copied()
    }

    /// Sets the tags of operations of all ranks.
    pub(crate) fn set_joint_tags(&mut self, tags: RangeInclusive<i32>) {
        self.joint_tags = Some(tags);
    }

    /// Notes that a process has failed.
    pub(crate) fn note_failure(&mut self, process: Rank) {
        self.first_failed.get_or_insert(process);
    }

    /// Returns the process whose failure this one has learned of first.
    pub(crate) fn first_failed(&self) -> Option<Rank> {
        self.first_failed
    }

    /// Returns why a message with this tag is refused if its sender waits.
    #[inline]
    pub(crate) fn refusal(&self, tag: i32) -> Option<Abort> {
        let failed = self.first_failed?;
        self.joint_tags.as_ref().filter(|tags| tags.contains(&tag)).map(|_| Abort::MemberFailed(failed))
    }

    /// Takes the unexpected messages that are refused. Returns them and their sources, and the reason.
    pub(crate) fn take_refused(&mut self) -> Option<Refused> {
        let (failed, tags) = self.first_failed.zip(self.joint_tags.as_ref())?;
        let refused = self.matcher.take_if(|tag, message| tags.contains(&tag) && message.content.is_announced());
        Some((refused, Abort::MemberFailed(failed)))
    }

    /// Returns whether a rank is gone.
    pub(crate) fn is_gone(&self, rank: u32) -> bool {
        self.failed.contains(&rank) || self.absent.contains(&rank)
    }
}

impl Communicator {
    pub(crate) fn new(
        context: u32,
        group: Vec<Rank>,
        rank: u32,
        locking: Locking,
        epoch: impl Fn(Rank) -> u16,
    ) -> Self {
        let same = group.iter().enumerate().all(|(rank, &process)| rank as u32 == process);
        let sources = if same {
            Sources::Same
        } else {
            Sources::Map(group.iter().enumerate().map(|(rank, &process)| (process, rank as u32)).collect())
        };
        let members =
            group.iter().map(|&process| Member { epoch: epoch(process), next_seq: AtomicU32::new(0) }).collect();
        let (matcher, failed, absent) = (Matcher::new(group.len()), Vec::new(), Vec::new());
        let matching = Matching { matcher, failed, absent, joint_tags: None, first_failed: None, removed: false };
        let lengths = matching.matcher.lengths().clone();
        let matching = Lock::new(locking, matching);
        Communicator { context, rank, group: group.into(), sources, members, matching, lengths }
    }

    /// Returns the context number in this communicator's messages.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Returns this process's rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the lengths of the queues. May be called from any thread, also of an engine whose calls never overlap
    /// otherwise: it takes no lock.
    pub fn queue_lengths(&self) -> QueueLengths {
        let Lengths { posted, unexpected, inbox } = &*self.lengths;
        QueueLengths { posted: posted.get(), unexpected: unexpected.get() + inbox.get() }
    }

    /// Returns whether messages wait in the inbox. Takes no lock.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.lengths.inbox.get() != 0
    }

    /// Returns the processes of the (remote) group in the job's count, by rank.
    pub fn group(&self) -> &[Rank] {
        &self.group
    }

    /// Returns the rank of a process.
    #[inline]
    pub(crate) fn rank_of(&self, process: Rank) -> Option<u32> {
        match &self.sources {
            Sources::Same => ((process as usize) < self.group.len()).then_some(process),
            Sources::Map(map) => map.get(&process).copied(),
        }
    }

    /// Returns the state of a rank that is known to be in the group.
    #[inline]
    pub(crate) fn member(&self, rank: u32) -> &Member {
        &self.members[rank as usize]
    }

    /// Returns the process that a send to rank `dest` goes to.
    #[inline]
    pub(crate) fn destination(&self, dest: i32, tag: i32) -> Result<Rank, Error> {
        if tag == ANY {
            return Err(Error::BadTag { tag });
        }
        self.group.get(dest as usize).copied().ok_or(Error::NoSuchRank { rank: dest, size: self.group.len() })
    }

    /// Returns the match criteria of a receive with these arguments.
    #[inline]
    pub(crate) fn pattern(&self, source: i32, tag: i32) -> Result<Pattern, Error> {
        if source != ANY && source as usize >= self.group.len() {
            return Err(Error::NoSuchRank { rank: source, size: self.group.len() });
        }
        Ok(Pattern { source, tag })
    }
}
