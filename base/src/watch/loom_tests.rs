use loom::sync::Arc;

use super::*;

/// A request: empty, or the sleeper to wake, or done.
#[derive(Default)]
struct Event(AtomicUsize);

impl Event {
    const DONE: usize = 1;

    /// Marks the event in a poll, and yields as another thread may do at that point.
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

/// Each thread finds only its own event when it polls. So a sleeper depends on being called.
#[test]
fn loom_a_leaving_poller_calls_the_next() {
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

/// The poller also finds the other thread's event, before or after its own.
#[test]
fn loom_the_poller_wakes_the_others() {
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

/// A called sleeper that is done already calls another sleeper.
#[test]
fn loom_a_needless_call_is_passed_on() {
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
