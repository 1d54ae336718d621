//! The agreement of a communicator's members on who performs its collective operations.
//!
//! An MPI has operations of its own, which suit host memory. Once a member passes device memory, all members change to
//! those of this crate at the same call. Members count the calls, and rank 0 leads:
//!
//! ```text
//! member                    rank 0                          every other member
//!   Want           ------->
//!                           Propose(switch)       ------->   has it begun that call?
//!                                                 <-------   Answer(no), or Answer(yes) and the number of calls begun
//!                           Decide(agreed)        ------->   from call `switch` on, or not
//! ```
//!
//! A member that answered "no" does not begin the call `switch` before it hears the decision. Members decide while they
//! make progress, so this wait ends although others have not called yet. If a member had begun the call already, rank 0
//! proposes a later one, further ahead each time.
//!
//! This is a state machine: the caller carries the notices, in order between each two members.

use std::collections::VecDeque;

/// What members tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// To rank 0: a member passes device memory.
    Want,
    /// From rank 0: change at this call.
    Propose {
        /// The number of the first call that changes.
        switch: u64,
    },
    /// To rank 0: whether the member has begun that call, and how many it has begun.
    Answer {
        /// The member has begun the call.
        begun: bool,
        /// The number of calls that it has begun.
        calls: u64,
    },
    /// From rank 0.
    Decide {
        /// No member had begun the call.
        agreed: bool,
    },
}

/// Who performs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Performer {
    /// The MPI's own operation.
    Host,
    /// This crate.
    Collectives,
    /// Ask again after progress.
    Undecided,
}

/// One member's state.
#[derive(Debug)]
pub struct Agreement {
    rank: u32,
    size: u32,
    /// The number of calls that this member has begun.
    calls: u64,
    state: State,
    asked: bool,
    leader: Leader,
    /// Notices to send.
    outbox: VecDeque<(u32, Notice)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    /// The member has promised not to begin this call before the decision.
    Pending {
        switch: u64,
    },
    Agreed {
        switch: u64,
    },
}

/// What only rank 0 uses.
#[derive(Debug)]
struct Leader {
    wanted: bool,
    /// The number of answers that are missing.
    missing: u32,
    refused: bool,
    /// The largest number of calls that a member has begun.
    furthest: u64,
    /// How far ahead of that the next proposal is.
    ahead: u64,
}

/// The first proposal is so many calls ahead.
const FIRST_AHEAD: u64 = 2;

impl Agreement {
    /// Creates the state of the member `rank` of `size`. A single member performs everything by this crate.
    pub fn new(rank: u32, size: u32) -> Agreement {
        let leader = Leader { wanted: false, missing: 0, refused: false, furthest: 0, ahead: FIRST_AHEAD };
        let state = if size == 1 { State::Agreed { switch: 0 } } else { State::Before };
        Agreement { rank, size, calls: 0, state, asked: false, leader, outbox: VecDeque::new() }
    }

    /// Creates the state of members that use this crate from the first call on.
    pub fn reached() -> Agreement {
        Agreement::new(0, 1)
    }

    /// Counts a call that every member makes, and says who performs it. If that is undecided, the call has not begun,
    /// and must be counted again.
    pub fn begin(&mut self) -> Performer {
        let next = self.calls + 1;
        match self.state {
            State::Pending { switch } if next >= switch => return Performer::Undecided,
            _ => self.calls = next,
        }
        self.performer()
    }

    /// Says who performs a call that not every member makes.
    pub fn performer(&self) -> Performer {
        match self.state {
            State::Agreed { switch } if self.calls >= switch => Performer::Collectives,
            _ => Performer::Host,
        }
    }

    /// Notes that this member passes device memory.
    pub fn want(&mut self) {
        if !self.asked && self.state == State::Before {
            self.asked = true;
            if self.rank == 0 {
                self.leader.wanted = true;
                self.propose();
            } else {
                self.outbox.push_back((0, Notice::Want));
            }
        }
    }

    /// Takes a notice of another member.
    pub fn receive(&mut self, notice: Notice) {
        match notice {
            Notice::Want => {
                self.leader.wanted = true;
                self.propose();
            }
            Notice::Propose { switch } => {
                let begun = self.calls >= switch;
                if !begun && self.state == State::Before {
                    self.state = State::Pending { switch };
                }
                self.outbox.push_back((0, Notice::Answer { begun, calls: self.calls }));
            }
            Notice::Answer { begun, calls } => self.count(begun, calls),
            Notice::Decide { agreed } => self.decide(agreed),
        }
    }

    /// Returns the next notice to send, and its receiver.
    pub fn next_notice(&mut self) -> Option<(u32, Notice)> {
        self.outbox.pop_front()
    }

    fn propose(&mut self) {
        if !self.leader.wanted || self.state != State::Before {
            return;
        }
        let switch = self.calls.max(self.leader.furthest) + self.leader.ahead;
        self.leader.ahead *= 2;
        (self.leader.missing, self.leader.refused) = (self.size - 1, false);
        self.state = State::Pending { switch };
        self.tell_all(Notice::Propose { switch });
    }

