//! The agreement of a communicator's members on who performs its collective operations.
//!
//! An MPI has operations of its own, which suit host memory. Once a member passes device memory, all members change to
//! those of this crate at the same call. Without an MPI, they change to algorithms for device memory in the same way.
//! Members count the calls, and rank 0 leads:
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
//! A member may free the communicator once it has made all its calls. A proposal does not reach it then, and the sender
//! knows that. So no call changes any more. Rank 0 decides so, too, before it leaves.
//!
//! Members that answer also name their device. If two have the same one, small calls stay with the MPI: processes take turns
//! on a device, and a turn takes longer than copies to the host and back.
//!
//! With the same notices they agree on slots: rank 0 has made a file of memory, which its proposal names, and all members must
//! have mapped it. Members that use this crate from the first call on agree on slots alone.
//!
//! This is a state machine: the caller carries the notices, in order between each two members.

mod groups;

use std::collections::VecDeque;

pub use groups::{Groups, Route};

use crate::slots::SlotsName;

/// What members tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// To rank 0: a member passes device memory.
    Want,
    /// From rank 0: change at this call.
    Propose {
        /// The number of the first call that changes.
        switch: u64,
        /// The file of slots that rank 0 has made, if it has.
        slots: Option<SlotsName>,
    },
    /// To rank 0: whether the member has begun that call, and how many it has begun.
    Answer {
        /// The member has begun the call.
        begun: bool,
        /// The number of calls that it has begun.
        calls: u64,
        /// A number that stands for its device, 0 if it has not passed device memory.
        device: u64,
        /// The member has mapped the file of slots.
        slots: bool,
    },
    /// From rank 0.
    Decide(Decision),
    /// To rank 0, from a member that passes on notices: a proposal did not reach its receiver.
    Lost,
}

/// What rank 0 decides on a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// No member had begun the call.
    pub agreed: bool,
    /// Two members have the same device.
    pub shared: bool,
    /// All members have mapped the file of slots.
    pub slots: bool,
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
    /// This member's device, as in an answer.
    device: u64,
    /// Two members have the same device.
    shared: bool,
    /// The file of slots that this member has made or mapped.
    slots: Option<SlotsName>,
    /// All members have mapped it.
    have_slots: bool,
    /// This crate performs all calls, so that members agree on slots alone.
    always: bool,
    /// The smallest call that members of one device change, in bytes.
    shared_limit: u64,
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
#[derive(Debug, Default)]
struct Leader {
    wanted: bool,
    /// A proposal did not reach a member.
    lost: bool,
    /// The number of answers that are missing.
    missing: u32,
    refused: bool,
    /// A member has not mapped the file of slots.
    without_slots: bool,
    /// The largest number of calls that a member has begun.
    furthest: u64,
    /// How far ahead of that the next proposal is.
    ahead: u64,
    /// The devices of the members that have answered, without unknown ones.
    devices: Vec<u64>,
}

/// The first proposal is so many calls ahead.
const FIRST_AHEAD: u64 = 2;

impl Agreement {
    /// Creates the state of the member `rank` of `size`. A single member performs everything by this crate. If members
    /// share a device, calls of less than `shared_limit` bytes do not change.
    pub fn new(rank: u32, size: u32, shared_limit: u64) -> Agreement {
        let leader = Leader { ahead: FIRST_AHEAD, ..Leader::default() };
        let state = if size == 1 { State::Agreed { switch: 0 } } else { State::Before };
        Agreement {
            rank,
            size,
            calls: 0,
            state,
            asked: false,
            device: 0,
            shared: false,
            slots: None,
            have_slots: false,
            always: false,
            shared_limit,
            leader,
            outbox: VecDeque::new(),
        }
    }

    /// Creates the state of the member `rank` of `size` that use this crate from the first call on.
    pub fn reached(rank: u32, size: u32) -> Agreement {
        Agreement { always: true, ..Agreement::new(rank, size, 0) }
    }

