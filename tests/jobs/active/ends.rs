//! Mistakes, panics, and ranks that die, leave or fork.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cableway::{EngineError, World};
use parking_lot::Mutex;

use super::{Findings, Outcome, content, expect};
use crate::faults::{kill_myself, others_go_on, survived};
use crate::support::SOON;

pub(super) fn mistakes() -> Outcome {
    let world = World::init()?;
    let peer = 1 - world.rank();
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    world.am_handler(1, move |message| {
        assert!(message.header() != b"bad", "this panic is a part of the test");
        count.fetch_add(1, Ordering::Relaxed);
    })?;
    // The end of this rank's messages.
    let last = Arc::new(AtomicUsize::new(0));
    let count = last.clone();
    world.am_handler(2, move |_| drop(count.fetch_add(1, Ordering::Release).to_string()))?;
    let again = world.am_handler(1, |_| {});
    expect(matches!(engine_error(again), Some(EngineError::HandlerInUse { id: 1 })), true)?;
    world.communicator().barrier()?;
    let long = vec![0; cableway::AM_HEADER_LIMIT + 1];
    let error = engine_error(world.post_am(peer, 1, &long, [0_u8; 4]));
    expect(matches!(error, Some(EngineError::HeaderTooLong { id: 1, .. })), true)?;
    for to in [2, u32::MAX, u32::MAX - 1] {
        let error = engine_error(world.post_am(to, 1, b"", [0_u8; 4]));
        expect(matches!(error, Some(EngineError::NoSuchRank { .. })), true)?;
    }
    for len in [4, 100_000] {
        world.post_am(peer, 99, b"no handler has this id", vec![1_u8; len])?;
        world.post_am(peer, 1, b"bad", vec![1_u8; len])?;
        // Handlers take no data, so it is dropped, and every post ends.
        world.post_am(peer, 1, &long[1..], vec![1_u8; len])?;
    }
    world.flush_am();
    world.post_am(peer, 2, b"", [0_u8; 0])?;
    world.progress_until(|| last.load(Ordering::Acquire) == 1);
    world.communicator().barrier()?;
    let counts = world.am_counts();
    expect((counts.handled, counts.unknown, counts.panicked), (5, 2, 2))?;
    expect(handled.load(Ordering::Relaxed), 2)
}

fn engine_error(result: Result<(), cableway::Error>) -> Option<EngineError> {
    result.err()?.engine_error().cloned()
}

/// Rank 1 announces more data than its peers can fetch before it dies, and is killed in a handler.
pub(super) fn dies() -> Outcome {
    const LEN: usize = 64 << 20;
    let world = World::init()?;
    let results = Arc::new(Mutex::new(Vec::new()));
    let landed = results.clone();
    world.am_handler(1, move |message| {
        let landed = landed.clone();
        let source = message.source();
        // The peer dies once both survivors have seen its message.
        let posted = message.reply(2, b"", [0_u8; 0]).map_err(|error| error.to_string());
        message.receive(vec![0_u8; LEN], move |_, result| landed.lock().push((source, posted, result.map(drop))));
    })?;
    let asked = AtomicUsize::new(0);
    world.am_handler(2, move |_| {
        if asked.fetch_add(1, Ordering::Relaxed) == 1 {
            let _ = kill_myself();
        }
    })?;
    world.am_handler(3, |_| ())?;
    world.communicator().barrier()?;
    if world.rank() == 1 {
        for to in [0, 2] {
            world.post_am(to, 1, b"", vec![1_u8; LEN])?;
        }
        world.progress_until(|| false);
    }
    let start = Instant::now();
    world.progress_until(|| !results.lock().is_empty() || start.elapsed() > SOON);
    // Depending on the time of death, the data may have arrived completely.
    match results.lock().first() {
        Some((1, Ok(()), Ok(()))) => {}
        Some((1, Ok(()), Err(error))) => {
            let dead = matches!(error.engine_error(), Some(EngineError::PeerFailed { peer: 1, .. }));
            expect(dead, true).map_err(|_| error.to_string())?;
        }
        other => return Err(format!("the landing ended with {other:?}").into()),
    }
    // Posts fail as soon as the death is noticed. Until then they may reach a rank that lives: it answers nothing.
    let mut error = None;
    world.progress_until(|| {
        error = engine_error(world.post_am(1, 3, b"", [0_u8; 8]));
        error.is_some() || start.elapsed() > SOON
    });
    expect(matches!(error, Some(EngineError::PeerFailed { peer: 1, .. })), true)?;
    world.flush_am();
    others_go_on(world.communicator())?;
    survived()
}

/// Rank 0 posts and leaves at once. Its data still arrives.
pub(super) fn leaves() -> Outcome {
    const SIZES: [usize; 4] = [8, 9000, 100_000, 3 << 20];
    let world = World::init()?;
    let findings = Findings::default();
    let seen = findings.clone();
    world.am_handler(1, move |message| {
        let (len, seen) = (message.len() as usize, seen.clone());
        message.receive(vec![0_u8; len], move |data, result| {
            seen.note(result.is_ok() && data == content(1, len), || format!("{len} bytes are damaged"));
        });
    })?;
    world.communicator().barrier()?;
    if world.rank() == 0 {
        for len in SIZES {
            world.post_am(1, 1, b"", content(1, len))?;
        }
        return expect(world.finalize(), true);
    }
    world.progress_until(|| findings.count() == SIZES.len());
    findings.check()
}

/// A forked child cannot post or register. Its parent goes on.
pub(super) fn forks() -> Outcome {
    let world = World::init()?;
    let peer = 1 - world.rank();
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    world.am_handler(1, move |_| drop(count.fetch_add(1, Ordering::Release).to_string()))?;
    world.communicator().barrier()?;
    // SAFETY: the child calls this library, which takes no lock of the parent there, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |result| matches!(engine_error(result), Some(EngineError::Forked));
        let refused = forked(world.post_am(peer, 1, b"", [0_u8; 8]))
            && forked(world.post_am(peer, 1, b"", vec![0_u8; 100_000]))
            && forked(world.am_handler(2, |_| {}))
            && world.progress() == 0;
        drop(world);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for this process's own child.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    expect((waited, status), (child, 0))?;
    world.post_am(peer, 1, b"", vec![0_u8; 100_000])?;
    world.progress_until(|| handled.load(Ordering::Acquire) == 1);
    world.flush_am();
    Ok(world.communicator().barrier()?)
}
