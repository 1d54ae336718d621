//! One side of making a connection, without a device and without a clock of its own.

use std::time::{Duration, Instant};

/// About the time before what was said is said again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where one side stands.
#[derive(Debug)]
pub struct Handshake {
    /// Our queue pair.
    ours: u32,
    /// The peer's, to which ours is connected.
    theirs: Option<u32>,
    /// The peer's is connected to ours.
    known: bool,
    /// When to say it again.
    again: Instant,
    pause: Duration,
    /// What pauses vary by.
    random: u32,
    /// When to give up.
    until: Instant,
}

/// What a datagram leads to, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Step {
    /// Our queue pair is to be connected to the peer's.
    pub connect: bool,
    /// The peer is to be told how things stand.
    pub answer: bool,
    /// Messages may be sent.
    pub ready: bool,
}

/// What the time leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before this instant.
    At(Instant),
    /// It is to be said again.
    Again,
    /// The peer does not answer.
    TooLate,
}

impl Handshake {
    /// Of the queue pair `ours`, begun at `now`. The caller says hello at once. Pauses vary by `random`, which differs
    /// from one process to the next.
    pub fn new(ours: u32, now: Instant, patience: Duration, random: u32) -> Self {
        let mut handshake = Handshake {
            ours,
            theirs: None,
            known: false,
            again: now,
            pause: FIRST_PAUSE,
            random: random | 1,
            until: now + patience,
        };
        handshake.put_off(now);
        handshake
    }

    /// Between half of a pause and one and a half: those who began together, and were too many for who was to hear them,
    /// would else be too many again each time.
    fn put_off(&mut self, now: Instant) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.again = now + self.pause / 2 + self.pause * (self.random >> 16) / (1 << 16);
    }

    /// Whether both ends are connected, as far as this one knows.
    pub fn ready(&self) -> bool {
        self.theirs.is_some() && self.known
    }

    /// The peer's queue pair, 0 before it is known.
    pub fn knows(&self) -> u32 {
        self.theirs.unwrap_or(0)
    }

    /// The peer said that its queue pair is `number` and that it `knows` one of ours.
    ///
    /// # Errors
    /// It contradicts what it said before.
    pub fn heard(&mut self, number: u32, knows: u32, asks: bool) -> Result<Step, String> {
        if let Some(theirs) = self.theirs.filter(|&theirs| theirs != number) {
            return Err(format!("its queue pair was {theirs}, and now is {number}"));
        }
        if knows != 0 && knows != self.ours {
            return Err(format!("it is connected to queue pair {knows}, which is not {}", self.ours));
        }
        let before = self.ready();
        let connect = self.theirs.is_none();
        self.theirs = Some(number);
        self.known |= knows != 0;
        let ready = self.ready() && !before;
        Ok(Step { connect, answer: asks, ready })
    }

    /// What the time leads to; asked again when it has come.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.ready() {
            return Due::At(self.until.max(now + LONGEST_PAUSE));
        }
        if now >= self.until {
            return Due::TooLate;
        }
        if now < self.again {
            return Due::At(self.again.min(self.until));
        }
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.put_off(now);
        Due::Again
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A datagram: the sender's queue pair, the one that it knows, and whether it asks.
    type Said = (u32, u32, bool);

    struct Side {
        handshake: Option<Handshake>,
        number: u32,
        connected: u32,
        ready: bool,
    }

    impl Side {
        fn new(number: u32) -> Self {
            Side { handshake: None, number, connected: 0, ready: false }
        }

        fn say(&self) -> Said {
            let handshake = self.handshake.as_ref().unwrap();
            (self.number, handshake.knows(), !handshake.ready())
        }

        fn begin(&mut self, now: Instant) {
            self.handshake
                .get_or_insert_with(|| Handshake::new(self.number, now, Duration::from_secs(1000), self.number));
        }

        fn hear(&mut self, (number, knows, asks): Said, now: Instant) -> Option<Said> {
            self.begin(now);
            let step = self.handshake.as_mut().unwrap().heard(number, knows, asks).unwrap();
            if step.connect {
                assert_eq!(self.connected, 0, "connected once");
                self.connected = number;
            }
            if step.ready {
                assert!(!self.ready, "ready once");
                self.ready = true;
            }
            step.answer.then(|| self.say())
        }
    }

    proptest! {
        /// Whoever begins, and whatever is lost, comes late or comes twice: both end up connected to each other, none
        /// sends before the other's end is connected, and then nobody says anything more.
        #[test]
        fn both_get_there(both in any::<bool>(), fates in proptest::collection::vec((0..4u8, any::<u8>()), 0..200)) {
            let mut now = Instant::now();
            let mut sides = [Side::new(11), Side::new(22)];
            let mut flying: Vec<(usize, Said)> = Vec::new();
            for (number, side) in sides.iter_mut().enumerate().take(if both { 2 } else { 1 }) {
                side.begin(now);
                flying.push((1 - number, side.say()));
            }
            let mut fates = fates.into_iter();
            for _ in 0..1000 {
                now += Duration::from_millis(50);
                for (number, side) in sides.iter_mut().enumerate() {
                    if side.handshake.as_mut().is_some_and(|handshake| handshake.due(now) == Due::Again) {
                        flying.push((1 - number, side.say()));
                    }
                }
                if flying.is_empty() {
                    continue;
                }
                let (fate, pick) = fates.next().unwrap_or((0, 0));
                let index = usize::from(pick) % flying.len();
                let (to, said) = if fate == 3 { flying[index] } else { flying.swap_remove(index) };
                if fate == 1 {
                    continue;
                }
                let answer = sides[to].hear(said, now);
                flying.extend(answer.map(|said| (1 - to, said)));
                for side in 0..2 {
                    prop_assert!(!sides[side].ready || sides[1 - side].connected == sides[side].number);
                }
            }
            prop_assert!(sides[0].ready && sides[1].ready && flying.is_empty());
        }
    }

    #[test]
    fn silence_ends_it() {
        let start = Instant::now();
        let mut handshake = Handshake::new(1, start, Duration::from_secs(3), 7);
        let (mut now, mut said) = (start, 1);
        loop {
            match handshake.due(now) {
                Due::At(next) => now = next,
                Due::Again => said += 1,
                Due::TooLate => break,
            }
        }
        assert_eq!(now, start + Duration::from_secs(3));
        assert!((5..=12).contains(&said), "{said}");
    }

    /// However many begin at the same time, and are not heard.
    #[test]
    fn who_began_together_does_not_go_on_together() {
        let start = Instant::now();
        let mut said = [0; 2000];
        for number in 1..=1000 {
            let mut handshake = Handshake::new(number, start, Duration::from_secs(2), number.wrapping_mul(0x9e37_79b9));
            let mut now = start;
            loop {
                match handshake.due(now) {
                    Due::At(next) => now = next,
                    Due::Again => said[(now - start).as_millis() as usize] += 1,
                    Due::TooLate => break,
                }
            }
        }
        let most = said.iter().max().unwrap();
        assert!(*most <= 120, "{most} of 1000 within a millisecond");
    }

    #[test]
    fn contradictions_are_refused() {
        let mut handshake = Handshake::new(1, Instant::now(), Duration::from_secs(3), 7);
        assert!(handshake.heard(2, 9, true).is_err());
        let step = Step { connect: true, answer: true, ready: true };
        assert_eq!(handshake.heard(2, 1, true), Ok(step));
        assert_eq!(handshake.heard(2, 1, false), Ok(Step::default()));
        assert!(handshake.heard(3, 1, false).is_err());
    }
}