    /// Counts a call that every member makes, and says who performs it. If that is undecided, the call has not begun,
    /// and must be counted again. `bytes` is a size of the call that is equal at all members, or the maximum.
    pub fn begin(&mut self, bytes: u64) -> Performer {
        let next = self.calls + 1;
        match self.state {
            State::Pending { switch } if next >= switch => return Performer::Undecided,
            _ => self.calls = next,
        }
        self.performer(bytes)
    }

    /// Takes back the count of the last call, which did not begin.
    pub fn retract(&mut self) {
        self.calls = self.calls.saturating_sub(1);
    }

    /// Says who performs a call that not every member makes.
    pub fn performer(&self, bytes: u64) -> Performer {
        match self.state {
            _ if self.always => Performer::Collectives,
            State::Agreed { .. } if self.shared && bytes < self.shared_limit => Performer::Host,
            State::Agreed { switch } if self.calls >= switch => Performer::Collectives,
            _ => Performer::Host,
        }
    }

    /// Checks whether this member's device is known, or does not matter any more.
    pub fn has_device(&self) -> bool {
        self.device != 0 || matches!(self.state, State::Agreed { .. })
    }

    /// Ends the agreement, if this is rank 0: a proposal did not reach a member, which has freed the communicator or has died,
    /// or rank 0 leaves. One that has left has begun its last call, so all members stay with what they have.
    pub fn lose(&mut self) {
        if self.rank != 0 {
            return;
        }
        self.leader.lost = true;
        if let State::Pending { .. } = self.state {
            self.close(Decision { agreed: false, shared: false, slots: false });
        }
    }

    /// Notes that this member passes memory of a device: a number that stands for it, 0 if that is not known.
    pub fn want(&mut self, device: u64) {
        if self.device == 0 {
            self.device = device;
        }
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

    /// Takes a notice of another member. Ignores one that is not meant for this member.
    pub fn receive(&mut self, notice: Notice) {
        let for_leader = !matches!(notice, Notice::Propose { .. } | Notice::Decide(_));
        if for_leader != (self.rank == 0) {
            return log::debug!("rank {} does not expect the notice {notice:?}", self.rank);
        }
        match notice {
            Notice::Lost => self.lose(),
            Notice::Want => {
                self.leader.wanted = true;
                self.propose();
            }
            Notice::Propose { switch, slots } => {
                let begun = self.calls >= switch;
                if !begun && self.state == State::Before {
                    self.state = State::Pending { switch };
                }
                let slots = slots.is_some() && self.slots == slots;
                self.outbox.push_back((0, Notice::Answer { begun, calls: self.calls, device: self.device, slots }));
            }
            Notice::Answer { begun, calls, device, slots } => {
                self.leader.without_slots |= !slots;
                self.count(begun, calls, device);
            }
            Notice::Decide(decision) => self.decide(decision),
        }
    }

    /// Returns the next notice to send, and its receiver.
    pub fn next_notice(&mut self) -> Option<(u32, Notice)> {
        self.outbox.pop_front()
    }

    /// Checks whether there are notices to send.
    pub fn has_notices(&self) -> bool {
        !self.outbox.is_empty()
    }

    fn propose(&mut self) {
        if !self.leader.wanted || self.leader.lost || self.state != State::Before {
            return;
        }
        // A peer says how far it is.
        let switch = self.calls.max(self.leader.furthest).saturating_add(self.leader.ahead);
        self.leader.ahead = self.leader.ahead.saturating_mul(2);
        (self.leader.missing, self.leader.refused) = (self.size - 1, false);
        self.leader.without_slots = self.slots.is_none();
        self.leader.devices.clear();
        self.state = State::Pending { switch };
        self.tell_all(Notice::Propose { switch, slots: self.slots });
    }

    fn count(&mut self, begun: bool, calls: u64, device: u64) {
        let State::Pending { .. } = self.state else { return };
        self.leader.furthest = self.leader.furthest.max(calls);
        self.leader.refused |= begun;
        self.leader.devices.extend((device != 0).then_some(device));
        self.leader.missing = self.leader.missing.saturating_sub(1);
        if self.leader.missing == 0 {
            let agreed = !self.leader.refused;
            let devices = &mut self.leader.devices;
            devices.extend((self.device != 0).then_some(self.device));
            devices.sort_unstable();
            let shared = devices.windows(2).any(|pair| pair[0] == pair[1]);
            self.close(Decision { agreed, shared, slots: !self.leader.without_slots });
            self.propose();
        }
    }

    /// Decides for all members.
    fn close(&mut self, decision: Decision) {
        self.tell_all(Notice::Decide(decision));
        self.decide(decision);
    }

    /// Notes the file of slots that this member has made, before a proposal of its own, or mapped, before it receives one.
    pub fn note_slots(&mut self, slots: Option<SlotsName>) {
        self.slots = slots;
    }

    /// Checks whether this member expects a proposal.
    pub fn expects_proposal(&self) -> bool {
        self.rank != 0 && self.state == State::Before
    }

    /// Checks whether the members have decided to use no slots.
    pub fn has_no_slots(&self) -> bool {
        !self.have_slots && (self.leader.lost || matches!(self.state, State::Agreed { .. }))
    }

    /// Checks whether all members use the slots in the call that was counted last.
    pub fn uses_slots(&self) -> bool {
        self.have_slots && matches!(self.state, State::Agreed { switch } if self.calls >= switch)
    }

    /// Checks whether two members are known to have the same device. It does not matter if this crate performs all calls.
    pub fn members_share_a_device(&self) -> bool {
        self.shared && !self.always
    }

    fn decide(&mut self, Decision { agreed, shared, slots }: Decision) {
        if let State::Pending { switch } = self.state {
            self.shared = shared;
            self.have_slots = agreed && slots && !shared;
            self.state = if agreed { State::Agreed { switch } } else { State::Before };
        }
    }

    fn tell_all(&mut self, notice: Notice) {
        self.outbox.extend((1..self.size).map(|member| (member, notice)));
    }
}

impl Notice {
    /// The length of a notice in bytes.
    pub const LEN: usize = 32;

