//! Answers to a peer that leave together, when what one call of a transport's progress brought has been looked at: to
//! hand over a message of its own for each takes longer than what it says took to find out.
//!
//! They are about device memory, whose messages come in windows: what concerns host memory leaves at once. No other
//! answer overtakes them; messages may.

use crate::links::Links;
use crate::wire::{BtlTag, Id, List, Puts, WholePut};

/// What has gathered for one peer.
pub(crate) struct Gathered {
    puts: Puts,
    stored: List,
    finished: List,
}

impl Links {
    fn gathered(&mut self) -> &mut Gathered {
        self.queues.has_gathered = true;
        self.queues.gathered.get_or_insert_with(|| {
            Box::new(Gathered { puts: Puts::EMPTY, stored: List::STORED, finished: List::FINISHED })
        })
    }

    /// Asks the sender to store a message by a link.
    pub(crate) fn ask_to_put(&mut self, put: &WholePut<'_>, via: (BtlTag, u8)) {
        self.gather(|gathered| gathered.puts.add(put, via));
    }

    /// Tells the receiver that a message is stored.
    pub(crate) fn tell_stored(&mut self, receiver: Id, len: u64) {
        self.gather(|gathered| gathered.stored.add_stored(receiver, len));
    }

    /// Tells the sender that a message is where it belongs.
    pub(crate) fn tell_finished(&mut self, sender: Id) {
        self.gather(|gathered| gathered.finished.add_finished(sender));
    }

    /// Adds something; where it does not go with what is there, that leaves first.
    fn gather(&mut self, add: impl Fn(&mut Gathered) -> bool) {
        if !add(self.gathered()) {
            self.send_gathered();
            let added = add(self.gathered());
            debug_assert!(added, "a message of several headers has room for any one");
        }
    }

    /// Hands over what has gathered, behind what waits.
    pub(crate) fn send_gathered(&mut self) {
        if !self.queues.has_gathered {
            return;
        }
        self.queues.has_gathered = false;
        let Some(mut gathered) = self.queues.gathered.take() else { return };
        let Gathered { puts, stored, finished } = &mut *gathered;
        if !puts.batch().is_empty() {
            self.message(puts.finish());
            puts.batch().clear();
        }
        for list in [stored, finished] {
            if !list.batch().is_empty() {
                self.message(list.finish());
                list.batch().clear();
            }
        }
        self.queues.gathered = Some(gathered);
    }
}
