//! Memory of peers that was to be mapped or unmapped while a stream might wait for a message.
//!
//! A driver waits for streams before it maps and unmaps memory. So messages of memory that is not mapped are staged while
//! streams have work. Once none has, the memory is mapped for later messages: by the thread before it sleeps, or by the
//! next call on a stream, before that call is added.

use std::time::{Duration, Instant};

use super::prepared::quiet::while_quiet;
use super::shared::Shared;

/// How long a call waits for the program's own work on its streams. Kernels mostly end sooner.
const PATIENCE: Duration = Duration::from_millis(10);
/// The pause before the thread looks again. It doubles with each look, up to 10 ms.
const PAUSE: Duration = Duration::from_micros(20);
/// The number of looks before the thread leaves the mappings to the next call.
const LOOKS: u32 = 12;

impl Shared {
    /// Maps memory for which messages were staged, if no stream may wait for a message. Waits some milliseconds for the
    /// program's own work on its streams. The caller has not locked the stream.
    #[inline]
    pub(super) fn map_before_call(&self) {
        if self.engine.devices().has_unopened_mappings() {
            self.map_slowly();
        }
    }

    #[cold]
    fn map_slowly(&self) {
        if !self.patience.lasts() {
            return;
        }
        let begun = Instant::now();
        if self.change_mappings(PATIENCE) {
            self.patience.rewarded();
        } else if begun.elapsed() >= PATIENCE {
            self.patience.in_vain();
        }
    }

    /// Maps and unmaps what is to be mapped and unmapped, if no stream has anything to do. `looks` counts the looks since a
    /// stream had calls. Returns when to look again.
    pub(super) fn change_mappings_at_rest(&self, looks: &mut u32) -> Option<Duration> {
        let opens = self.engine.devices().has_unopened_mappings();
        let closes = !self.unneeded.is_empty() || self.engine.devices().has_unclosed_mappings();
        if (!opens && !closes) || self.change_mappings(Duration::ZERO) {
            return None;
        }
        if !opens || *looks >= LOOKS {
            return None;
        }
        let pause = PAUSE * (1 << (*looks).min(9));
        *looks += 1;
        Some(pause)
    }

    /// Returns whether no stream had anything to do, so that everything is done.
    fn change_mappings(&self, patience: Duration) -> bool {
        let close = || self.unneeded.close_all(&self.exchange.imports);
        let changed = while_quiet(&self.engine, &self.streams(), patience, close).is_ok();
        log::debug!("mapped and unmapped memory of peers that had to wait for streams: {changed}");
        changed
    }
}
