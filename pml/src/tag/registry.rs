//! The communicators, and messages that came before their communicator.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use cableway_base::Rank;

use super::communicator::Communicator;
use crate::protocol::UnexpectedMessage;

/// Contexts below this are found by index; hosts count from 0.
const DIRECT: u32 = 1024;

/// So are this context and those above it, which hosts use for what programs do not see.
const LAST: u32 = u32::MAX - 15;

#[derive(Default)]
pub(crate) struct Registry {
    direct: Vec<Option<Arc<Communicator>>>,
    last: [Option<Arc<Communicator>>; (u32::MAX - LAST) as usize + 1],
    others: HashMap<u32, Arc<Communicator>, RandomState>,
    /// Messages for communicators that do not exist here yet, by context, in the order of arrival.
    early: HashMap<u32, Vec<(Rank, UnexpectedMessage)>, RandomState>,
    /// Number of messages in `early` for each process.
    early_counts: HashMap<Rank, usize, RandomState>,
    /// Number of removed communicators with a context that were shared with a process.
    epochs: HashMap<(u32, Rank), u16, RandomState>,
}

impl Registry {
    #[inline]
    pub(crate) fn get(&self, context: u32) -> Option<&Arc<Communicator>> {
        if context < DIRECT {
            return self.direct.get(context as usize)?.as_ref();
        }
        if context >= LAST {
            return self.last[(context - LAST) as usize].as_ref();
        }
        self.others.get(&context)
    }

    pub(crate) fn insert(&mut self, communicator: Arc<Communicator>) {
        let context = communicator.context();
        if context < DIRECT {
            let len = self.direct.len().max(context as usize + 1);
            self.direct.resize(len, None);
            self.direct[context as usize] = Some(communicator);
        } else if context >= LAST {
            self.last[(context - LAST) as usize] = Some(communicator);
        } else {
            self.others.insert(context, communicator);
        }
    }

    /// Removes a communicator. Later messages of its members are distinguished from those of its successor.
    pub(crate) fn remove(&mut self, communicator: &Communicator) -> bool {
        let context = communicator.context();
        if !self.get(context).is_some_and(|known| std::ptr::eq(&**known, communicator)) {
            return false;
        }
        if context < DIRECT {
            self.direct[context as usize] = None;
        } else if context >= LAST {
            self.last[(context - LAST) as usize] = None;
        } else {
            self.others.remove(&context);
        }
        for &process in communicator.group() {
            let epoch = self.epochs.entry((context, process)).or_default();
            *epoch = epoch.wrapping_add(1);
        }
        true
    }

    pub(crate) fn epoch(&self, context: u32, process: Rank) -> u16 {
        self.epochs.get(&(context, process)).copied().unwrap_or(0)
    }

    /// Keeps a message until its communicator is added. Returns how many of that process are kept.
    pub(crate) fn keep_early(&mut self, process: Rank, message: UnexpectedMessage) -> usize {
        self.early.entry(message.envelope.context).or_default().push((process, message));
        let count = self.early_counts.entry(process).or_default();
        *count += 1;
        *count
    }

    /// Removes the messages that waited for a context.
    pub(crate) fn take_early(&mut self, context: u32) -> Vec<(Rank, UnexpectedMessage)> {
        let messages = self.early.remove(&context).unwrap_or_default();
        for (process, _) in &messages {
            if let Some(count) = self.early_counts.get_mut(process) {
                *count -= 1;
            }
        }
        messages
    }

    /// Returns every communicator.
    pub(crate) fn all(&self) -> Vec<Arc<Communicator>> {
        self.direct.iter().chain(&self.last).flatten().chain(self.others.values()).cloned().collect()
    }
}

/// How a message's epoch compares with that of a communicator with its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// The message is for a removed communicator.
    Late,
    Current,
    /// The message is for a future communicator.
    Early,
}

impl Age {
    #[inline]
    pub(crate) fn of(message: u16, communicator: u16) -> Self {
        match message.wrapping_sub(communicator) as i16 {
            0 => Age::Current,
            1.. => Age::Early,
            _ => Age::Late,
        }
    }
}
