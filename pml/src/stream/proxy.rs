//! The thread that starts messages and releases streams.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::shared::Shared;
use super::state::{Running, StreamState};
use crate::error::Error;

/// Polls without an event before the thread gives the processor away between polls.
const SPINS: u32 = 200;
/// Polls without an event before the thread sleeps between polls: some milliseconds.
const PATIENCE: u32 = 5_000;
/// How long it sleeps then. A stream that gets to a message waits at most so much longer.
const NAP: Duration = Duration::from_micros(20);
/// Polls between two questions whether the streams' contexts still work.
const LOOK_EVERY: u64 = 1 << 14;

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is the one that starts messages for streams. Hooks run there, too, and a host whose
/// own structures belong to the program's threads asks it.
pub fn is_stream_thread() -> bool {
    HERE.get()
}

/// Ends the streams if the thread panics: a stream must not wait for ever.
struct Ending<'s>(&'s Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let streams = {
            let control = self.0.control.lock();
            self.0.ended.store(true, Ordering::Release);
            control.streams.clone()
        };
        streams.iter().for_each(|state| state.give_up(&Error::StreamsEnded));
        self.0.exchange.give_up(&Error::StreamsEnded);
        self.0.kernels.give_up();
        // The engine still uses them.
        let started = self.0.take_started();
        started.iter().for_each(|message| message.let_go());
        std::mem::forget(started);
        self.0.done.notify_all();
        // A stream that has not passed its last call may still write to its words.
        streams.into_iter().filter(|state| !state.is_at_rest()).for_each(std::mem::forget);
    }
}

/// Works until the streams are dropped.
pub(super) fn run(shared: &Shared) {
    HERE.set(true);
    let _ending = Ending(shared);
    let mut active = Active(Vec::new());
    let mut streams: Vec<Arc<StreamState>> = Vec::new();
    let (mut idle, mut rounds) = (0_u32, 0_u64);
    let mut calls = u64::MAX;
    loop {
        let now = shared.control.lock().calls;
        if now != calls {
            calls = now;
            shared.remove_unused(&mut streams);
            active.0.extend(shared.take_started().into_iter().map(|message| Running { state: None, message }));
        }
        shared.rounds.fetch_add(1, Ordering::Release);
        let moved = turn(shared, &streams, &mut active.0);
        if moved {
            // Under the lock, so that no caller misses it between its look and its sleep.
            let _control = shared.control.lock();
            shared.done.notify_all();
        }
        let busy = !active.0.is_empty() || streams.iter().any(|state| !state.is_idle());
        let interval = match busy {
            true => None,
            false => {
                shared.close_unneeded();
                shared.rest_if_possible()
            }
        };
        let mut control = shared.control.lock();
        if control.stop {
            return;
        }
        if !busy && control.calls == calls {
            control.asleep = true;
            let mut over = false;
            while control.calls == calls && !control.stop && !over {
                match interval {
                    None => shared.wake.wait(&mut control),
                    // Nobody calls if a peer dies while a stream waits for it.
                    Some(interval) => over = shared.wake.wait_for(&mut control, interval).timed_out(),
                }
            }
            control.asleep = false;
            shared.rests.store(false, Ordering::SeqCst);
            (idle, rounds) = (0, 0);
            continue;
        }
        drop(control);
        shared.rests.store(false, Ordering::SeqCst);
        idle = if moved { 0 } else { idle.saturating_add(1) };
        rounds += 1;
        shared.engine.waited(rounds);
        if rounds.is_multiple_of(LOOK_EVERY) {
            check_contexts(shared, &streams, &mut active.0);
        }
        rest(idle);
    }
}

/// Does what can be done now. Returns whether something was.
fn turn(shared: &Shared, streams: &[Arc<StreamState>], active: &mut Vec<Running>) -> bool {
    let engine = &*shared.engine;
    let mut moved = false;
    for state in streams {
        moved |= state.start_due(engine, active);
    }
    moved |= engine.progress() != 0;
    moved |= shared.exchange.look(engine);
    let before = active.len();
    active.retain(|running| {
        let over = running.message.look();
        if let (true, Some(Err(_)), Some(state)) = (over, running.message.result(), &running.state) {
            state.note_failed(&running.message);
        }
        !over
    });
    moved |= active.len() != before;
    for state in streams {
        moved |= state.release();
    }
    moved
}

/// Ends what waits for streams and kernels of contexts that the program has destroyed, or in which a kernel has faulted.
#[cold]
fn check_contexts(shared: &Shared, streams: &[Arc<StreamState>], active: &mut Vec<Running>) {
    shared.kernels.check();
    let mut any = false;
    for state in streams {
        if let Err(error) = state.check() {
            // What the stream had reached before goes on.
            state.start_due(&shared.engine, active);
            state.end_unreached(&error);
            any = true;
        }
    }
    if any {
        let _control = shared.control.lock();
        shared.done.notify_all();
    }
}

/// Waits between two polls, the longer the less happens.
fn rest(idle: u32) {
    match idle {
        0 => {}
        1..SPINS => std::hint::spin_loop(),
        SPINS..PATIENCE => std::thread::yield_now(),
        _ => std::thread::sleep(NAP),
    }
}

/// The messages under way. The engine still uses their memory, so they outlive a panic.
struct Active(Vec<Running>);

impl Drop for Active {
    fn drop(&mut self) {
        for running in self.0.drain(..) {
            running.message.let_go();
            std::mem::forget(running);
        }
    }
}
