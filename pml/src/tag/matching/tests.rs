use proptest::prelude::*;

use super::*;
use crate::status::ANY;

/// Matches as MPI defines it, by linear searches over two lists.
#[derive(Default)]
struct Reference {
    posted: Vec<(Pattern, u32)>,
    waiting: Vec<(u32, i32, u32)>,
}

fn fits(pattern: Pattern, source: u32, tag: i32) -> bool {
    (pattern.source == ANY || pattern.source == source as i32)
        && if pattern.tag == ANY { tag >= 0 } else { pattern.tag == tag }
}

impl Reference {
    fn arrive(&mut self, source: u32, tag: i32, id: u32) -> Option<u32> {
        match self.posted.iter().position(|&(pattern, _)| fits(pattern, source, tag)) {
            Some(at) => Some(self.posted.remove(at).1),
            None => {
                self.waiting.push((source, tag, id));
                None
            }
        }
    }

    fn find(&self, pattern: Pattern) -> Option<usize> {
        self.waiting.iter().position(|&(source, tag, _)| fits(pattern, source, tag))
    }

    fn receive(&mut self, pattern: Pattern, id: u32) -> Option<(u32, i32, u32)> {
        match self.find(pattern) {
            Some(at) => Some(self.waiting.remove(at)),
            None => {
                self.posted.push((pattern, id));
                None
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A message arrives. With `early`, the next message of its source arrives before it.
    Message {
        source: u32,
        tag: i32,
        early: bool,
    },
    Receive(Pattern),
    Probe(Pattern),
    Cancel(usize),
    Fail(u32),
}

const SOURCES: u32 = 3;

fn pattern() -> impl Strategy<Value = Pattern> {
    (-1..SOURCES as i32, prop_oneof![Just(ANY), -4..-1i32, 0..3i32]).prop_map(|(source, tag)| Pattern { source, tag })
}

fn step() -> impl Strategy<Value = Step> {
    let tag = prop_oneof![1 => -4..-1i32, 4 => 0..3i32];
    prop_oneof![
        10 => (0..SOURCES, tag, any::<bool>()).prop_map(|(source, tag, early)| Step::Message { source, tag, early }),
        10 => pattern().prop_map(Step::Receive),
        2 => pattern().prop_map(Step::Probe),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..SOURCES).prop_map(Step::Fail),
    ]
}

/// A matcher beside the reference.
struct Tested {
    matcher: Matcher<u32, u32>,
    reference: Reference,
    next_seq: [u32; SOURCES as usize],
    held: [Option<(i32, u32, u32)>; SOURCES as usize],
    keys: Vec<(PostKey, u32)>,
}

impl Tested {
    fn arrive(&mut self, source: u32, tag: i32, seq: u32, id: u32) {
        match self.matcher.arrive(source, tag, seq) {
            Arrival::Matched(receive) => assert_eq!(self.reference.arrive(source, tag, id), Some(receive)),
            Arrival::Unexpected => {
                self.matcher.store(source, tag, id);
                assert_eq!(self.reference.arrive(source, tag, id), None);
            }
            Arrival::Early => {
                self.matcher.park(source, tag, seq, id);
                return;
            }
            Arrival::Repeated => panic!("message {seq} of source {source} is new"),
        }
        while let Some(released) = self.matcher.release(source) {
            match released {
                Released::Matched(receive, id) => {
                    let (tag, parked) = self.parked_id(source);
                    assert_eq!((id, self.reference.arrive(source, tag, id)), (parked, Some(receive)));
                }
                Released::Unexpected => {
                    let last = self.parked_id(source);
                    assert_eq!(self.reference.arrive(source, last.0, last.1), None);
                }
            }
        }
    }

    /// Returns the parked message of a source. There is at most one: it overtook the message that was just admitted.
    fn parked_id(&self, source: u32) -> (i32, u32) {
        let (tag, _, id) = self.held[source as usize].unwrap();
        (tag, id)
    }

    fn run(&mut self, id: u32, step: Step) {
        match step {
            Step::Message { source, tag, early } => {
                let at = source as usize;
                let seq = self.next_seq[at];
                match self.held[at] {
                    // This message overtakes the earlier one, which arrives next.
                    Some((late_tag, late_seq, late_id)) => {
                        self.next_seq[at] += 1;
                        self.held[at] = Some((tag, seq, id));
                        self.arrive(source, tag, seq, id);
                        self.arrive(source, late_tag, late_seq, late_id);
                        self.held[at] = None;
                    }
                    None if early => {
                        self.next_seq[at] += 1;
                        self.held[at] = Some((tag, seq, id));
                    }
                    None => {
                        self.next_seq[at] += 1;
                        self.arrive(source, tag, seq, id);
                    }
                }
            }
            Step::Receive(pattern) => {
                let taken = self.matcher.take(pattern);
                assert_eq!(taken, self.reference.receive(pattern, id));
                if taken.is_none() {
                    let key = self.matcher.post(pattern, id);
                    self.keys.push((key, id));
                }
            }
            Step::Probe(pattern) => {
                let expected = self.reference.find(pattern).map(|at| self.reference.waiting[at]);
                assert_eq!(self.matcher.peek(pattern).map(|(source, tag, &id)| (source, tag, id)), expected);
            }
            Step::Cancel(which) => {
                if self.keys.is_empty() {
                    return;
                }
                let (key, id) = self.keys[which % self.keys.len()];
                let at = self.reference.posted.iter().position(|&(_, posted)| posted == id);
                assert_eq!(
                    self.matcher.cancel(key, |&posted| posted == id),
                    at.map(|at| self.reference.posted.remove(at).1)
                );
            }
            Step::Fail(source) => {
                let awaits = |pattern: &Pattern| pattern.source == ANY || pattern.source == source as i32;
                let (failed, kept) =
                    std::mem::take(&mut self.reference.posted).into_iter().partition(|(pattern, _)| awaits(pattern));
                self.reference.posted = kept;
                let failed: Vec<(Pattern, u32)> = failed;
                let failed: Vec<u32> = failed.into_iter().map(|(_, id)| id).collect();
                assert_eq!(self.matcher.abandon(source, true), (failed, vec![]));
            }
        }
        self.matcher.check();
        assert_eq!(self.matcher.lengths().posted.get(), self.reference.posted.len());
    }
}

proptest! {
    #[test]
    fn agrees_with_linear_search(steps in prop::collection::vec(step(), 1..200)) {
        let mut tested = Tested {
            matcher: Matcher::new(SOURCES as usize),
            reference: Reference::default(),
            next_seq: [0; SOURCES as usize],
            held: [None; SOURCES as usize],
            keys: vec![],
        };
        for (id, step) in steps.into_iter().enumerate() {
            tested.run(id as u32, step);
        }
    }
}

const DEPTH: u32 = 100_000;
/// Lists that one operation may visit: at most four found, four linked and four unlinked.
const STEPS_EACH: u64 = 12;

#[test]
fn work_per_receive_does_not_grow_with_the_number_posted() {
    let mut matcher: Matcher<u32, ()> = Matcher::new(4);
    let kinds = [|i| (0, i), |_| (1, ANY), |i| (ANY, i), |_| (ANY, ANY)];
    for id in 0..DEPTH {
        let (source, tag) = kinds[id as usize % kinds.len()](id as i32);
        matcher.post(Pattern { source, tag }, id);
    }
    // Messages of source 0 with posted tags, the last first. Each receive is found among 25,000 of its class.
    for (seq, id) in (0..DEPTH).step_by(4).rev().enumerate() {
        let before = matcher.steps();
        let Arrival::Matched(_) = matcher.arrive(0, id as i32, seq as u32) else { panic!("receive {id} is posted") };
        assert!(matcher.steps() - before <= STEPS_EACH);
    }
    for seq in 0..DEPTH / 4 {
        let before = matcher.steps();
        let Arrival::Matched(_) = matcher.arrive(1, -7 + 7 * i32::from(seq % 2 == 0), seq) else { continue };
        assert!(matcher.steps() - before <= STEPS_EACH);
    }
    assert!(matcher.steps() <= u64::from(DEPTH) * 3 * STEPS_EACH);
}

#[test]
fn work_per_message_does_not_grow_with_the_number_waiting() {
    let mut matcher: Matcher<(), u32> = Matcher::new(4);
    for id in 0..DEPTH {
        assert_eq!(matcher.arrive(id % 4, (id / 4) as i32, id / 4), Arrival::Unexpected);
        matcher.store(id % 4, (id / 4) as i32, id);
    }
    // The first use of each class adds the waiting messages to its lists.
    for pattern in [(0, -5), (0, ANY), (ANY, -5), (ANY, ANY)].map(|(source, tag)| Pattern { source, tag }) {
        let before = matcher.steps();
        let _ = matcher.peek(pattern);
        assert!(matcher.steps() - before <= 3 * u64::from(DEPTH) + STEPS_EACH);
    }
    let mut taken = 0;
    // From the end, with every class of pattern.
    for (turn, round) in (0..DEPTH / 4).rev().enumerate() {
        let tag = round as i32;
        let patterns = [
            Pattern { source: 3, tag },
            Pattern { source: ANY, tag },
            Pattern { source: 1, tag: ANY },
            Pattern { source: ANY, tag: ANY },
        ];
        let before = matcher.steps();
        // An earlier wildcard may have taken the message that a tag names.
        taken += u32::from(matcher.take(patterns[turn % 4]).is_some());
        assert!(matcher.steps() - before <= STEPS_EACH);
    }
    assert!(taken > DEPTH / 8);
}

#[test]
fn lists_of_unrepeated_tags_are_dropped() {
    let mut matcher: Matcher<u32, ()> = Matcher::new(1);
    for id in 0..DEPTH {
        matcher.post(Pattern { source: 0, tag: id as i32 }, id);
        assert_eq!(matcher.arrive(0, id as i32, id), Arrival::Matched(id));
    }
    assert!(matcher.posted.lists() < 256, "{} lists are kept", matcher.posted.lists());
}

#[test]
fn any_tag_does_not_match_internal_tags() {
    let mut matcher: Matcher<u32, u32> = Matcher::new(1);
    matcher.post(Pattern { source: ANY, tag: ANY }, 1);
    assert_eq!(matcher.arrive(0, -9, 0), Arrival::Unexpected);
    matcher.store(0, -9, 70);
    assert_eq!(matcher.take(Pattern { source: 0, tag: ANY }), None);
    assert_eq!(matcher.take(Pattern { source: ANY, tag: -9 }), Some((0, -9, 70)));
    assert_eq!(matcher.arrive(0, 5, 1), Arrival::Matched(1));
}

#[test]
fn cancelled_receives_leave_the_queue_and_the_others_match_in_order() {
    let mut matcher: Matcher<u32, ()> = Matcher::new(1);
    let pattern = Pattern { source: 0, tag: 1 };
    matcher.post(pattern, 0);
    for id in 1..DEPTH {
        let key = matcher.post(pattern, id);
        assert_eq!(matcher.cancel(key, |&other| other != id), None, "another request");
        if id % 100 != 0 {
            assert_eq!(matcher.cancel(key, |&other| other == id), Some(id));
            assert_eq!(matcher.cancel(key, |_| true), None, "already cancelled");
        }
    }
    assert_eq!(matcher.lengths().posted.get(), DEPTH as usize / 100);
    for seq in 0..DEPTH / 100 {
        assert_eq!(matcher.arrive(0, 1, seq), Arrival::Matched(seq * 100));
    }
    assert_eq!(matcher.arrive(0, 1, DEPTH / 100), Arrival::Unexpected);
}
