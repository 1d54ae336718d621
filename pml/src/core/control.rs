//! The control queue of a peer: headers without payload, in order, and messages that were made for a link that broke.
//!
//! Some answers gather until a transport's poll has handled all its messages, or until the steps after copies have run,
//! because sending a message for each takes longer than computing it. These answers are about device memory, whose
//! messages come in windows. No other control message overtakes them; data messages may.

use std::collections::VecDeque;

use crate::wire::{List, Puts};

#[derive(Default)]
pub(crate) struct Control {
    pub(crate) waiting: VecDeque<Box<[u8]>>,
    /// Whole messages for a link that broke meanwhile. They leave after the queued headers.
    pub(crate) late: VecDeque<Box<[u8]>>,
    gathered: Option<Box<Gathered>>,
    has_gathered: bool,
}

/// Answers that leave together.
pub(super) struct Gathered {
    pub(super) puts: Puts,
    pub(super) put_fins: List,
    pub(super) fins: List,
}

impl Control {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.has_gathered && self.late.is_empty()
    }

    /// Returns whether gathered answers wait.
    #[inline]
    pub(crate) fn has_gathered(&self) -> bool {
        self.has_gathered
    }

    pub(crate) fn clear(&mut self) {
        *self = Control::default();
    }

    /// Returns the gathered answers. The caller adds one.
    pub(super) fn gathered(&mut self) -> &mut Gathered {
        self.has_gathered = true;
        self.gathered
            .get_or_insert_with(|| Box::new(Gathered { puts: Puts::EMPTY, put_fins: List::PUT_FIN, fins: List::FIN }))
    }

    /// Passes each gathered message to `send`, and removes it.
    pub(super) fn drain_gathered(&mut self, mut send: impl FnMut(&mut Self, &[u8])) {
        if !std::mem::take(&mut self.has_gathered) {
            return;
        }
        let Some(mut gathered) = self.gathered.take() else { return };
        let Gathered { puts, put_fins, fins } = &mut *gathered;
        for message in [puts.take(), put_fins.take(), fins.take()].into_iter().flatten() {
            send(self, message);
        }
        self.gathered = Some(gathered);
    }
}
