//! Measured costs of moving host data from a peer on the same node.
//!
//! Host data can move by a GET of the receiver (the kernel's single copy), by a GET of one half and a PUT of the other
//! ([`halves`](super::halves)), or by fragments that the sender stores either past the caches or through them, at the
//! receiver's request or without one ([`eager_fragments`](super::eager_fragments)). Which is fastest depends on the processor, on the distance between the
//! two cores, and on the size. No constant holds on two machines. So the receiver times its messages: it tries each way
//! a few times for each size, takes the fastest, and tries the others again now and then, because the machine's load
//! changes.
//!
//! A time belongs to a *burst*: the messages from one that begins while no other is under way until none is. All
//! messages of a burst take one way, and the time of the burst is divided by its bytes. So a ping-pong is timed message
//! by message, and a window as a whole, in which copies of the two processes overlap.
//!
//! The first message by another way pays for the change: caches are cold for it, and the sender may still do the work of the
//! last one. So a trial takes two messages, and the second one is timed. In a window whose bursts are short, the bursts that
//! follow each other by one way are timed together, without the first one ([`Run`]).
//!
//! Another way may be the fastest in a window, so each size has two sets of costs ([`Pattern`]). Messages of a size that
//! follow each other nearly without a pause make a *train*. A train of one message is expected after such a train, and a
//! longer one after a longer one.
//!
//! Only the sender can take the way without a request, and the receiver permits it for some messages of a size by its
//! request for one. So messages that ask again, for a new permit or for a trial, come through the caches.
//!
//! A trial of a slow way costs time, most with large messages. So a size takes over what was measured for the nearest
//! other size, if a way was clearly slower there. A burst of many messages also counts for more than one trial. And
//! what was measured is [kept] for the next jobs on the node, by the distance of the two processes.

mod class;
mod kept;
mod train;

use std::time::{Duration, Instant};

use cableway_btl::{self as btl, Distance};

use class::{Class, Cost, MANY, Timed, WAYS, usable};
pub(crate) use class::{Expected, Reach, Way};
pub(crate) use kept::Kept;
use kept::Row;
pub use kept::{HostTimes, host_times};
pub(crate) use kept::{Pattern, Rows};
use train::{Run, Train};

/// The smallest size class is that of messages of up to twice this length.
const SMALLEST: u64 = 16 << 10;
/// Larger messages than 32 MiB share a class.
const CLASSES: usize = 12;
/// Only messages of the first sizes, of less than 256 KiB, go without a request. The handshake is a small part of the
/// time of longer ones, and a receiver collects what comes unexpected.
pub(crate) const UNASKED_CLASSES: usize = 4;
/// A burst that does not end is timed after so many messages.
const LONGEST: u32 = 256;
/// A way is not tried for a size if it took this many times as long as the fastest way for messages of half or twice
/// the size. The factor is raised to the power of the distance, because ways differ by their fixed costs, too. Those
/// hardly matter from this class on.
const CLEARLY: f32 = 1.5;
const LARGE: usize = 6;

/// The costs of the messages of one peer.
#[derive(Debug)]
pub(crate) struct HostCosts {
    /// Bursts of each class that try each way.
    trials: u32,
    sets: [Set; Pattern::ALL.len()],
    train: Train,
    /// The pattern of the last train of each size.
    patterns: [Pattern; CLASSES],
    /// A pause of this part of a message's time ends a train. The answers of a ping-pong take about that time.
    pause: u32,
    /// The way of all messages, for tests.
    only: Option<Way>,
    burst: Option<Burst>,
    /// The distance to the peer, if costs are kept for it.
    distance: Option<Distance>,
}

/// The costs of all sizes.
type Set = [Class; CLASSES];