    /// Returns the bytes of a notice.
    pub fn encode(self) -> [u8; Notice::LEN] {
        let words: [u64; 4] = match self {
            Notice::Want => [1, 0, 0, 0],
            Notice::Propose { switch, slots: None } => [2, switch, 0, 0],
            Notice::Propose { switch, slots: Some(SlotsName { process, descriptor, cookie }) } => {
                [2, switch, u64::from(process) | u64::from(descriptor) << 32, cookie]
            }
            Notice::Answer { begun: false, calls, device, slots } => [3, calls, device, slots.into()],
            Notice::Answer { begun: true, calls, device, slots } => [4, calls, device, slots.into()],
            Notice::Decide(Decision { agreed, shared, slots }) => [5, agreed.into(), shared.into(), slots.into()],
            Notice::Lost => [6, 0, 0, 0],
        };
        let mut bytes = [0; Notice::LEN];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the notice of these bytes, or `None` if they are none.
    pub fn decode(bytes: [u8; Notice::LEN]) -> Option<Notice> {
        let [kind, word, more, last] =
            [0, 8, 16, 24].map(|at| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        Some(match kind {
            1 => Notice::Want,
            2 => {
                let name = SlotsName { process: more as u32, descriptor: (more >> 32) as u32, cookie: last };
                // No process has the number 0.
                Notice::Propose { switch: word, slots: Some(name).filter(|name| name.process != 0) }
            }
            3 => Notice::Answer { begun: false, calls: word, device: more, slots: last == 1 },
            4 => Notice::Answer { begun: true, calls: word, device: more, slots: last == 1 },
            5 => Notice::Decide(Decision { agreed: word == 1, shared: more == 1, slots: last == 1 }),
            6 => Notice::Lost,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
