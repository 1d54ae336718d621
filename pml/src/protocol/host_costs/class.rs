//! The costs of messages of one size, and which way is due for a trial.

use std::time::Duration;

/// A way to move host data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Fragments that are stored past the caches.
    Streamed,
    /// The receiver fetches.
    Get,
    /// Fragments that are stored through the caches.
    Cached,
    /// Small fragments that follow the announcement without a request.
    Unasked,
}

pub(super) const WAYS: [Way; 4] = [Way::Streamed, Way::Get, Way::Cached, Way::Unasked];
/// The ways that the receiver requests.
pub(super) const REQUESTED: [Way; 3] = [Way::Streamed, Way::Get, Way::Cached];

/// Expected times of a message. Zero stands for a way to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) get: Duration,
    pub(crate) fragments: Duration,
    /// Whether fragments are to be stored past the caches.
    pub(crate) stream: bool,
    /// Whether the message comes without a request, whatever the other ways take.
    pub(super) unasked: bool,
    pub(super) can_get: bool,
}

impl Expected {
    /// Describes a message that comes without a request.
    pub(super) fn unasked(can_get: bool) -> Self {
        Expected { get: Duration::MAX, fragments: Duration::ZERO, stream: false, unasked: true, can_get }
    }

    /// Returns the way that takes the least time.
    pub(super) fn way(&self) -> Way {
        match (self.get < self.fragments, self.stream) {
            _ if self.unasked => Way::Unasked,
            (true, _) => Way::Get,
            (false, true) => Way::Streamed,
            (false, false) => Way::Cached,
        }
    }
}

/// Bursts of a class between two trials of ways that were slower.
const PERIOD: u32 = 64;
/// Factor of that period for a way that took more than twice the time of the fastest.
const LONGER: u32 = 8;
/// Messages that may come without a request, if that is the fastest way, before the sender asks again. The receiver can
/// then try the other ways.
const PERMITTED: u8 = 64;
/// The weight of a new time is one in this many.
const MEMORY: f32 = 4.0;

/// What is known of the messages of one size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Class {
    pub(super) costs: [Cost; WAYS.len()],
    /// Bursts of the class.
    pub(super) count: u32,
    /// Whether the costs were reported to be kept.
    pub(super) reported: bool,
    /// Whether messages of the size may come without a request.
    pub(super) short: bool,
    permits: Permits,
}

/// The receiver's permits of a size to send without a request.
#[derive(Clone, Copy, Debug, Default)]
struct Permits {
    /// Permits since a message that came without a request was last timed.
    fruitless: u32,
    /// The burst of the class with the last permit.
    last: u32,
}

/// What is known of one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// Picoseconds for each byte.
    pub(super) each: f32,
    pub(super) times: u32,
    /// The burst of the class that last took this way.
    pub(super) last: u32,
    /// Whether the cost is that of another size.
    pub(super) inherited: bool,
}

impl Class {
    /// As [`HostCosts::expect`](super::HostCosts::expect). With 0 trials no way is tried.
    pub(super) fn expect(&self, len: u64, can_get: bool, trials: u32) -> Expected {
        let due = (trials != 0).then(|| self.due(can_get, trials)).flatten();
        let time = |way: Way| if due == Some(way) { Duration::ZERO } else { self.costs[way as usize].of(len) };
        let stream = time(Way::Streamed) <= time(Way::Cached);
        Expected {
            get: time(Way::Get),
            fragments: time(if stream { Way::Streamed } else { Way::Cached }),
            stream,
            unasked: false,
            can_get,
        }
    }

    /// Returns the way that is to be tried by this burst.
    fn due(&self, can_get: bool, trials: u32) -> Option<Way> {
        let cost = |way: &Way| self.costs[*way as usize];
        if let Some(way) = usable(can_get).find(|way| cost(way).times < trials) {
            return Some(way);
        }
        let best = self.best(can_get);
        let least =
            if self.costs[Way::Unasked as usize].times == 0 { best } else { best.min(cost(&Way::Unasked).each) };
        let period = |way: &Way| if cost(way).each > 2.0 * least { PERIOD * LONGER } else { PERIOD };
        let due = |way: &Way| cost(way).each > best && self.count.wrapping_sub(cost(way).last) > period(way);
        usable(can_get).find(due).or_else(|| self.asks_again(can_get, trials).then_some(Way::Cached))
    }