#[derive(Debug)]
struct Burst {
    class: usize,
    expected: Expected,
    begun: Instant,
    bytes: u64,
    /// Messages that are under way.
    under_way: u32,
    /// Messages that have arrived since `begun`.
    arrived: u32,
    /// Messages under way that took an earlier way. The time begins after them.
    earlier: u32,
    /// Whether all messages took the way of the burst.
    pure: bool,
}

impl HostCosts {
    /// Creates the costs of a peer at this distance, if it is known. Each way whose cost was not kept is tried `trials`
    /// times, at least once.
    pub(crate) fn new(trials: u32, distance: Option<Distance>, kept: &Kept) -> Self {
        let sets = Pattern::ALL.map(|pattern| {
            let mut set = [Class::default(); CLASSES];
            set[..UNASKED_CLASSES].iter_mut().for_each(|class| class.short = true);
            let rows = distance.and_then(|distance| kept.rows(distance, pattern));
            for (class, row) in set.iter_mut().zip(rows.iter().flatten()) {
                for (cost, each) in class.costs.iter_mut().zip(row) {
                    *cost = each.map_or(Cost::default(), |each| Cost { each, times: trials, ..Cost::default() });
                }
            }
            set
        });
        let (train, patterns) = (Train::default(), [Pattern::Single; CLASSES]);
        HostCosts { trials, sets, train, patterns, pause: 4, only: None, burst: None, distance }
    }

    /// Takes what tests may set: the part of a message's time that ends a train, and the name of the only way.
    pub(crate) fn with(mut self, pause: u32, only: &str) -> Self {
        (self.pause, self.only) = (pause, Way::named(only));
        self
    }

    /// Returns what the next message of this length is expected to take. A way that is due for a trial takes nothing.
    pub(crate) fn expect(&mut self, len: u64, reach: Reach, now: Instant) -> Expected {
        if let Some(way) = self.only.filter(|way| reach.allows(*way)) {
            return Expected::only(way, reach);
        }
        let class = class_of(len);
        if self.burst.is_none() {
            self.couple(class, now);
        }
        if self.burst.is_none() && self.trials != 0 {
            self.inherit(class, reach);
        }
        match &self.burst {
            Some(burst) if burst.class == class && reach.allows(burst.expected.way()) && !burst.expected.unasked => {
                burst.expected
            }
            Some(_) => self.class(class).expect(len, reach, 0),
            None => {
                let trials = self.trials;
                self.class(class).expect(len, reach, trials)
            }
        }
    }

    /// Begins a train, unless a message that begins now belongs to the last one.
    fn couple(&mut self, class: usize, now: Instant) {
        if self.train.goes_on(class, now, self.pause) {
            self.patterns[class] = Pattern::Window;
        } else {
            let before = std::mem::replace(&mut self.train, Train { class, ..Train::default() });
            if before.messages != 0 {
                self.patterns[before.class] = Pattern::of(before.messages);
            }
            if let Some(run) = before.run {
                note(&mut self.sets[Pattern::Window as usize][before.class], &run);
            }
        }
    }

    /// Returns the costs of a size in the pattern that is expected.
    fn class(&mut self, class: usize) -> &mut Class {
        &mut self.sets[self.patterns[class] as usize][class]
    }

    /// Describes a message that comes without a request, for [`begin`](Self::begin).
    pub(crate) fn expect_unasked(reach: Reach) -> Expected {
        Expected::unasked(reach)
    }

    /// Notes that a message begins to move by this way. Returns how many of the next ones of the size the sender may
    /// send without a request: many if that was the fastest way, a few if it is to be tried.
    pub(crate) fn begin(&mut self, len: u64, way: Way, expected: Expected, now: Instant) -> u8 {
        let class = class_of(len);
        if self.burst.is_none() && expected.unasked {
            self.couple(class, now);
        }
        let trials = self.trials;
        let costs = &mut self.sets[self.patterns[class] as usize][class];
        let burst = self.burst.get_or_insert(Burst {
            class,
            expected,
            begun: now,
            bytes: 0,
            under_way: 0,
            arrived: 0,
            earlier: 0,
            pure: true,
        });
        burst.under_way += 1;
        burst.pure &= burst.class == class && burst.expected.way() == way;
        if way == Way::Cached { costs.permit(expected.reach, trials) } else { 0 }
    }

