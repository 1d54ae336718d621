//! How often a way is tried that is refused.

/// Refusals in a row after which there is a pause.
pub(crate) const PATIENCE: u32 = 8;

/// The history of tries. After [`PATIENCE`] refusals in a row, one is made for each `PAUSE` messages that are not tried.
#[derive(Debug, Default)]
pub(crate) struct Attempts<const PAUSE: u32> {
    /// Refusals in a row.
    refused: u32,
    /// Messages that are left of a pause.
    pause: u32,
}

impl<const PAUSE: u32> Attempts<PAUSE> {
    /// Returns whether to try the next message, and counts it.
    pub(crate) fn next(&mut self) -> bool {
        if self.refused < PATIENCE {
            return true;
        }
        let again = self.pause == 0;
        self.pause = if again { PAUSE } else { self.pause - 1 };
        again
    }

    /// Counts a message that cannot be tried. Returns whether the next one will be.
    pub(crate) fn pass(&mut self) -> bool {
        self.pause = self.pause.saturating_sub(1);
        self.refused < PATIENCE || self.pause == 0
    }

    /// Notes whether a message could be moved so.
    pub(crate) fn note(&mut self, possible: bool) {
        if possible {
            *self = Attempts::default();
        } else if self.refused < PATIENCE {
            self.refused += 1;
            self.pause = PAUSE;
        }
    }
}
