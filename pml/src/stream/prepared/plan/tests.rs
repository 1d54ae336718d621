//! A model of two streams: every interleaving of several posts, and random ones of many.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// Two streams that are in the middle of their posts. Work of the program lies between the posts: the sender's fills its
/// buffer with the number of the post, the receiver's reads its buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Model {
    sender: Position,
    receiver: Position,
    ready: bool,
    done: bool,
    source: usize,
    /// The bytes of the receiver's buffer, of which the copy writes one at a time.
    destination: [usize; 2],
    /// Bytes of the copy that are under way.
    copied: usize,
    /// What the receiver has read.
    seen: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Position {
    post: usize,
    /// 0 is the program's work, n the n-th step.
    step: usize,
}

/// The steps of both sides, so that tests can show that others fail.
#[derive(Clone, Copy)]
struct Protocol {
    send: &'static [Step],
    receive: &'static [Step],
}

impl Protocol {
    fn real() -> Protocol {
        Protocol { send: Side::Send.steps(), receive: Side::Receive.steps() }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The program's work and a copy used a buffer at once, or wrong data was read.
    Data,
    /// Both streams wait.
    Deadlock,
}

impl Model {
    fn new() -> Model {
        let start = Position { post: 0, step: 0 };
        Model {
            sender: start,
            receiver: start,
            ready: false,
            done: false,
            source: 0,
            destination: [0; 2],
            copied: 0,
            seen: Vec::new(),
        }
    }

    fn flag(&mut self, flag: Flag) -> &mut bool {
        match flag {
            Flag::Ready => &mut self.ready,
            Flag::Done => &mut self.done,
        }
    }

    /// Lets one stream do a step. Returns false if it waits or is at its end.
    fn step(&mut self, protocol: &Protocol, side: Side, posts: usize) -> Result<bool, Fault> {
        let (at, steps) = match side {
            Side::Send => (self.sender, protocol.send),
            Side::Receive => (self.receiver, protocol.receive),
        };
        // The receiver's work after its last post.
        if at.post == posts && (side == Side::Send || self.seen.len() == posts) {
            return Ok(false);
        }
        let mut over = true;
        match (side, at.step.checked_sub(1).map(|step| steps[step])) {
            (Side::Send, None) => self.source = at.post + 1,
            (Side::Receive, None) => {
                if self.copied != 0 {
                    return Err(Fault::Data);
                }
                if at.post > 0 {
                    let expected = at.post;
                    if self.destination != [expected; 2] {
                        return Err(Fault::Data);
                    }
                    self.seen.push(expected);
                    // The program's own use of the buffer.
                    self.destination = [0; 2];
                }
                if at.post == posts {
                    return Ok(true);
                }
            }
            (_, Some(Step::Await(flag))) => {
                if !*self.flag(flag) {
                    return Ok(false);
                }
            }
            (_, Some(Step::Clear(flag))) => *self.flag(flag) = false,
            (_, Some(Step::Raise(flag))) => *self.flag(flag) = true,
            (_, Some(Step::Copy)) => {
                self.destination[self.copied] = self.source;
                self.copied += 1;
                over = self.copied == self.destination.len();
                if over {
                    self.copied = 0;
                }
            }
        }
        if over {
            let next = if at.step == steps.len() {
                Position { post: at.post + 1, step: 0 }
            } else {
                Position { step: at.step + 1, ..at }
            };
            match side {
                Side::Send => self.sender = next,
                Side::Receive => self.receiver = next,
            }
        }
        Ok(true)
    }
}

/// Goes through every state that can be reached.
fn explore(protocol: &Protocol, posts: usize) -> Result<usize, Fault> {
    let mut known = HashSet::new();
    let mut open = vec![Model::new()];
    while let Some(model) = open.pop() {
        let mut moved = false;
        for side in [Side::Send, Side::Receive] {
            let mut next = model.clone();
            if next.step(protocol, side, posts)? {
                moved = true;
                if known.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        if !moved && (model.sender.post != posts || model.seen.len() != posts) {
            return Err(Fault::Deadlock);
        }
    }
    Ok(known.len())
}

#[test]
fn every_interleaving_moves_each_message_once() {
    // At least the steps of both sides, and their work between the posts.
    let states = explore(&Protocol::real(), 5).unwrap();
    assert!(states >= 5 * (4 + 3 + 2), "{states}");
}

#[test]
fn other_orders_of_the_steps_fail() {
    use Flag::{Done, Ready};
    use Step::{Await, Clear, Copy, Raise};
    let real = Protocol::real();
    let wrong: [Protocol; 5] = [
        // *ready* is cleared after *done* was raised: it may be the next one.
        Protocol { send: &[Await(Ready), Copy, Raise(Done), Clear(Ready)], ..real },
        // *done* is cleared after *ready* was raised again.
        Protocol { receive: &[Raise(Ready), Clear(Done), Await(Done)], ..real },
        // Nobody clears.
        Protocol { send: &[Await(Ready), Copy, Raise(Done)], ..real },
        Protocol { receive: &[Raise(Ready), Await(Done)], ..real },
        // The signal before the copy.
        Protocol { send: &[Await(Ready), Clear(Ready), Raise(Done), Copy], ..real },
    ];
    for (at, protocol) in wrong.iter().enumerate() {
        assert!(explore(protocol, 4).is_err(), "protocol {at}");
    }
}

#[test]
fn each_side_waits_for_one_flag_and_clears_it_at_once() {
    for side in [Side::Send, Side::Receive] {
        let awaited: Vec<usize> = side
            .steps()
            .iter()
            .enumerate()
            .filter(|(_, step)| matches!(step, Step::Await(_)))
            .map(|(at, _)| at)
            .collect();
        let [at] = awaited[..] else { panic!("{side:?} waits {} times", awaited.len()) };
        assert_eq!(side.steps()[at..][..2], [Step::Await(side.awaited()), Step::Clear(side.awaited())]);
    }
}

proptest! {
    #[test]
    fn random_speeds_of_the_streams_move_every_message(choices in proptest::collection::vec(any::<bool>(), 0..4000)) {
        const POSTS: usize = 200;
        let (mut model, protocol) = (Model::new(), Protocol::real());
        let ends = std::iter::repeat_n([true, false], 4 * 8 * POSTS).flatten();
        for sender in choices.into_iter().chain(ends) {
            let side = if sender { Side::Send } else { Side::Receive };
            model.step(&protocol, side, POSTS).unwrap();
        }
        prop_assert_eq!(model.seen, (1..=POSTS).collect::<Vec<_>>());
    }
}
