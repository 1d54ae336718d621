//! The memory of one owner that this process may access directly: pure state, which knows nothing of how data moves.
//!
//! ```text
//!            begin                 exposed                  revoke, or close
//!   (none) --------> Asked ---------------------> Held ------------------------> Held, revoked
//!     ^                |     refused, or later      |                              | the last use ends
//!     |                +------------------------+   | never reachable              v
//!     +-----------------------------------------+   v                          Releasing
//!     |                                           Never                            | the owner was told
//!     +----------------------------------------------------------------------------+
//! ```
//!
//! An access is one use. A revoked exposure admits no more uses, and the owner is told once none is left: after that
//! this process does not reach the memory.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::key::Name;
use super::registry::Span;

/// Names a registration in messages about its exposure. The owner uses a slot again only after it was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl From<&Name> for Ticket {
    fn from(name: &Name) -> Self {
        Ticket { slot: name.slot.get(), generation: name.generation.get() }
    }
}

/// How memory is reached. Some of its uses need not be told to [`Exposures`].
pub(super) trait Reached {
    /// Admits no more such uses.
    fn close(&self);

    /// Returns whether none of them is under way, after [`close`](Self::close). Once it has returned true it is not asked
    /// again.
    fn is_over(&self) -> bool;
}

/// See the module. `E` describes how memory is reached.
pub(super) struct Exposures<E> {
    entries: HashMap<u32, Entry<E>, RandomState>,
    closed: bool,
}

struct Entry<E> {
    name: Name,
    stage: Stage<E>,
}

enum Stage<E> {
    Asked,
    Never,
    Held { exposed: Arc<E>, len: u64, uses: u64, revoked: bool },
    Releasing,
}

/// What an access may do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin<E> {
    /// Go directly. [`Exposures::end`] follows.
    Use(Arc<E>),
    /// Go by the owner, and ask it to expose the memory.
    Ask,
    /// Go by the owner.
    Owner,
}

/// What a caller that waits for an exposure does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted<E> {
    /// Use this many bytes. [`Exposures::end`] follows.
    Use(Arc<E>, u64),
    /// Wait: the owner was asked, about this registration or an earlier one.
    Asked,
    /// [Ask](Exposures::ask): nothing is known.
    Unknown,
    /// Do without: no link exposes the memory.
    Never,
    /// Do without: the exposure ends.
    Ending,
}

/// The owner's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Granted<E> {
    /// `len` bytes of memory are exposed.
    Exposed { exposed: E, len: u64 },
    /// No link exposes this memory.
    Never,
    /// Not now, or the key is refused.
    Refused,
}

impl<E> Default for Exposures<E> {
    fn default() -> Self {
        Exposures { entries: HashMap::default(), closed: false }
    }
}

impl<E: Reached> Exposures<E> {
    /// Begins an access to a span.
    pub(super) fn begin(&mut self, span: &Span) -> Begin<E> {
        if !self.covers(span) {
            return self.ask(&span.name);
        }
        match self.entries.get_mut(&span.name.slot.get()) {
            Some(Entry { stage: Stage::Held { exposed, uses, .. }, .. }) => {
                *uses += 1;
                Begin::Use(exposed.clone())
            }
            _ => Begin::Owner,
        }
    }

    /// Returns whether to ask the owner for memory, about which nothing is known. An access goes by the owner meanwhile.
    pub(super) fn ask(&mut self, name: &Name) -> Begin<E> {
        let known = match self.entries.get(&name.slot.get()) {
            // Memory that could not be exposed is deregistered without a word.
            Some(Entry { name: other, stage: Stage::Never }) => other == name,
            Some(_) => true,
            None => false,
        };
        if known || self.closed {
            return Begin::Owner;
        }
        self.entries.insert(name.slot.get(), Entry { name: *name, stage: Stage::Asked });
        Begin::Ask
    }

    /// Returns whether a span is known to be memory that the owner has exposed.
    pub(super) fn covers(&self, span: &Span) -> bool {
        self.held(span).is_some()
    }

    /// Returns how a span is reached, if it is known to be memory that the owner has exposed.
    pub(super) fn held(&self, Span { name, offset, len }: &Span) -> Option<&Arc<E>> {
        match self.entries.get(&name.slot.get()) {
            Some(Entry { name: held, stage: Stage::Held { exposed, len: all, revoked: false, .. } })
                if !self.closed =>
            {
                let inside = held == name && offset.checked_add(*len).is_some_and(|end| end <= *all);
                inside.then_some(exposed)
            }
            _ => None,
        }
    }

