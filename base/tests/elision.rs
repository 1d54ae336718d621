//! The end of elision changes the whole process, so that it has a test program of its own, with one test.

use std::sync::atomic::{AtomicBool, Ordering};

use cableway_base::lock::{Lock, Locking, Shared, Sum, end_elision};

const THREADS: u64 = 4;
const TIMES: u64 = 20_000;

#[test]
fn locks_that_were_elided_exclude_threads_afterwards() {
    // SAFETY: one thread uses them until `end_elision`.
    let elided = unsafe { Locking::elided() };
    let (lock, shared, sum) = (Lock::new(elided, [0_u64; 2]), Shared::new(elided, [0_u64; 2]), Sum::new(elided));
    *lock.lock() = [1, 1];
    shared.write(|value| *value = [1, 1]);
    sum.add(1);
    assert!(!elided.is_real() && Locking::REAL.is_real());

    // SAFETY: no lock is held, and the threads start later.
    unsafe { end_elision() };
    assert!(elided.is_real());
    let later = Lock::new(elided, 0_u64);
    let held = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..TIMES {
                    let mut value = lock.lock();
                    assert!(!held.swap(true, Ordering::Relaxed), "two threads hold the lock");
                    assert_eq!(value[0], value[1]);
                    value[0] += 1;
                    value[1] += 1;
                    held.store(false, Ordering::Relaxed);
                    drop(value);
                    shared.read(|value| assert_eq!(value[0], value[1]));
                    shared.write(|value| {
                        value[0] += 1;
                        value[1] += 1;
                    });
                    sum.add(1);
                    *later.lock() += 1;
                }
            });
        }
    });
    assert_eq!(*lock.lock(), [1 + THREADS * TIMES; 2]);
    shared.read(|value| assert_eq!(*value, [1 + THREADS * TIMES; 2]));
    assert_eq!(sum.get(), 1 + THREADS * TIMES);
    assert_eq!(*later.lock(), THREADS * TIMES);
    let inside = lock.lock();
    std::thread::scope(|scope| scope.spawn(|| assert!(lock.try_lock().is_none())).join().unwrap());
    drop(inside);
}
