//! One side of making a connection, without a device and without a clock of its own.

use std::time::{Duration, Instant};

/// The first pause before a repetition; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The state of one side.
#[derive(Debug)]
pub struct Handshake {
    /// The own queue pair.
    ours: u32,
    /// The peer's queue pair that the own one is connected to.
    theirs: Option<u32>,
    /// Whether the peer has connected its queue pair to the own one.
    known: bool,
    /// When to repeat the hello.
    again: Instant,
    pause: Duration,
    /// The state of the generator that varies the pauses.
    random: u32,
    /// When to give up.
    until: Instant,
}

/// The actions that a datagram requires, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Step {
    /// Connect the own queue pair to the peer's.
    pub connect: bool,
    /// Answer the peer.
    pub answer: bool,
    /// The connection is ready for messages.
    pub ready: bool,
}

/// The action that the time requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing is due before this instant.
    At(Instant),
    /// Repeat the hello.
    Again,
    /// The peer does not answer.
    TooLate,
}

impl Handshake {
    /// Begins a handshake for the queue pair `ours` at `now`. The caller sends a hello at once. `random` varies the
    /// pauses; it should differ between processes.
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

    /// Sets the next repetition to between 0.5 and 1.5 pauses from now. Otherwise processes that began together would
    /// overload the same peer again each time.
    fn put_off(&mut self, now: Instant) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.again = now + self.pause / 2 + self.pause * (self.random >> 16) / (1 << 16);
    }

    /// Returns whether both ends are connected, from this end's view.
    pub fn ready(&self) -> bool {
        self.theirs.is_some() && self.known
    }

    /// Returns the peer's queue pair, or 0 before it is known.
    pub fn knows(&self) -> u32 {
        self.theirs.unwrap_or(0)
    }

    /// Handles a hello: the peer's queue pair is `number`, and it is connected to queue pair `knows` here.
    ///
    /// # Errors
    /// The hello contradicts the peer's earlier hello.
    pub fn receive(&mut self, number: u32, knows: u32, asks: bool) -> Result<Step, String> {
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

    /// Returns the action that is due, or when to ask again.
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

    /// A datagram: the sender's queue pair, the peer's queue pair if known, and whether to answer.
    type Hello = (u32, u32, bool);

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

        fn hello(&self) -> Hello {
            let handshake = self.handshake.as_ref().unwrap();
            (self.number, handshake.knows(), !handshake.ready())
        }

        fn begin(&mut self, now: Instant) {
            self.handshake
                .get_or_insert_with(|| Handshake::new(self.number, now, Duration::from_secs(1000), self.number));
        }

        fn receive(&mut self, (number, knows, asks): Hello, now: Instant) -> Option<Hello> {
            self.begin(now);
            let step = self.handshake.as_mut().unwrap().receive(number, knows, asks).unwrap();
            if step.connect {
                assert_eq!(self.connected, 0, "connected once");
                self.connected = number;
            }
            if step.ready {
                assert!(!self.ready, "ready once");
                self.ready = true;
            }
            step.answer.then(|| self.hello())
        }
    }

    proptest! {
        /// Either side or both begin, and datagrams are lost, delayed or duplicated. Both sides end up connected,
        /// neither sends before the other's end is connected, and then both are silent.
        #[test]
        fn both_sides_connect(both in any::<bool>(), events in proptest::collection::vec((0..4u8, any::<u8>()), 0..200)) {
            let mut now = Instant::now();
            let mut sides = [Side::new(11), Side::new(22)];
            let mut flying: Vec<(usize, Hello)> = Vec::new();
            for (number, side) in sides.iter_mut().enumerate().take(if both { 2 } else { 1 }) {
                side.begin(now);
                flying.push((1 - number, side.hello()));
            }
            let mut events = events.into_iter();
            for _ in 0..1000 {
                now += Duration::from_millis(50);
                for (number, side) in sides.iter_mut().enumerate() {
                    if side.handshake.as_mut().is_some_and(|handshake| handshake.due(now) == Due::Again) {
                        flying.push((1 - number, side.hello()));
                    }
                }
                if flying.is_empty() {
                    continue;
                }
                let (event, pick) = events.next().unwrap_or((0, 0));
                let index = usize::from(pick) % flying.len();
                let (to, hello) = if event == 3 { flying[index] } else { flying.swap_remove(index) };
                if event == 1 {
                    continue;
                }
                let answer = sides[to].receive(hello, now);
                flying.extend(answer.map(|hello| (1 - to, hello)));
                for side in 0..2 {
                    prop_assert!(!sides[side].ready || sides[1 - side].connected == sides[side].number);
                }
            }
            prop_assert!(sides[0].ready && sides[1].ready && flying.is_empty());
        }
    }

    #[test]
    fn a_silent_peer_times_out() {
        let start = Instant::now();
        let mut handshake = Handshake::new(1, start, Duration::from_secs(3), 7);
        let (mut now, mut hellos) = (start, 1);
        loop {
            match handshake.due(now) {
                Due::At(next) => now = next,
                Due::Again => hellos += 1,
                Due::TooLate => break,
            }
        }
        assert_eq!(now, start + Duration::from_secs(3));
        assert!((5..=12).contains(&hellos), "{hellos}");
    }

    /// A thousand handshakes begin at once, and no datagram is answered.
    #[test]
    fn handshakes_that_begin_together_spread_out() {
        let start = Instant::now();
        let mut hellos = [0; 2000];
        for number in 1..=1000 {
            let mut handshake = Handshake::new(number, start, Duration::from_secs(2), number.wrapping_mul(0x9e37_79b9));
            let mut now = start;
            loop {
                match handshake.due(now) {
                    Due::At(next) => now = next,
                    Due::Again => hellos[(now - start).as_millis() as usize] += 1,
                    Due::TooLate => break,
                }
            }
        }
        let most = hellos.iter().max().unwrap();
        assert!(*most <= 120, "{most} of 1000 within a millisecond");
    }

    #[test]
    fn contradictions_are_refused() {
        let mut handshake = Handshake::new(1, Instant::now(), Duration::from_secs(3), 7);
        assert!(handshake.receive(2, 9, true).is_err());
        let step = Step { connect: true, answer: true, ready: true };
        assert_eq!(handshake.receive(2, 1, true), Ok(step));
        assert_eq!(handshake.receive(2, 1, false), Ok(Step::default()));
        assert!(handshake.receive(3, 1, false).is_err());
    }
}