    /// Begins a use of all of a registration for a caller that waits until the owner has answered.
    pub(super) fn want(&mut self, name: &Name) -> Wanted<E> {
        match self.entries.get_mut(&name.slot.get()) {
            _ if self.closed => Wanted::Ending,
            Some(Entry { name: held, stage }) if held == name => match stage {
                Stage::Asked => Wanted::Asked,
                Stage::Never => Wanted::Never,
                Stage::Held { exposed, len, uses, revoked: false } => {
                    *uses += 1;
                    Wanted::Use(exposed.clone(), *len)
                }
                Stage::Held { .. } | Stage::Releasing => Wanted::Ending,
            },
            // Another registration of the slot, which the owner has ended, or is about to answer for.
            Some(Entry { stage: Stage::Asked | Stage::Releasing, .. }) => Wanted::Asked,
            Some(Entry { stage: Stage::Held { .. }, .. }) => Wanted::Ending,
            Some(Entry { stage: Stage::Never, .. }) | None => Wanted::Unknown,
        }
    }

    /// Returns how memory is reached, also if it is revoked.
    pub(super) fn reached(&mut self, ticket: Ticket) -> Option<Arc<E>> {
        match &self.entry(ticket)?.stage {
            Stage::Held { exposed, .. } => Some(exposed.clone()),
            _ => None,
        }
    }

    /// Ends a use. Returns whether to tell the owner that the exposure is released, and then to call
    /// [`released`](Self::released).
    #[must_use]
    pub(super) fn end(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.entry(ticket) else { return false };
        let Stage::Held { uses, .. } = &mut entry.stage else { return false };
        *uses -= 1;
        entry.is_over()
    }

    /// Handles the owner's answer. Returns whether to tell it that the exposure is released, as [`end`](Self::end)
    /// does, or `None` if the owner was not asked.
    pub(super) fn granted(&mut self, ticket: Ticket, granted: Granted<E>) -> Option<bool> {
        let closed = self.closed;
        let entry = self.entry(ticket).filter(|entry| matches!(entry.stage, Stage::Asked))?;
        match granted {
            Granted::Exposed { exposed, len } => {
                if closed {
                    exposed.close();
                }
                entry.stage = Stage::Held { exposed: Arc::new(exposed), len, uses: 0, revoked: closed };
                return Some(entry.is_over());
            }
            Granted::Never => entry.stage = Stage::Never,
            Granted::Refused => {
                self.entries.remove(&ticket.slot);
            }
        }
        Some(false)
    }

    /// Admits no more uses of an exposure. Returns what [`end`](Self::end) does.
    #[must_use]
    pub(super) fn revoke(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.entry(ticket) else { return false };
        if let Stage::Held { exposed, revoked, .. } = &mut entry.stage {
            *revoked = true;
            exposed.close();
        }
        entry.is_over()
    }

    /// Looks at revoked exposures again, after uses that were not told have ended. Returns those about which
    /// [`end`](Self::end) would return true.
    #[must_use]
    pub(super) fn over(&mut self) -> Vec<Ticket> {
        let over = self.entries.values_mut().filter_map(|entry| entry.is_over().then(|| Ticket::from(&entry.name)));
        over.collect()
    }

    /// Returns the name of memory about which the owner was asked.
    pub(super) fn name(&mut self, ticket: Ticket) -> Option<Name> {
        self.entry(ticket).map(|entry| entry.name)
    }

    /// Notes that the owner was told. Until then it must not be asked again.
    pub(super) fn released(&mut self, ticket: Ticket) {
        if self.entry(ticket).is_some_and(|entry| matches!(entry.stage, Stage::Releasing)) {
            self.entries.remove(&ticket.slot);
        }
    }

    /// Admits no more uses at all. Returns the exposures about which [`end`](Self::end) would return true.
    #[must_use]
    pub(super) fn close(&mut self) -> Vec<Ticket> {
        self.closed = true;
        let tickets: Vec<Ticket> = self.entries.values().map(|entry| Ticket::from(&entry.name)).collect();
        tickets.into_iter().filter(|ticket| self.revoke(*ticket)).collect()
    }

    /// Forgets everything: the owner is gone.
    pub(super) fn clear(&mut self) {
        self.closed = true;
        for entry in self.entries.values() {
            if let Stage::Held { exposed, .. } = &entry.stage {
                exposed.close();
            }
        }
        self.entries.clear();
    }

    /// Returns whether the owner waits for this process, or this process for an answer of the owner.
    pub(super) fn is_open(&self) -> bool {
        self.entries.values().any(|entry| !matches!(entry.stage, Stage::Never))
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry<E>> {
        self.entries.get_mut(&ticket.slot).filter(|entry| Ticket::from(&entry.name) == ticket)
    }
}

impl<E: Reached> Entry<E> {
    /// Turns a revoked exposure without uses into one that is being released. Returns whether it did.
    fn is_over(&mut self) -> bool {
        let over = match &self.stage {
            Stage::Held { exposed, uses: 0, revoked: true, .. } => exposed.is_over(),
            _ => false,
        };
        if over {
            self.stage = Stage::Releasing;
        }
        over
    }
}

#[cfg(test)]
mod tests;
