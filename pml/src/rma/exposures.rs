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
    pub(super) fn covers(&self, Span { name, offset, len }: &Span) -> bool {
        match self.entries.get(&name.slot.get()) {
            Some(Entry { name: held, stage: Stage::Held { len: all, revoked: false, .. } }) if !self.closed => {
                held == name && offset.checked_add(*len).is_some_and(|end| end <= *all)
            }
            _ => false,
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
mod tests {
    use proptest::prelude::*;
    use zerocopy::little_endian::U32;

    use super::*;

    impl Reached for u32 {
        fn close(&self) {}

        fn is_over(&self) -> bool {
            true
        }
    }

    fn name(slot: u32, generation: u32, authenticator: u8) -> Name {
        Name { slot: U32::new(slot), generation: U32::new(generation), authenticator: [authenticator; 16] }
    }

    fn span(name: Name, offset: u64, len: u64) -> Span {
        Span { name, offset, len }
    }

    #[test]
    fn an_exposure_is_asked_for_once_and_used_until_it_is_revoked() {
        let mut exposures = Exposures::default();
        let (key, forged) = (name(3, 1, 7), name(3, 1, 8));
        let ticket = Ticket::from(&key);
        assert_eq!(exposures.granted(ticket, Granted::Exposed { exposed: 5, len: 100 }), None, "nobody asked");
        assert_eq!(exposures.begin(&span(key, 0, 10)), Begin::Ask);
        assert_eq!(exposures.begin(&span(key, 0, 10)), Begin::Owner);
        assert_eq!(exposures.granted(ticket, Granted::Exposed { exposed: 5, len: 100 }), Some(false));
        assert_eq!(exposures.begin(&span(key, 90, 10)), Begin::Use(Arc::new(5)));
        // What the owner alone can refuse goes to the owner.
        for wrong in [span(forged, 0, 1), span(key, 91, 10), span(key, u64::MAX, 2), span(name(3, 2, 7), 0, 1)] {
            assert_eq!(exposures.begin(&wrong), Begin::Owner);
            assert!(!exposures.covers(&wrong));
        }
        assert!(exposures.covers(&span(key, 92, 8)));
        assert!(!exposures.revoke(ticket), "an access is under way");
        assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Owner);
        assert!(!exposures.covers(&span(key, 0, 1)));
        assert!(exposures.end(ticket));
        assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Owner, "the owner has not been told yet");
        exposures.released(ticket);
        assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Ask);
        assert_eq!(exposures.granted(ticket, Granted::Refused), Some(false));
        assert!(!exposures.is_open());
    }

    #[test]
    fn an_answer_after_the_end_is_released_at_once() {
        let mut exposures = Exposures::default();
        let key = name(0, 1, 0);
        assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Ask);
        assert_eq!(exposures.close(), []);
        assert!(exposures.is_open());
        assert_eq!(exposures.granted(Ticket::from(&key), Granted::Exposed { exposed: 0, len: 1 }), Some(true));
        exposures.released(Ticket::from(&key));
        assert!(!exposures.is_open());
        assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Owner);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin(u32),
        End(u32),
        Grant(u32),
        Revoke(u32),
        Told(u32),
        Close,
    }

    proptest! {
        /// The owner is told exactly once for each exposure, with no use under way, and no use begins afterwards.
        #[test]
        fn nothing_is_used_after_its_release(steps in prop::collection::vec(prop_oneof![
            6 => (0..3_u32).prop_map(Step::Begin),
            5 => (0..3_u32).prop_map(Step::End),
            4 => (0..3_u32).prop_map(Step::Grant),
            3 => (0..3_u32).prop_map(Step::Revoke),
            3 => (0..3_u32).prop_map(Step::Told),
            1 => Just(Step::Close),
        ], 0..120)) {
            #[derive(Clone, Copy, Default, PartialEq, Debug)]
            struct Model { asked: bool, held: bool, revoked: bool, uses: u32, releasing: bool }
            let mut exposures = Exposures::<u32>::default();
            let (mut model, mut closed) = ([Model::default(); 3], false);
            for step in steps {
                match step {
                    Step::Begin(slot) => {
                        let it = &mut model[slot as usize];
                        let expected = match (closed, *it) {
                            (false, Model { held: true, revoked: false, .. }) => Begin::Use(Arc::new(slot)),
                            (false, Model { asked: false, held: false, releasing: false, .. }) => Begin::Ask,
                            _ => Begin::Owner,
                        };
                        let begun = exposures.begin(&span(name(slot, 1, 0), 0, 8));
                        it.uses += u32::from(matches!(begun, Begin::Use(_)));
                        it.asked |= begun == Begin::Ask;
                        prop_assert_eq!(begun, expected);
                    }
                    Step::End(slot) => {
                        let it = &mut model[slot as usize];
                        if it.uses > 0 {
                            it.uses -= 1;
                            let tell = exposures.end(Ticket { slot, generation: 1 });
                            prop_assert_eq!(tell, it.revoked && it.uses == 0);
                            if tell {
                                *it = Model { releasing: true, ..Model::default() };
                            }
                        }
                    }
                    Step::Grant(slot) => {
                        let it = &mut model[slot as usize];
                        let exposed = Granted::Exposed { exposed: slot, len: 8 };
                        let granted = exposures.granted(Ticket { slot, generation: 1 }, exposed);
                        prop_assert_eq!(granted, it.asked.then_some(closed));
                        if it.asked {
                            *it = Model { held: !closed, releasing: closed, ..Model::default() };
                        }
                    }
                    Step::Revoke(slot) => {
                        let it = &mut model[slot as usize];
                        let tell = exposures.revoke(Ticket { slot, generation: 1 });
                        prop_assert_eq!(tell, it.held && it.uses == 0);
                        it.revoked |= it.held;
                        if tell {
                            *it = Model { releasing: true, ..Model::default() };
                        }
                    }
                    Step::Told(slot) => {
                        let it = &mut model[slot as usize];
                        exposures.released(Ticket { slot, generation: 1 });
                        if it.releasing {
                            *it = Model::default();
                        }
                    }
                    Step::Close => {
                        closed = true;
                        let mut told: Vec<u32> = exposures.close().iter().map(|ticket| ticket.slot).collect();
                        told.sort_unstable();
                        let idle = |it: &Model| it.held && it.uses == 0;
                        let expected: Vec<u32> = (0..3).filter(|slot| idle(&model[*slot as usize])).collect();
                        prop_assert_eq!(told, expected);
                        for it in &mut model {
                            it.revoked |= it.held;
                            if idle(it) {
                                *it = Model { releasing: true, ..Model::default() };
                            }
                        }
                    }
                }
                let open = model.iter().any(|it| *it != Model::default());
                prop_assert_eq!(exposures.is_open(), open);
            }
        }
    }
}
