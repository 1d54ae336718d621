use loom::sync::Arc;

use super::*;

/// A request: nothing, or whom to wake, or done.
#[derive(Default)]
struct Event(AtomicUsize);

impl Event {
    const DONE: usize = 1;

    /// In a poll: another thread may be about to say that it is done.
    fn found(&self) {
        self.happen();
        thread::yield_now();
    }

    fn happen(&self) {
        if let Some(sleeper) = NonNull::new((self.0.swap(Self::DONE, AcqRel) & !Self::DONE) as *mut Sleeper) {
            // SAFETY: its thread waits for this.
            unsafe { Sleeper::wake(sleeper) };
        }
    }

    fn await_on(&self, watch: &Watch, poll: impl FnMut()) {
        let sleeper = Sleeper::new();
        let address = std::ptr::from_ref(&sleeper) as usize;
        if self.0.compare_exchange(0, address, AcqRel, Acquire).is_ok() {
            watch.wait(&sleeper, || false, poll);
            assert!(sleeper.is_done());
        }
    }
}

fn model(scenario: impl Fn() + Send + Sync + 'static) {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(2);
    bounded.check(scenario);
}

/// Each thread finds its own event when it polls, and no other: who sleeps depends on being called.
#[test]
fn loom_who_leaves_calls_the_next() {
    model(|| {
        let shared = Arc::new((Watch::new(), Event::default(), Event::default()));
        let second = thread::spawn({
            let shared = shared.clone();
            move || shared.2.await_on(&shared.0, || shared.2.found())
        });
        shared.1.await_on(&shared.0, || shared.1.found());
        second.join().unwrap();
        assert!(!shared.0.others_sleep());
    });
}

/// Who polls finds the other's event, too, before or after its own.
#[test]
fn loom_who_polls_wakes_the_others() {
    for other_first in [true, false] {
        model(move || {
            let shared = Arc::new((Watch::new(), Event::default(), Event::default()));
            let both = move |own: &Event, foreign: &Event| {
                let (first, second) = if other_first { (foreign, own) } else { (own, foreign) };
                first.happen();
                second.found();
            };
            let second = thread::spawn({
                let shared = shared.clone();
                move || shared.2.await_on(&shared.0, || both(&shared.2, &shared.1))
            });
            shared.1.await_on(&shared.0, || both(&shared.1, &shared.2));
            second.join().unwrap();
        });
    }
}

/// Who was called, but is done already, calls another one that sleeps.
#[test]
fn loom_a_call_in_vain_is_passed_on() {
    model(|| {
        let shared = Arc::new((Watch::new(), Event::default(), Event::default(), Event::default()));
        let done_by_another = thread::spawn({
            let shared = shared.clone();
            move || shared.2.await_on(&shared.0, || shared.2.found())
        });
        let alone = thread::spawn({
            let shared = shared.clone();
            move || shared.3.await_on(&shared.0, || shared.3.found())
        });
        shared.1.await_on(&shared.0, || shared.1.found());
        shared.2.happen();
        done_by_another.join().unwrap();
        alone.join().unwrap();
    });
}