    /// Notes that a message has arrived, or failed. Keeps the costs of its size at times.
    pub(crate) fn end(&mut self, len: u64, failed: bool, now: Instant, kept: &Kept) {
        let Some(burst) = &mut self.burst else { return };
        burst.under_way -= 1;
        burst.pure &= !failed;
        if burst.earlier != 0 {
            burst.earlier -= 1;
            burst.begun = now;
        } else {
            burst.bytes += len;
            burst.arrived += 1;
        }
        let over = burst.under_way == 0;
        if !over && burst.arrived < LONGEST {
            return;
        }
        let took = now.saturating_duration_since(burst.begun);
        self.train.class = burst.class;
        self.train.messages = self.train.messages.saturating_add(burst.arrived);
        self.train.last = Some((now, took / burst.arrived.max(1)));
        if self.train.messages > 1 {
            self.patterns[burst.class] = Pattern::Window;
        }
        let pattern = self.patterns[burst.class];
        let class = &mut self.sets[pattern as usize][burst.class];
        let timed = burst.pure && burst.bytes != 0;
        let short = timed && pattern == Pattern::Window && burst.arrived < MANY;
        let way = burst.expected.way();
        let time = Timed { took, messages: burst.arrived, bytes: burst.bytes };
        let run = if short { self.train.add(way, time, now) } else { self.train.end_run(way) };
        run.iter().for_each(|run| note(class, run));
        if timed {
            match pattern {
                _ if short => {}
                Pattern::Single if burst.arrived < MANY => class.note_single(way, time),
                _ => class.note(way, time),
            }
            let report = class.report(self.trials);
            if let (Some(distance), Some(row)) = (self.distance, report) {
                kept.note((distance, pattern), burst.class, &row);
            }
        }
        if over {
            self.burst = None;
            return;
        }
        let expected = class.expect(len, burst.expected.reach, self.trials);
        let earlier = if expected.way() == burst.expected.way() && burst.pure { 0 } else { burst.under_way };
        *burst = Burst { expected, begun: now, bytes: 0, arrived: 0, earlier, pure: true, ..*burst };
    }

    /// Takes over the costs of ways that were clearly slower for the nearest other sizes.
    fn inherit(&mut self, class: usize, reach: Reach) {
        let set = &mut self.sets[self.patterns[class] as usize];
        for way in usable(reach) {
            if set[class].costs[way as usize].times != 0 {
                continue;
            }
            let measured = |other: &usize| set[*other].measured(way, self.trials, reach);
            let nearest = (0..CLASSES).filter(measured).min_by_key(|other| other.abs_diff(class));
            let Some(nearest) = nearest else { continue };
            let each = set[nearest].costs[way as usize].each;
            let apart = nearest.min(LARGE).abs_diff(class.min(LARGE)).max(1);
            let clearly = CLEARLY.powi(apart as i32);
            if each > clearly * set[nearest].best(reach) {
                let last = set[class].count;
                set[class].costs[way as usize] =
                    Cost { each, times: self.trials, last, inherited: true, ..Cost::default() };
            }
        }
    }

    /// Returns whether small messages should be stored through the caches, too, as far as is known.
    pub(crate) fn caches(&self) -> bool {
        let row = |class: &Class| class.costs.map(|cost| (cost.times != 0).then_some(cost.each));
        caches(self.sets.iter().flatten().map(row))
    }
}

/// Notes the time of a run that is over.
fn note(class: &mut Class, run: &Run) {
    match (run.rest(), run.first) {
        (Some(rest), _) => class.note(run.way, rest),
        (None, Some(first)) => class.note_alone(run.way, first),
        (None, None) => {}
    }
}

