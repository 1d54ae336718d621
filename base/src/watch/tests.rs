use std::sync::atomic::AtomicUsize;

use super::*;

/// Events occur in any order while the poller looks for them.
#[test]
fn every_thread_is_woken_whichever_polls() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 500;
    let watch = Watch::new();
    let waiting: [parking_lot::Mutex<Option<usize>>; THREADS] = std::array::from_fn(|_| Default::default());
    let polls = AtomicUsize::new(0);
    let poll = || {
        let turn = polls.fetch_add(1, Relaxed);
        let woken = waiting[turn * 5 % THREADS].lock().take();
        if let Some(sleeper) = woken.and_then(|address| NonNull::new(address as *mut Sleeper)) {
            // SAFETY: its thread waits, and it is woken once.
            unsafe { Sleeper::wake(sleeper) };
        }
    };
    std::thread::scope(|scope| {
        for place in &waiting {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let sleeper = Sleeper::new();
                    *place.lock() = Some(std::ptr::from_ref(&sleeper) as usize);
                    watch.wait(&sleeper, || false, poll);
                    assert!(sleeper.is_done());
                }
            });
        }
    });
    assert!(!watch.others_sleep());
}

#[test]
fn a_roused_thread_may_leave_and_the_watch_continues() {
    let watch = Watch::new();
    let (enough, polling) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let sleeper = Sleeper::new();
            watch.wait(&sleeper, || enough.load(Acquire), || polling.store(true, Release));
            assert!(!sleeper.is_done());
        });
        while !polling.load(Acquire) {
            std::thread::yield_now();
        }
        scope.spawn(|| watch.wait(&Sleeper::new(), || enough.load(Acquire), || ()));
        while !watch.others_sleep() {
            std::thread::yield_now();
        }
        enough.store(true, Release);
        watch.rouse();
    });
    let mut polls = 0;
    let sleeper = Sleeper::new();
    watch.wait(
        &sleeper,
        || false,
        || {
            polls += 1;
            // SAFETY: it is valid, and woken once.
            assert!(!unsafe { Sleeper::wake(NonNull::from(&sleeper)) }, "the thread that has the watch is awake");
        },
    );
    assert_eq!(polls, 1);
}

#[test]
fn a_wait_within_a_poll_polls() {
    let watch = Watch::new();
    let (outer, inner) = (Sleeper::new(), Sleeper::new());
    watch.wait(
        &outer,
        || false,
        || {
            watch.wait(
                &inner,
                || false,
                || {
                    // SAFETY: it is valid, and woken once.
                    unsafe { Sleeper::wake(NonNull::from(&inner)) };
                },
            );
            // SAFETY: as above.
            unsafe { Sleeper::wake(NonNull::from(&outer)) };
        },
    );
    assert!(outer.is_done() && inner.is_done());
}
