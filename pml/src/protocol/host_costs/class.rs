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
    /// The receiver fetches one half while the sender stores the other.
    Halves,
}

pub(super) const WAYS: [Way; 5] = [Way::Streamed, Way::Get, Way::Cached, Way::Unasked, Way::Halves];
/// The ways that the receiver requests.
const REQUESTED: [Way; 4] = [Way::Streamed, Way::Get, Way::Cached, Way::Halves];

impl Way {
    /// Returns the way of this name, if the receiver can request it.
    pub(super) fn named(name: &str) -> Option<Way> {
        let names = ["streamed", "get", "cached", "halves"];
        names.iter().position(|other| *other == name).map(|at| REQUESTED[at])
    }
}

/// The single copies that are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    Nothing,
    /// The receiver can fetch.
    Get,
    /// The sender can store, too.
    Both,
}

impl Reach {
    /// Returns what a receiver that can fetch, or not, and a sender that can store, or not, can do.
    pub(crate) fn of(fetches: bool, stores: bool) -> Reach {
        match (fetches, stores) {
            (true, true) => Reach::Both,
            (true, false) => Reach::Get,
            (false, _) => Reach::Nothing,
        }
    }

    pub(super) fn allows(self, way: Way) -> bool {
        match way {
            Way::Get => self >= Reach::Get,
            Way::Halves => self == Reach::Both,
            Way::Streamed | Way::Cached | Way::Unasked => true,
        }
    }
}

/// Expected times of a message. Zero stands for a way to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) get: Duration,
    pub(crate) halves: Duration,
    pub(crate) fragments: Duration,
    /// Whether fragments are to be stored past the caches.
    pub(crate) stream: bool,
    /// Whether the message comes without a request, whatever the other ways take.
    pub(super) unasked: bool,
    pub(super) reach: Reach,
}

impl Expected {
    /// Expects that this way alone takes no time.
    pub(super) fn only(way: Way, reach: Reach) -> Self {
        let time = |ways: &[Way]| if ways.contains(&way) { Duration::ZERO } else { Duration::MAX };
        Expected {
            get: time(&[Way::Get]),
            halves: time(&[Way::Halves]),
            fragments: time(&[Way::Streamed, Way::Cached]),
            stream: way == Way::Streamed,
            unasked: false,
            reach,
        }
    }

    /// Describes a message that comes without a request.
    pub(super) fn unasked(reach: Reach) -> Self {
        let [get, halves] = [Duration::MAX; 2];
        Expected { get, halves, fragments: Duration::ZERO, stream: false, unasked: true, reach }
    }

    /// Returns the way that takes the least time.
    pub(super) fn way(&self) -> Way {
        match (self.get < self.fragments, self.stream) {
            _ if self.unasked => Way::Unasked,
            _ if self.halves < self.get.min(self.fragments) => Way::Halves,
            (true, _) => Way::Get,
            (false, true) => Way::Streamed,
            (false, false) => Way::Cached,
        }
    }
}

/// Bursts between two trials of a way that was slower, each as long as such a trial. A trial that finds the way slower
/// again doubles them.
const PERIOD: u32 = 64;
/// Doublings at most. A way that takes more than twice the time of the fastest begins with them.
const DOUBLINGS: u32 = 3;
/// The fastest way became slower by this factor: the load of the machine changed, and all ways are tried again soon.
const CHANGED: f32 = 1.3;
/// Messages that may come without a request, if that is the fastest way, before the sender asks again. The receiver can
/// then try the other ways.
const PERMITTED: u8 = 64;
/// The weight of the time of a new burst is one in this many.
const MEMORY: f32 = 4.0;
/// The same for single messages. One interrupt must not make the fastest way look slow.
const SINGLE_MEMORY: f32 = 8.0;
/// The same for a way that no single message took for a while. It is tried rarely, and what is known of it is old.
const OLD_MEMORY: f32 = 2.0;
const OLD: u32 = 32;
/// Of so many first single messages by a way one is timed. Requests that ask for a permit are such messages, too, and rarer.
const ALONE: u8 = 8;

/// A burst of so many messages counts as two trials.
pub(super) const MANY: u32 = 16;

/// Messages and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timed {
    pub(super) took: Duration,
    pub(super) messages: u32,
    pub(super) bytes: u64,
}

/// What is known of the messages of one size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Class {
    pub(super) costs: [Cost; WAYS.len()],
    /// Messages of the class.
    pub(super) count: u32,
    /// The power of two of that count, and the number of ways known, when the costs were last reported to be kept.
    reported: (u32, usize),
    /// Whether messages of the size may come without a request.
    pub(super) short: bool,
    permits: Permits,
    /// The way of the last single message.
    latest: Option<Way>,
    /// The cost of the fastest way when the load of the machine last changed, or less.
    least: f32,
}