/// What was measured of messages of a size.
pub(crate) struct Measured {
    /// The costs of fragments, by the better way to store them, of a fetch, and of halves. A way that was not measured
    /// takes for ever.
    pub(crate) costs: [btl::Cost; 3],
    /// The rates by all ways, for people.
    pub(crate) shown: String,
}

/// Returns what was measured of messages of this length, if anything was.
pub(crate) fn measured(rows: &Rows, len: u64) -> Option<Measured> {
    let row = rows[class_of(len)];
    row.iter().any(Option::is_some).then(|| {
        let rate = |way: Way| row[way as usize].map_or(0.0, |each| 1e12 / f64::from(each));
        let names = [
            (Way::Streamed, "past the caches"),
            (Way::Cached, "through the caches"),
            (Way::Get, "fetched"),
            (Way::Halves, "by both sides"),
            (Way::Unasked, "without a request"),
        ];
        let known = names.into_iter().filter(|(way, _)| row[*way as usize].is_some());
        let shown: Vec<_> = known.map(|(way, name)| format!("{name} {:.1} GB/s", rate(way) * 1e-9)).collect();
        let cost = |rate: f64| match rate {
            0.0 => btl::Cost { fixed: Duration::MAX, bytes_per_second: f64::INFINITY },
            _ => btl::Cost { fixed: Duration::ZERO, bytes_per_second: rate },
        };
        let fragments = rate(Way::Streamed).max(rate(Way::Cached)).max(rate(Way::Unasked));
        let costs = [fragments, rate(Way::Get), rate(Way::Halves)].map(cost);
        Measured { costs, shown: shown.join(", ") }
    })
}

/// Returns the highest kept costs of each way among all distances, for single messages where they are known.
pub(crate) fn worst(kept: &Kept) -> Rows {
    let mut worst = Rows::default();
    for rows in Distance::ALL.into_iter().filter_map(|distance| kept_at(distance, kept)) {
        for (worst, each) in worst.iter_mut().flatten().zip(rows.into_iter().flatten()) {
            *worst = [*worst, each].into_iter().flatten().reduce(f32::max);
        }
    }
    worst
}

/// Returns what is kept of messages at this distance: of single ones, or of windows for sizes of which only that is known.
pub(crate) fn kept_at(distance: Distance, kept: &Kept) -> Option<Rows> {
    let [single, window] = Pattern::ALL.map(|pattern| kept.rows(distance, pattern));
    let mut rows = single.or(window)?;
    for (row, window) in rows.iter_mut().zip(window.iter().flatten()) {
        if row.iter().all(Option::is_none) {
            *row = *window;
        }
    }
    Some(rows)
}

/// Returns the sizes from which on other costs hold.
pub(crate) fn sizes() -> impl Iterator<Item = u64> {
    (0..CLASSES).map(|class| SMALLEST << class)
}

/// Returns whether small messages to a peer at this distance should be stored through the caches, by what was kept.
pub(crate) fn caches_at(distance: Distance, kept: &Kept) -> bool {
    let rows = Pattern::ALL.into_iter().filter_map(|pattern| kept.rows(distance, pattern));
    caches(rows.flatten())
}

/// Decides by the smallest size for which both ways are known.
fn caches(mut rows: impl Iterator<Item = Row>) -> bool {
    let both = |row: Row| row[Way::Streamed as usize].zip(row[Way::Cached as usize]);
    rows.find_map(both).is_some_and(|(streamed, cached)| cached < streamed)
}

/// Returns the size class of a message that may go without a request.
pub(crate) fn unasked_class(len: u64) -> Option<usize> {
    Some(class_of(len)).filter(|&class| len >= SMALLEST && class < UNASKED_CLASSES)
}

fn class_of(len: u64) -> usize {
    ((len / SMALLEST).max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod single_tests;
#[cfg(test)]
mod tests;
