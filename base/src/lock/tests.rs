//! Tests the locks with many system threads.

use super::platform::fences_work;
use super::*;

/// Threads take a lock in turn and at once, many times, with and without an owner among them.
#[test]
fn no_thread_enters_beside_the_owner() {
    for round in 0..300 {
        let (lock, shared) = (Lock::new(Locking::REAL, [0_u64; 2]), Shared::new(Locking::REAL, [0_u64; 2]));
        let add = |times: u64| {
            for _ in 0..times {
                let mut value = lock.lock();
                assert_eq!(value[0], value[1]);
                value[0] += 1;
                value[1] += 1;
                drop(value);
                shared.read(|value| assert_eq!(value[0], value[1]));
                shared.write(|value| {
                    value[0] += 1;
                    value[1] += 1;
                });
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| add(500 + round));
            scope.spawn(|| add(100));
            scope.spawn(|| {
                let mut left = 50;
                while left != 0 {
                    if let Some(mut value) = lock.try_lock() {
                        assert_eq!(value[0], value[1]);
                        value[0] += 1;
                        value[1] += 1;
                        left -= 1;
                    }
                }
            });
        });
        assert_eq!(*lock.lock(), [650 + round; 2]);
        shared.read(|value| assert_eq!(*value, [600 + round; 2]));
    }
}

#[test]
fn lock_waits_for_the_owner_and_try_lock_does_not() {
    let lock = Lock::new(Locking::REAL, 0);
    let mut inside = lock.lock();
    assert!(lock.try_lock().is_none(), "this thread has it");
    let tried = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert!(lock.try_lock().is_none(), "the owner has it");
            tried.wait();
            *lock.lock()
        });
        tried.wait();
        *inside = 7;
        drop(inside);
        assert_eq!(other.join().unwrap(), 7);
    });
    assert_eq!(*lock.lock(), 7);
}

#[test]
fn a_failed_attempt_leaves_the_lock_unchanged() {
    // SAFETY: only one thread uses it.
    for locking in [Locking::REAL, unsafe { Locking::elided() }] {
        let lock = Lock::new(locking, 0);
        let mut held = lock.try_lock().expect("nobody holds it");
        for _ in 0..3 {
            assert!(lock.try_lock().is_none(), "{locking:?}");
        }
        *held += 1;
        drop(held);
        assert_eq!(lock.try_lock().as_deref(), Some(&1), "{locking:?}");
    }
    let lock = Lock::new(Locking::REAL, 0);
    let held = std::thread::scope(|scope| scope.spawn(|| drop(lock.lock())).join().map(|()| lock.lock())).unwrap();
    std::thread::scope(|scope| {
        scope
            .spawn(|| (0..3).for_each(|_| assert!(lock.try_lock().is_none(), "the lock is held and no longer biased")));
    });
    drop(held);
    assert!(lock.try_lock().is_some());
}

#[test]
fn a_panic_releases_the_lock() {
    let shared = Shared::new(Locking::REAL, 1);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        shared.write(|_| std::panic::resume_unwind(Box::new(())));
    }));
    assert!(result.is_err());
    assert_eq!(shared.read(|value| *value), 1);
}

#[test]
#[should_panic(expected = "taken twice")]
fn a_lock_taken_twice_by_one_thread_panics() {
    // SAFETY: only one thread uses it.
    let lock = Lock::new(unsafe { Locking::elided() }, ());
    let _inside = lock.lock();
    let _again = lock.lock();
}

#[test]
fn no_addition_is_lost() {
    let sum = Sum::new(Locking::REAL);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                (0..10_000).for_each(|_| {
                    sum.add(1);
                })
            });
        }
    });
    sum.sub(1);
    assert_eq!(sum.get(), 29_999);
}

#[test]
fn the_first_thread_owns_it_until_another_arrives() {
    if !fences_work() {
        println!("skipped: this system has no membarrier, so locks are not biased");
        return;
    }
    let bias = Bias::new(Locking::REAL);
    assert_eq!(bias.pass(), Passage::Inside);
    assert_eq!(bias.pass(), Passage::Again);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(bias.pass(), Passage::Refused);
            assert!(!bias.revoke(), "the owner is inside");
        });
    });
    bias.leave();
    assert!(bias.revoke());
    assert_eq!(bias.pass(), Passage::Refused, "for good");
}

#[test]
fn every_thread_may_take_an_elided_lock() {
    // SAFETY: one of the two threads starts after the other has ended.
    let bias = Bias::new(unsafe { Locking::elided() });
    for _ in 0..2 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(bias.pass(), Passage::Inside);
                assert_eq!(bias.pass(), Passage::Again);
                bias.leave();
            });
        });
    }
}