/// The receiver's permits of a size to send without a request.
#[derive(Clone, Copy, Debug, Default)]
struct Permits {
    /// Permits since a message that came without a request was last timed.
    fruitless: u32,
    /// The count of messages at the last permit.
    last: u32,
}

/// What is known of one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// Picoseconds for each byte.
    pub(super) each: f32,
    pub(super) times: u32,
    /// The count of messages when the last burst took this way, and the messages of such a trial.
    pub(super) last: u32,
    pub(super) burst: u32,
    /// Whether the cost is that of another size.
    pub(super) inherited: bool,
    /// Trials in a row that found it slower than another way.
    pub(super) lost: u32,
    /// Bursts that were left out since the last time.
    pub(super) left_out: u8,
}

impl Class {
    /// As [`HostCosts::expect`](super::HostCosts::expect). With 0 trials no way is tried.
    pub(super) fn expect(&self, len: u64, reach: Reach, trials: u32) -> Expected {
        let due = (trials != 0).then(|| self.due(reach, trials)).flatten();
        let time = |way: Way| match due {
            _ if !reach.allows(way) => Duration::MAX,
            Some(due) if due == way => Duration::ZERO,
            _ => self.costs[way as usize].of(len),
        };
        let stream = time(Way::Streamed) <= time(Way::Cached);
        Expected {
            get: time(Way::Get),
            halves: time(Way::Halves),
            fragments: time(if stream { Way::Streamed } else { Way::Cached }),
            stream,
            unasked: false,
            reach,
        }
    }

    /// Returns the way that is to be tried by this burst.
    fn due(&self, reach: Reach, trials: u32) -> Option<Way> {
        let cost = |way: &Way| self.costs[*way as usize];
        if let Some(way) = usable(reach).find(|way| cost(way).times < trials) {
            return Some(way);
        }
        let (best, fastest) = (self.best(reach), self.fastest(reach));
        let due = |way: &Way| cost(way).each > best && self.is_due(*way, fastest);
        usable(reach).find(due).or_else(|| self.asks_again(reach, trials).then_some(Way::Cached))
    }

    /// Returns whether messages may come without a request, as far as that is known and worth it.
    fn wants_unasked(&self, reach: Reach, trials: u32) -> bool {
        let cost = self.costs[Way::Unasked as usize];
        let best = self.best(reach);
        let due = cost.times < trials || cost.each < best || self.is_due(Way::Unasked, best);
        due && usable(reach).all(|way| self.costs[way as usize].times >= trials)
    }

    /// Notes that a message comes through the caches, and returns how many of the next ones may come without a request.
    pub(super) fn permit(&mut self, reach: Reach, trials: u32) -> u8 {
        if !self.short || trials == 0 || !self.wants_unasked(reach, trials) {
            return 0;
        }
        // All messages of a burst give the same permit.
        if self.permits.last != self.count {
            self.permits = Permits { fruitless: self.permits.fruitless.saturating_add(1), last: self.count };
        }
        let cost = self.costs[Way::Unasked as usize];
        match (trials.saturating_sub(cost.times), cost.each < self.best(reach)) {
            (0, true) => PERMITTED,
            // The first one is not timed.
            (0, false) => 2,
            (missing, _) => u8::try_from(missing + 1).unwrap_or(PERMITTED).min(PERMITTED),
        }
    }

    /// Returns whether a message is to be requested only to permit that the next ones come without a request. After
    /// permits that led to no time, because all sends are synchronous or sizes mix, that pauses.
    fn asks_again(&self, reach: Reach, trials: u32) -> bool {
        let Permits { fruitless, last } = self.permits;
        let burst = self.costs[Way::Cached as usize].burst.max(1);
        let pause = if fruitless < trials { 0 } else { (PERIOD << DOUBLINGS).saturating_mul(burst) };
        self.short && self.count.wrapping_sub(last) >= pause && self.wants_unasked(reach, trials)
    }

    /// Returns whether a slower way should be tried again.
    fn is_due(&self, way: Way, best: f32) -> bool {
        let cost = self.costs[way as usize];
        let far = if cost.each > 2.0 * best { DOUBLINGS } else { 0 };
        let bursts = PERIOD << cost.lost.max(far).min(DOUBLINGS);
        // A permit is asked for by a burst through the caches.
        let asking = if way == Way::Unasked { self.costs[Way::Cached as usize].burst } else { 0 };
        self.count.wrapping_sub(cost.last) > bursts.saturating_mul(cost.burst.max(asking).max(1))
    }

