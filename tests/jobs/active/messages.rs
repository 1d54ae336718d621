//! Data of every size, messages that handlers post, and threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cableway::{ActiveMessage, World};

use super::{Findings, Outcome, content, expect};

const SIZES: [usize; 8] = [0, 8, 8116, 8117, 8192, 8193, 65_536, 1 << 20];

/// Receives the data of a message and checks it. The first word of the header is the seed of its content.
fn land_and_check(message: ActiveMessage<'_>, findings: &Findings) {
    let (source, len, findings) = (message.source(), message.len() as usize, findings.clone());
    let seed = word(message.header());
    message.receive(vec![0_u8; len], move |memory, result| {
        let right = result.is_ok_and(|bytes| bytes == len as u64) && memory == content(seed, len);
        findings.note(right, || format!("{len} bytes from rank {source} are damaged"));
    });
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(u32::MAX, |word| u32::from_le_bytes(*word))
}

/// Both ranks post data of every size to each other and to themselves: owned, and borrowed by a scope.
pub(super) fn sizes() -> Outcome {
    let world = World::init()?;
    let (me, peer) = (world.rank(), 1 - world.rank());
    let (findings, returned) = (Findings::default(), Findings::default());
    let seen = findings.clone();
    world.am_handler(7, move |message| land_and_check(message, &seen))?;
    let mut posted = 0;
    for (to, header_len) in [(peer, 4), (me, 4), (peer, cableway::AM_HEADER_LIMIT), (me, 100)] {
        for len in SIZES {
            let mut header = vec![0; header_len];
            let seed = me * 31 + len as u32;
            header[..4].copy_from_slice(&seed.to_le_bytes());
            let data = content(seed, len);
            world.post_am(to, 7, &header, data.clone())?;
            let (copy, back) = (data.clone(), returned.clone());
            world.poster().post_then(to, 7, &header, data.clone(), move |data, result| {
                back.note(result.is_ok() && data == copy, || format!("{len} bytes did not come back"));
            })?;
            world.communicator().scope(|scope| {
                let post = scope.post_am(&data, to, 7, &header)?;
                let status = post.wait()?;
                expect((status.source, status.bytes), (to, len as u64))
            })?;
            posted += 3;
        }
    }
    // As many come as this rank has posted.
    world.progress_until(|| findings.count() == posted && returned.count() == posted / 3);
    world.flush_am();
    expect(world.poster().pending(), 0)?;
    world.communicator().barrier()?;
    findings.check()?;
    returned.check()?;
    expect(world.am_counts().handled, posted as u64)
}

/// Tokens travel around a ring by handlers, until they have used up their hops at the rank that sent them.
pub(super) fn ring() -> Outcome {
    const TOKENS: u32 = 200;
    let world = World::options()?.set("pml_unexpected_limit", "64K")?.init()?;
    let (me, size) = (world.rank(), world.size());
    let next = (me + 1) % size;
    let (ended, findings) = (Arc::new(AtomicUsize::new(0)), Findings::default());
    let (done, seen) = (ended.clone(), findings.clone());
    let forward = move |message: ActiveMessage<'_>| {
        let (hops, poster, done, seen) = (word(message.header()), message.poster(), done.clone(), seen.clone());
        let memory = vec![0_u8; message.len() as usize];
        message.receive(memory, move |data, result| {
            seen.note(result.is_ok() && data == content(5, data.len()), || "a token is damaged".to_owned());
            if hops == 0 {
                done.fetch_add(1, Ordering::Release);
            } else if let Err(error) = poster.post(next, 1, &(hops - 1).to_le_bytes(), data) {
                seen.note(false, || error.to_string());
            }
        });
    };
    world.am_handler(1, forward)?;
    for token in 0..TOKENS {
        let len = [8, 1000, 20_000][token as usize % 3];
        world.post_am(next, 1, &(size * 10 - 1).to_le_bytes(), content(5, len))?;
    }
    world.progress_until(|| ended.load(Ordering::Acquire) == TOKENS as usize);
    // Waits in the barrier, where it forwards the tokens of others.
    world.communicator().barrier()?;
    findings.check()
}

/// All ranks flood rank 0 without a pause. Its handler answers every message with data of the same length.
pub(super) fn flood() -> Outcome {
    const MESSAGES: u32 = 3000;
    let world = World::options()?.set("pml_unexpected_limit", "64K")?.init()?;
    let (me, others) = (world.rank(), world.size() - 1);
    let answers = Findings::default();
    let seen = answers.clone();
    let next = Arc::new((0..world.size()).map(|_| AtomicU32::new(0)).collect::<Vec<_>>());
    let order = answers.clone();
    world.am_handler(1, move |message| {
        let (source, number) = (message.source(), word(message.header()));
        let expected = next[source as usize].fetch_add(1, Ordering::Relaxed);
        if number != expected {
            order.note(false, || format!("message {number} of rank {source} instead of {expected}"));
        }
        if let Err(error) = message.reply(2, message.header(), content(number, message.len() as usize)) {
            order.note(false, || error.to_string());
        }
    })?;
    world.am_handler(2, move |message| land_and_check(message, &seen))?;
    world.communicator().barrier()?;
    if me != 0 {
        for number in 0..MESSAGES {
            let len = [0, 8, 3000, 10_000][number as usize % 4];
            world.post_am(0, 1, &number.to_le_bytes(), content(0, len))?;
        }
        world.progress_until(|| answers.count() == MESSAGES as usize);
    }
    world.communicator().barrier()?;
    answers.check()?;
    let handled = if me == 0 { others * MESSAGES } else { MESSAGES };
    expect(world.am_counts().handled, u64::from(handled))
}

/// Ten threads of each rank post at once. The messages of each thread stay in order.
pub(super) fn threads() -> Outcome {
    const THREADS: usize = 10;
    const MESSAGES: u32 = 200;
    let world = World::init()?;
    let peer = 1 - world.rank();
    let findings = Findings::default();
    let next: Vec<AtomicU32> = (0..THREADS).map(|_| AtomicU32::new(0)).collect();
    let seen = findings.clone();
    world.am_handler(1, move |message| {
        let (number, thread) = (word(message.header()), word(&message.header()[4..]));
        let expected = next[thread as usize].fetch_add(1, Ordering::Relaxed);
        if number != expected {
            seen.note(false, || format!("message {number} of thread {thread} instead of {expected}"));
        }
        land_and_check(message, &seen);
    })?;
    let failures = Findings::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u32 {
            let (world, failures) = (&world, &failures);
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let header = [number.to_le_bytes(), thread.to_le_bytes()].concat();
                    let len = [0, 8, 8116, 8117, 65_536][number as usize % 5];
                    if let Err(error) = world.post_am(peer, 1, &header, content(number, len)) {
                        failures.note(false, || error.to_string());
                    }
                }
                world.flush_am();
            });
        }
    });
    failures.check()?;
    world.progress_until(|| findings.count() >= THREADS * MESSAGES as usize);
    world.communicator().barrier()?;
    findings.check()
}
