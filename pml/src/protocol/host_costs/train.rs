//! Messages of one size that follow each other nearly without a pause.

use std::time::{Duration, Instant};

use super::class::{MANY, Timed, Way};

/// A run of so many bytes is over, however few messages they are, so that trials with large messages stay short.
const LONG: u64 = 8 << 20;

/// Messages of one size that follow each other.
#[derive(Debug, Default)]
pub(super) struct Train {
    pub(super) class: usize,
    pub(super) messages: u32,
    /// The end of its last burst, and the time that a message took in it.
    pub(super) last: Option<(Instant, Duration)>,
    /// Its last short bursts.
    pub(super) run: Option<Run>,
}

/// Short bursts of a train that follow each other by one way. The first one pays for the change of the way, so the time
/// begins at its end.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) way: Way,
    /// `None` if it belongs to the run before.
    pub(super) first: Option<Timed>,
    begun: Instant,
    /// The time of the bursts after the first one, with the pauses between them.
    rest: Timed,
}

impl Train {
    /// Returns whether a message that begins now belongs to it. A `part` of 0 lets no message follow another.
    pub(super) fn goes_on(&self, class: usize, now: Instant, part: u32) -> bool {
        let soon = |(end, took): (Instant, Duration)| now.saturating_duration_since(end) * part < took;
        self.class == class && part != 0 && self.last.is_some_and(soon)
    }

    /// Adds a short burst that ends now. Returns the run that is over: the last one, if that took another way, or this one
    /// if it is long enough.
    pub(super) fn add(&mut self, way: Way, burst: Timed, now: Instant) -> Option<Run> {
        let before = self.run.take_if(|run| run.way != way);
        match &mut self.run {
            Some(run) => run.add(burst, now),
            None => self.run = Some(Run::new(way, Some(burst), now)),
        }
        let this = self.run.take_if(|run| run.rest.messages >= MANY || run.rest.bytes >= LONG);
        if this.is_some() {
            self.run = Some(Run::new(way, None, now));
        }
        this.or(before)
    }

    /// Ends the run before a burst by this way that does not belong to it. A first burst alone is left out if the way goes
    /// on.
    pub(super) fn end_run(&mut self, way: Way) -> Option<Run> {
        self.run.take().filter(|run| run.way != way || run.rest().is_some())
    }
}

impl Run {
    fn new(way: Way, first: Option<Timed>, now: Instant) -> Run {
        Run { way, first, begun: now, rest: Timed::default() }
    }

    fn add(&mut self, burst: Timed, now: Instant) {
        self.rest.took = now.saturating_duration_since(self.begun);
        self.rest.messages += burst.messages;
        self.rest.bytes += burst.bytes;
    }

    /// Returns the time of the bursts after the first one, if there are any.
    pub(super) fn rest(&self) -> Option<Timed> {
        (self.rest.messages != 0).then_some(self.rest)
    }
}