    /// Returns whether messages may come without a request, as far as that is known and worth it.
    fn wants_unasked(&self, can_get: bool, trials: u32) -> bool {
        let cost = self.costs[Way::Unasked as usize];
        let best = self.best(can_get);
        let period = if cost.each > 2.0 * best { PERIOD * LONGER } else { PERIOD };
        let due = cost.times < trials || cost.each < best || self.count.wrapping_sub(cost.last) > period;
        due && usable(can_get).all(|way| self.costs[way as usize].times >= trials)
    }

    /// Notes that a message comes through the caches, and returns how many of the next ones may come without a request.
    pub(super) fn permit(&mut self, can_get: bool, trials: u32) -> u8 {
        if !self.short || trials == 0 || !self.wants_unasked(can_get, trials) {
            return 0;
        }
        // All messages of a burst give the same permit.
        if self.permits.last != self.count {
            self.permits = Permits { fruitless: self.permits.fruitless.saturating_add(1), last: self.count };
        }
        let cost = self.costs[Way::Unasked as usize];
        match (trials.saturating_sub(cost.times), cost.each < self.best(can_get)) {
            (0, true) => PERMITTED,
            (0, false) => 1,
            (missing, _) => u8::try_from(missing).unwrap_or(PERMITTED).min(PERMITTED),
        }
    }

    /// Returns whether a message is to be requested only to permit that the next ones come without a request. After
    /// permits that led to no time, because all sends are synchronous or sizes mix, that pauses.
    fn asks_again(&self, can_get: bool, trials: u32) -> bool {
        let Permits { fruitless, last } = self.permits;
        let pause = if fruitless < trials { 0 } else { PERIOD * LONGER };
        self.short && self.count.wrapping_sub(last) >= pause && self.wants_unasked(can_get, trials)
    }

    /// Returns the time for each byte by the fastest way.
    pub(super) fn best(&self, can_get: bool) -> f32 {
        usable(can_get).map(|way| self.costs[way as usize].each).fold(f32::INFINITY, f32::min)
    }

    /// Returns whether this way was tried, and every other way is known.
    pub(super) fn measured(&self, way: Way, trials: u32, can_get: bool) -> bool {
        !self.costs[way as usize].inherited && usable(can_get).all(|way| self.costs[way as usize].times >= trials)
    }

    /// Returns the costs to keep: once all ways are known, and later ever more rarely.
    pub(super) fn report(&mut self, trials: u32, can_get: bool) -> Option<[Option<f32>; WAYS.len()]> {
        let known = usable(can_get).all(|way| self.costs[way as usize].times >= trials);
        if !known || (self.reported && !self.count.is_power_of_two()) {
            return None;
        }
        self.reported = true;
        Some(self.costs.map(|cost| (cost.times != 0 && !cost.inherited).then_some(cost.each)))
    }

    pub(super) fn note(&mut self, way: Way, took: Duration, bytes: u64, trials: u32) {
        let each = took.as_nanos() as f32 * 1000.0 / bytes as f32;
        if way == Way::Unasked {
            self.permits.fruitless = 0;
        }
        let cost = &mut self.costs[way as usize];
        let before = if cost.inherited { 0 } else { cost.times };
        (cost.last, cost.inherited) = (self.count, false);
        cost.times = cost.times.saturating_add(trials);
        cost.each = match before {
            0 => each,
            // The first messages of a size also pay for page faults and cold caches.
            1 | 2 => cost.each.min(each),
            // A process that lost its core says nothing about the way.
            _ => cost.each + (each.min(2.0 * cost.each) - cost.each) / MEMORY,
        };
    }
}

impl Cost {
    pub(super) fn of(&self, len: u64) -> Duration {
        match self.times {
            0 => Duration::MAX,
            _ => Duration::from_nanos((self.each * len as f32 / 1000.0) as u64),
        }
    }
}

/// Returns the ways that the receiver may request.
pub(super) fn usable(can_get: bool) -> impl Iterator<Item = Way> {
    REQUESTED.into_iter().filter(move |way| can_get || *way != Way::Get)
}
