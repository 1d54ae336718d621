//! Tests the biased locks in every interleaving, and in every order in which their stores may become visible. `model`
//! says what that shows. Loom watches the values: racing accesses fail the test.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::platform::{begin, interruption, live, without_interrupts};
use super::*;

/// A number that only one thread may change at a time.
#[derive(Default)]
struct Watched(UnsafeCell<u32>);

// SAFETY: loom fails the test if two threads access the number at once.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Watched {
    fn increment(&self) {
        // SAFETY: loom checks that no other thread accesses it.
        self.0.with_mut(|value| unsafe { *value += 1 });
        interruption();
    }

    fn read(&self) -> u32 {
        interruption();
        // SAFETY: loom checks that no thread writes.
        self.0.with(|value| unsafe { *value })
    }
}

fn model(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(preemptions);
    bounded.check(scenario);
}

/// Runs each function with `shared` in a thread of its own, the first one in the calling thread.
fn threads<S: Send + Sync + 'static>(shared: S, acts: &[fn(&S)]) -> Arc<S> {
    begin(acts.len());
    let shared = Arc::new(shared);
    let others: Vec<_> = (1..acts.len())
        .map(|index| {
            let (shared, act) = (shared.clone(), acts[index]);
            thread::spawn(move || live(index, || act(&shared)))
        })
        .collect();
    live(0, || acts[0](&shared));
    others.into_iter().for_each(|other| other.join().unwrap());
    shared
}

fn lock_once(lock: &Lock<Watched>) {
    lock.lock().increment();
}

fn lock_twice(lock: &Lock<Watched>) {
    lock_once(lock);
    lock_once(lock);
}

fn try_once(lock: &Lock<Watched>) {
    if let Some(guard) = lock.try_lock() {
        guard.increment();
    }
}

fn new_lock() -> Lock<Watched> {
    Lock::new(Locking::REAL, Watched::default())
}

fn count(lock: &Lock<Watched>) -> u32 {
    live(0, || lock.lock().read())
}

/// Any of the threads may be the first, and so the owner.
#[test]
fn loom_no_thread_enters_beside_the_owner() {
    model(3, || {
        let lock = threads(new_lock(), &[lock_twice, lock_once]);
        assert_eq!(count(&lock), 3);
    });
}

#[test]
fn loom_two_threads_may_revoke_the_bias() {
    model(1, || {
        let lock = threads(new_lock(), &[lock_once, lock_once, lock_once]);
        assert_eq!(count(&lock), 3);
    });
}

#[test]
fn loom_try_lock_does_not_enter_beside_the_owner() {
    model(3, || {
        let lock = threads(new_lock(), &[lock_twice, try_once]);
        assert!((2..=3).contains(&count(&lock)));
    });
}

/// Without the kernel's fence two threads are inside at once. So the scenarios detect a faulty protocol.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_the_fence_is_needed() {
    without_interrupts(|| model(3, || drop(threads(new_lock(), &[lock_twice, lock_once]))));
}

fn read_shared(shared: &Shared<Watched>) {
    shared.read(|value| value.read());
}

fn write_shared(shared: &Shared<Watched>) {
    shared.write(|value| value.increment());
}

fn read_and_write_shared(shared: &Shared<Watched>) {
    read_shared(shared);
    write_shared(shared);
}

fn new_shared() -> Shared<Watched> {
    Shared::new(Locking::REAL, Watched::default())
}

#[test]
fn loom_a_reader_never_meets_a_writer() {
    model(2, || {
        let shared = threads(new_shared(), &[read_and_write_shared, read_and_write_shared]);
        assert_eq!(live(0, || shared.read(Watched::read)), 2);
    });
}

/// Readers share the ordinary lock, so two may revoke the bias at once.
#[test]
fn loom_two_readers_may_revoke_the_bias() {
    model(1, || drop(threads(new_shared(), &[write_shared, read_shared, read_shared])));
}

fn add_twice(sum: &Sum) {
    sum.add(1);
    sum.add(2);
}

#[test]
fn loom_no_addition_is_lost() {
    model(3, || {
        let sum = threads(Sum::new(Locking::REAL), &[add_twice, add_twice]);
        assert_eq!(sum.get(), 6);
    });
}