    /// Returns the time for each byte by the fastest way, requested or not.
    fn fastest(&self, reach: Reach) -> f32 {
        match self.costs[Way::Unasked as usize] {
            Cost { times: 0, .. } => self.best(reach),
            unasked => self.best(reach).min(unasked.each),
        }
    }

    /// Returns the time for each byte by the fastest way that the receiver can request.
    pub(super) fn best(&self, reach: Reach) -> f32 {
        usable(reach).map(|way| self.costs[way as usize].each).fold(f32::INFINITY, f32::min)
    }

    /// Returns whether this way was tried, and every other way is known.
    pub(super) fn measured(&self, way: Way, trials: u32, reach: Reach) -> bool {
        !self.costs[way as usize].inherited && usable(reach).all(|way| self.costs[way as usize].times >= trials)
    }

    /// Returns the costs to keep: when another way is known, and later ever more rarely.
    pub(super) fn report(&mut self, trials: u32) -> Option<[Option<f32>; WAYS.len()]> {
        let is_known = |cost: &Cost| cost.times >= trials && !cost.inherited;
        let known = self.costs.iter().filter(|cost| is_known(cost)).count();
        let now = (self.count.max(1).ilog2(), known);
        if known == 0 || now == self.reported {
            return None;
        }
        self.reported = now;
        Some(self.costs.map(|cost| is_known(&cost).then_some(cost.each)))
    }

    /// Notes the time of a single message. The first one by a way pays for the change: the first fetch after fragments takes
    /// up to four times as long as the next ones. So a trial takes two messages.
    ///
    /// Where ways alternate, for example because the senders' buffers do, one of several first messages is timed.
    pub(super) fn note_single(&mut self, way: Way, timed: Timed) {
        let alone = self.latest.replace(way) != Some(way);
        if alone && self.leaves_out(way, ALONE) {
            self.count = self.count.wrapping_add(timed.messages);
        } else {
            let is_old = self.count.wrapping_sub(self.costs[way as usize].last) > OLD;
            self.note_by(way, timed, if is_old { OLD_MEMORY } else { SINGLE_MEMORY });
            self.costs[way as usize].burst = 2 * timed.messages;
        }
    }

    /// Notes a burst of a window before and after which messages took other ways. Every other one counts, so that a way is not
    /// tried for ever in windows of two bursts.
    pub(super) fn note_alone(&mut self, way: Way, timed: Timed) {
        if !self.leaves_out(way, 2) {
            self.note(way, timed);
        }
    }

    /// Returns whether a burst by a way is left out, because it pays for the change of the way: all but one of so many.
    fn leaves_out(&mut self, way: Way, many: u8) -> bool {
        let left_out = &mut self.costs[way as usize].left_out;
        *left_out += 1;
        *left_out < many
    }

    /// Notes the time of bursts by a way.
    pub(super) fn note(&mut self, way: Way, timed: Timed) {
        self.note_by(way, timed, MEMORY);
    }

    fn note_by(&mut self, way: Way, Timed { took, messages, bytes }: Timed, memory: f32) {
        let each = took.as_nanos() as f32 * 1000.0 / bytes as f32;
        // The first messages of a long burst, which are slower, hardly matter.
        let trials = if messages >= MANY { 2 } else { 1 };
        self.count = self.count.wrapping_add(messages);
        if way == Way::Unasked {
            self.permits.fruitless = 0;
        }
        let cost = &mut self.costs[way as usize];
        let before = if cost.inherited { 0 } else { cost.times };
        (cost.last, cost.burst, cost.inherited, cost.left_out) = (self.count, messages, false, 0);
        cost.times = cost.times.saturating_add(trials);
        cost.each = match before {
            0 => each,
            // The first messages of a size also pay for page faults and cold caches.
            1 | 2 => cost.each.min(each),
            // A process that lost its core says nothing about the way.
            _ => cost.each + (each.min(2.0 * cost.each) - cost.each) / memory,
        };
        self.compare(way);
    }

    /// Notes whether a way that was just taken is the fastest, and whether the fastest one has become slower.
    fn compare(&mut self, way: Way) {
        let known = self.costs.iter().filter(|cost| cost.times != 0);
        let fastest = known.map(|cost| cost.each).fold(f32::INFINITY, f32::min);
        let cost = &mut self.costs[way as usize];
        cost.lost = if cost.each > fastest { (cost.lost + 1).min(DOUBLINGS) } else { 0 };
        if self.least == 0.0 || fastest < self.least {
            self.least = fastest;
        } else if fastest > CHANGED * self.least {
            self.least = fastest;
            self.costs.iter_mut().for_each(|cost| cost.lost = 0);
        }
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
pub(super) fn usable(reach: Reach) -> impl Iterator<Item = Way> {
    REQUESTED.into_iter().filter(move |way| reach.allows(*way))
}
