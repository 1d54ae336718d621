use std::cell::Cell;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Default)]
struct Operation(Rc<Cell<bool>>);

impl Awaited for Operation {
    fn is_over(&self) -> bool {
        self.0.get()
    }
}

#[test]
fn an_operation_starts_when_the_stream_is_there_and_in_order() {
    let mut queue = Queue::new(0);
    let all: Vec<Operation> = (0..3).map(|_| Operation::default()).collect();
    for (number, operation) in (1..).zip(&all) {
        queue.start_at(number, operation.clone());
    }
    assert!(queue.take_due().is_none());
    assert!(queue.note_reached(2) && !queue.note_reached(2) && !queue.note_reached(1));
    for operation in &all[..2] {
        assert!(Rc::ptr_eq(&queue.take_due().unwrap().0, &operation.0));
    }
    assert!(queue.take_due().is_none() && !queue.is_idle());
    queue.note_reached(3);
    assert!(queue.take_due().is_some() && queue.is_idle());
}

#[test]
fn a_release_never_passes_a_wait_that_is_not_over() {
    let mut queue = Queue::new(10);
    let (first, second) = (Operation::default(), Operation::default());
    queue.wait_at(11, vec![first.clone(), second.clone()]);
    queue.wait_at(12, vec![second.clone()]);
    queue.wait_at(13, vec![]);
    second.0.set(true);
    assert_eq!(queue.release(), None);
    first.0.set(true);
    assert_eq!(queue.release(), Some(13));
    assert_eq!(queue.release(), None);
    assert!(queue.is_idle());
}

#[test]
fn the_stream_passes_a_refused_call() {
    let mut queue = Queue::new(0);
    let refused = Operation::default();
    queue.start_at(1, Operation::default());
    let before = queue.written();
    queue.start_at(2, refused.clone());
    queue.wait_at(3, vec![refused.clone()]);
    for operation in queue.withdraw(1, before) {
        operation.0.set(true);
    }
    assert!(refused.is_over());
    queue.note_reached(1);
    assert!(queue.take_due().is_some() && queue.take_due().is_none());
    // The stream may have got the wait.
    assert_eq!((queue.release(), queue.written()), (Some(3), before));
    assert!(queue.is_idle());
}

#[test]
fn calls_without_the_thread_leave_it_idle_and_the_stream_at_work() {
    let mut queue = Queue::<Operation>::new(0);
    queue.pass(1);
    assert!(queue.is_idle() && !queue.is_passed_at(0) && queue.is_passed_at(1));
    let before = queue.written();
    queue.pass(3);
    assert!(!queue.is_passed_at(2));
    // The driver refused the last one.
    queue.withdraw(2, before);
    assert!(queue.is_passed_at(1));
    queue.mark(4);
    assert!(!queue.is_idle() && queue.is_passed_at(1));
}

/// A step of a random program.
#[derive(Clone, Debug)]
enum Step {
    Start,
    /// Waits for the operation at this index, modulo their number.
    Wait(usize),
    Mark,
    /// The stream goes on, as far as it may.
    Run,
    /// The operation at this index, modulo the number of the started ones, ends.
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Start),
        3 => any::<usize>().prop_map(Step::Wait),
        1 => Just(Step::Mark),
        3 => Just(Step::Run),
        3 => any::<usize>().prop_map(Step::End),
    ];
    proptest::collection::vec(step, 1..80)
}

/// What the stream itself holds.
enum Held {
    Write(u64),
    Wait(u64),
}

proptest! {
    /// A stream that obeys its words starts each operation once and in order, passes no wait too early, and gets to the
    /// end once all operations have ended.
    #[test]
    fn random_programs_get_to_their_end(steps in steps()) {
        let mut queue = Queue::new(0);
        let (mut number, mut word, mut release) = (0, 0, 0_u64);
        let mut held: VecDeque<Held> = VecDeque::new();
        let mut all: Vec<Operation> = Vec::new();
        let mut started: Vec<Operation> = Vec::new();
        let mut waits: Vec<(u64, Operation)> = Vec::new();
        let mut finishing = std::iter::repeat_n([Step::Run, Step::End(0)], 200).flatten();
        let mut next = steps.into_iter();
        loop {
            let (step, last) = match next.next() {
                Some(step) => (step, false),
                None => match finishing.next() {
                    Some(step) => (step, true),
                    None => break,
                },
            };
            match step {
                Step::Start => {
                    number += 1;
                    all.push(Operation::default());
                    queue.start_at(number, all[all.len() - 1].clone());
                    held.push_back(Held::Write(number));
                }
                Step::Wait(which) if !all.is_empty() => {
                    number += 1;
                    let operation = all[which % all.len()].clone();
                    queue.wait_at(number, vec![operation.clone()]);
                    waits.push((number, operation));
                    held.push_back(Held::Wait(number));
                }
                Step::Mark => {
                    number += 1;
                    queue.mark(number);
                    held.push_back(Held::Write(number));
                }
                Step::Run => {
                    while let Some(first) = held.front() {
                        match first {
                            Held::Write(to) => word = *to,
                            Held::Wait(at) if release >= *at => {
                                let (_, operation) = waits.iter().find(|(number, _)| number == at).unwrap();
                                prop_assert!(operation.is_over());
                            }
                            Held::Wait(_) => break,
                        }
                        held.pop_front();
                    }
                }
                Step::End(which) => {
                    let open: Vec<&Operation> = started.iter().filter(|operation| !operation.is_over()).collect();
                    if !open.is_empty() {
                        open[if last { 0 } else { which % open.len() }].0.set(true);
                    }
                }
                Step::Wait(_) => {}
            }
            queue.note_reached(word);
            while let Some(operation) = queue.take_due() {
                prop_assert!(Rc::ptr_eq(&operation.0, &all[started.len()].0), "out of order");
                started.push(operation);
            }
            release = queue.release().unwrap_or(release);
        }
        prop_assert!(held.is_empty() && queue.is_idle());
        prop_assert_eq!(started.len(), all.len());
    }
}