    fn count(&mut self, begun: bool, calls: u64) {
        let State::Pending { .. } = self.state else { return };
        self.leader.furthest = self.leader.furthest.max(calls);
        self.leader.refused |= begun;
        self.leader.missing = self.leader.missing.saturating_sub(1);
        if self.leader.missing == 0 {
            let agreed = !self.leader.refused;
            self.tell_all(Notice::Decide { agreed });
            self.decide(agreed);
            self.propose();
        }
    }

    fn decide(&mut self, agreed: bool) {
        if let State::Pending { switch } = self.state {
            self.state = if agreed { State::Agreed { switch } } else { State::Before };
        }
    }

    fn tell_all(&mut self, notice: Notice) {
        self.outbox.extend((1..self.size).map(|member| (member, notice)));
    }
}

impl Notice {
    /// The length of a notice in bytes.
    pub const LEN: usize = 16;

    /// Returns the bytes of a notice.
    pub fn encode(self) -> [u8; Notice::LEN] {
        let (kind, word) = match self {
            Notice::Want => (1, 0),
            Notice::Propose { switch } => (2, switch),
            Notice::Answer { begun: false, calls } => (3, calls),
            Notice::Answer { begun: true, calls } => (4, calls),
            Notice::Decide { agreed } => (5, u64::from(agreed)),
        };
        let mut bytes = [0; Notice::LEN];
        bytes[..8].copy_from_slice(&u64::to_le_bytes(kind));
        bytes[8..].copy_from_slice(&u64::to_le_bytes(word));
        bytes
    }

    /// Returns the notice of these bytes, or `None` if they are none.
    pub fn decode(bytes: [u8; Notice::LEN]) -> Option<Notice> {
        let [kind, word] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        Some(match kind {
            1 => Notice::Want,
            2 => Notice::Propose { switch: word },
            3 => Notice::Answer { begun: false, calls: word },
            4 => Notice::Answer { begun: true, calls: word },
            5 => Notice::Decide { agreed: word == 1 },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of numbers (xorshift).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % limit as u64) as usize
        }
    }

    /// Members whose messages arrive late, in order between each two.
    struct Members {
        members: Vec<Agreement>,
        under_way: Vec<Vec<VecDeque<Notice>>>,
        performed: Vec<Vec<Performer>>,
    }

    impl Members {
        fn new(size: usize) -> Members {
            Members {
                members: (0..size).map(|rank| Agreement::new(rank as u32, size as u32)).collect(),
                under_way: vec![vec![VecDeque::new(); size]; size],
                performed: vec![Vec::new(); size],
            }
        }

        fn collect(&mut self) {
            for (from, member) in self.members.iter_mut().enumerate() {
                while let Some((to, message)) = member.next_notice() {
                    self.under_way[from][to as usize].push_back(message);
                }
            }
        }

        fn deliver(&mut self, from: usize, to: usize) {
            if let Some(message) = self.under_way[from][to].pop_front() {
                self.members[to].receive(Notice::decode(message.encode()).unwrap());
            }
        }
    }

    #[test]
    fn all_members_change_at_the_same_call() {
        for seed in 1..300_u32 {
            let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.rotate_left(seed % 64) ^ u64::from(seed) << 7);
            let size = 1 + random.below(5);
            let calls = 60;
            let mut all = Members::new(size);
            let wants = random.below(size);
            while all.performed.iter().any(|performed| performed.len() < calls) {
                let member = random.below(size);
                match random.below(3) {
                    0 if all.performed[member].len() < calls => {
                        if member == wants && all.performed[member].len() > 3 {
                            all.members[member].want();
                        }
                        match all.members[member].begin() {
                            Performer::Undecided => {}
                            performer => all.performed[member].push(performer),
                        }
                    }
                    _ => {
                        let from = random.below(size);
                        all.deliver(from, member);
                    }
                }
                all.collect();
            }
            for performed in &all.performed {
                assert_eq!(performed, &all.performed[0], "seed {seed}");
            }
        }
    }

    #[test]
    fn members_that_keep_step_change_soon() {
        let mut all = Members::new(3);
        all.members[2].want();
        for _ in 0..6 {
            for rank in 0..3 {
                let performer = all.members[rank].begin();
                assert_ne!(performer, Performer::Undecided);
                all.performed[rank].push(performer);
                all.collect();
            }
            for _ in 0..4 {
                for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
                    all.deliver(from, to);
                }
                all.collect();
            }
        }
        let below = all.performed[0].iter().filter(|performer| **performer == Performer::Host).count();
        assert_eq!(below, 2, "{:?}", all.performed[0]);
    }

    #[test]
    fn without_device_memory_nothing_is_sent() {
        let mut member = Agreement::new(1, 4);
        for _ in 0..100 {
            assert_eq!(member.begin(), Performer::Host);
        }
        assert_eq!(member.next_notice(), None);
    }
}
