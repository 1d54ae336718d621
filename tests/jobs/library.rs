//! Programs that use the library, as jobs of several processes.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cableway::{Any, AttachedBuffer, Communicator, Datatype, EngineError, Predefined, TypedSlice, World};

use crate::support::{Role, Test, finish, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("library::every_mode_and_size", || every_transport("modes", 2)),
    ("library::wildcards_and_probes", || every_transport("wildcards", 3)),
    ("library::scopes", || every_transport("scopes", 2)),
    ("library::leaked_requests_are_waited_for", || every_transport("leak", 2)),
    ("library::persistent_requests", || every_transport("persistent", 2)),
    ("library::communicators_are_kept_apart", || every_transport("communicators", 4)),
    ("library::many_ranks", || every_transport("all_to_all", 8)),
    ("library::threads", || every_transport("threads", 2)),
    ("library::messages_to_oneself", || drop(finish(&mut role_job(1, &[], "oneself")).assert_success())),
    ("library::mistakes_are_named", || every_transport("mistakes", 2)),
    ("library::a_thread_makes_progress", || every_transport("progress_thread", 2)),
    ("library::large_messages", || every_transport("large", 2)),
    ("library::who_waits_for_long_sleeps", || every_transport("sleeper", 2)),
    ("library::messages_wake_sleepers", || every_transport("sleepers", 2)),
];

pub(crate) const ROLES: &[Role] = &[
    ("modes", modes),
    ("wildcards", wildcards),
    ("scopes", scopes),
    ("leak", leak),
    ("persistent", persistent),
    ("communicators", communicators),
    ("all_to_all", all_to_all),
    ("threads", threads),
    ("oneself", oneself),
    ("mistakes", mistakes),
    ("progress_thread", progress_thread),
    ("large", large),
    ("sleeper", sleeper),
    ("sleepers", sleepers),
];

type Outcome = Result<(), Box<dyn Error>>;

fn every_transport(role: &str, ranks: u32) {
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        finish(&mut role_job(ranks, &["--set", &btl], role)).assert_success();
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}

/// What rank `from` sends as its message `number`.
fn values(from: u32, number: usize, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ from << 28 ^ number as u32).collect()
}

const SIZES: [usize; 9] = [0, 1, 2, 100, 1000, 1100, 5000, 20_000, 300_000];

fn modes() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for (number, len) in SIZES.into_iter().enumerate() {
        let (out, mut inbox) = (values(me, number, len), vec![0; len]);
        for mode in ["standard", "synchronous", "ready", "buffered"] {
            let room = AttachedBuffer::new(&world, len * 4 + AttachedBuffer::OVERHEAD);
            let send = |on: &Communicator| match mode {
                "standard" => on.send(&out, peer, 5),
                "synchronous" => on.ssend(&out, peer, 5),
                "ready" => on.rsend(&out, peer, 5),
                _ => on.bsend(&out, peer, 5, &room),
            };
            inbox.fill(0);
            if me == 0 {
                send(on)?;
                on.recv(&mut inbox, peer, 5)?;
            } else {
                let status = on.recv(&mut inbox, peer, 5)?;
                expect((status.source, status.tag, status.count::<u32>()), (peer, 5, Some(len as u64)))?;
                send(on)?;
            }
            expect(&inbox, &values(peer, number, len))?;
        }
        // Both ranks send first: only the attached buffer keeps that from a deadlock.
        let room = AttachedBuffer::new(&world, len * 4 + AttachedBuffer::OVERHEAD);
        on.bsend(&out, peer, 6, &room)?;
        on.recv(&mut inbox, peer, 6)?;
        expect(&inbox, &values(peer, number, len))?;
        inbox.fill(0);
        on.sendrecv(&out, (peer, 7), &mut inbox, (peer, 7))?;
        expect(&inbox, &values(peer, number, len))?;
    }
    Ok(())
}

fn wildcards() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    if world.rank() != 0 {
        for number in 0..10 {
            on.send(&values(world.rank(), number, 50 * number), 0, number as i32)?;
        }
        on.barrier()?;
        return Ok(());
    }
    let mut counts = [0; 3];
    for _ in 0..5 * 2 {
        let mut inbox = vec![0_u32; 450];
        let status = on.recv(&mut inbox, Any, Any)?;
        let number = counts[status.source as usize];
        expect(status.tag, number)?;
        let len = status.count::<u32>().ok_or("half a number came")? as usize;
        expect(&inbox[..len], &values(status.source, number as usize, 50 * number as usize))?;
        counts[status.source as usize] += 1;
    }
    for source in [1, 2] {
        let first = counts[source as usize];
        // By tag, out of order.
        for number in (first..10).rev() {
            let probed = on.probe(source, number)?;
            expect(on.iprobe(source, Any)?.map(|status| status.tag), Some(first))?;
            let message = on.mprobe(source, number)?;
            expect(message.status(), probed)?;
            expect(on.iprobe(source, number)?, None)?;
            let mut inbox = vec![0_u32; 50 * number as usize];
            message.recv(&mut inbox)?;
            expect(&inbox, &values(source, number as usize, 50 * number as usize))?;
            if number == first {
                break;
            }
        }
    }
    expect(on.improbe(Any, Any)?.is_none(), true)?;
    on.barrier()?;
    Ok(())
}

fn scopes() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let out: Vec<_> = SIZES.into_iter().enumerate().map(|(number, len)| values(me, number, len)).collect();
    let mut inbox: Vec<_> = SIZES.map(|len| vec![0_u32; len]).into();
    on.scope(|scope| {
        let mut receives = Vec::new();
        for (number, room) in inbox.iter_mut().enumerate() {
            receives.push(scope.irecv(room, peer, number as i32)?);
        }
        let sends: Vec<_> = out
            .iter()
            .enumerate()
            .map(|(number, data)| scope.isend(data, peer, number as i32))
            .collect::<Result<_, _>>()?;
        while let Some(index) = scope.wait_any(&receives) {
            let request = receives.swap_remove(index);
            if !request.is_complete() {
                return Err("a request that was waited for is not complete".into());
            }
            let status = request.wait()?;
            expect(status.bytes, 4 * SIZES[status.tag as usize] as u64)?;
        }
        for (number, send) in sends.into_iter().enumerate() {
            let status = send.wait()?;
            expect((status.source, status.tag), (peer, number as i32))?;
        }
        Ok::<_, Box<dyn Error>>(())
    })?;
    for (number, (found, len)) in inbox.iter().zip(SIZES).enumerate() {
        expect(found, &values(peer, number, len))?;
    }
    // A synchronous send is not complete before its receive has begun.
    let (data, mut room) = ([7_u8; 3], [0_u8; 3]);
    on.scope(|scope| {
        let send = scope.issend(&data, peer, 100)?;
        expect(send.is_complete(), false)?;
        on.barrier()?;
        on.recv(&mut room, peer, 100)?;
        send.wait()?;
        Ok::<_, Box<dyn Error>>(())
    })?;
    // A receive that nothing has matched is cancelled, one that has matched is not.
    let (mut never, mut matched) = ([0_u8; 1], [0_u8; 1]);
    on.scope(|scope| {
        let never = scope.irecv(&mut never, peer, 101)?;
        let matched = scope.irecv(&mut matched, peer, 102)?;
        on.send(&[1_u8], peer, 102)?;
        // Messages between two ranks do not overtake: after this, tag 102 has come.
        on.barrier()?;
        expect(never.cancel()?, None)?;
        expect(matched.cancel()?.map(|status| status.tag), Some(102))
    })?;
    expect(matched, [1])
}

/// Requests are dropped and leaked; the end of the scope waits for what they are about all the same.
fn leak() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for len in [10, 1000, 300_000] {
        let (out, mut inbox) = (values(me, len, len), vec![0_u32; len]);
        on.scope(|scope| {
            let _leaked = std::mem::ManuallyDrop::new(scope.irecv(&mut inbox, peer, 0)?);
            let _dropped = scope.isend(&out, peer, 0)?;
            Ok::<_, cableway::Error>(())
        })?;
        expect(&inbox, &values(peer, len, len))?;
    }
    // A panic within the scope cancels what nobody has answered, instead of waiting for it forever.
    let mut inbox = [0_u8; 8];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        on.scope(|scope| {
            let _leaked = scope.irecv(&mut inbox, peer, 1);
            panic!("this panic is part of the test");
        })
    }));
    expect(panicked.is_err(), true)?;
    Ok(on.barrier()?)
}

fn persistent() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for len in [0, 100, 100_000] {
        let (mut out, mut inbox) = (vec![0_u32; len], vec![0_u32; len]);
        on.scope(|scope| {
            let mut send = scope.send_init(&mut out, peer, 3)?;
            let mut receive = scope.recv_init(&mut inbox, peer, 3)?;
            for round in 0..10 {
                send.buffer_mut()
                    .ok_or("an inactive request keeps its buffer")?
                    .copy_from_slice(&values(me, round, len));
                receive.start()?;
                send.start()?;
                let status = receive.wait()?;
                expect(status.bytes, 4 * len as u64)?;
                let status = send.wait()?;
                expect((status.source, status.tag, status.bytes), (peer, 3, 4 * len as u64))?;
                expect(receive.buffer(), Some(&values(peer, round, len)))?;
            }
            // Under way until the peer answers below: nobody has its buffer meanwhile.
            receive.start()?;
            expect(receive.buffer().is_none() && receive.start().is_err(), true)?;
            on.barrier()?;
            send.start()?;
            send.wait()?;
            receive.wait()?;
            Ok::<_, Box<dyn Error>>(())
        })?;
    }
    Ok(())
}

fn communicators() -> Outcome {
    let world = World::init()?;
    let (on, me) = (world.communicator(), world.rank());
    let (next, previous) = ((me + 1) % 4, (me + 3) % 4);
    // The same source and tag on three communicators; received in another order than sent.
    let copies = [on.dup()?, on.dup()?];
    let all = [on, &copies[0], &copies[1]];
    for (number, on) in all.into_iter().enumerate() {
        on.send(&[10 * me + number as u32], next, 0)?;
    }
    for (number, on) in all.into_iter().enumerate().rev() {
        let mut inbox = [0];
        on.recv(&mut inbox, Any, Any)?;
        expect(inbox, [10 * previous + number as u32])?;
    }
    // Even and odd ranks, in reverse order; rank 3 takes no part.
    let half = on.split((me != 3).then_some(me % 2), -(me as i32))?;
    match (&half, me) {
        (None, 3) => {}
        (Some(half), 0 | 2) => {
            expect((half.group(), half.rank()), (&[2, 0][..], u32::from(me == 0)))?;
            let mut inbox = [0];
            let other = 1 - half.rank();
            half.sendrecv(&[me], (other, 0), &mut inbox, (other, 0))?;
            expect(inbox, [2 - me])?;
            // A communicator of a communicator.
            let again = half.dup()?;
            expect(again.group(), half.group())?;
            again.barrier()?;
        }
        (Some(half), 1) => expect(half.group(), &[1][..])?,
        (half, _) => return Err(format!("{half:?}").into()),
    }
    // Many that come and go; what was sent on them and not received does not come out of the next one.
    for round in 0..100 {
        let copy = on.dup()?;
        copy.send(&[round], next, 1)?;
        if round % 2 == 0 {
            let mut inbox = [u32::MAX];
            copy.recv(&mut inbox, previous, 1)?;
            expect(inbox, [round])?;
        }
    }
    Ok(on.barrier()?)
}

fn all_to_all() -> Outcome {
    let world = World::init()?;
    let (on, me, size) = (world.communicator(), world.rank(), world.size());
    for len in [1, 3000, 50_000] {
        let out: Vec<_> = (0..size).map(|to| values(me, to as usize, len)).collect();
        let mut inbox = vec![vec![0_u32; len]; size as usize];
        on.scope(|scope| {
            let mut requests = Vec::new();
            for (from, room) in (0..).zip(&mut inbox) {
                requests.push(scope.irecv(room, from, 0)?);
            }
            for (to, data) in (0..).zip(&out) {
                requests.push(scope.isend(data, to, 0)?);
            }
            requests.into_iter().try_for_each(|request| request.wait().map(drop))
        })?;
        for (from, found) in (0..).zip(&inbox) {
            expect(found, &values(from, me as usize, len))?;
        }
    }
    Ok(on.barrier()?)
}

/// Threads that talk to their counterparts, each on a communicator of its own, and all on one with tags of their own.
fn threads() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let own: Vec<_> = (0..4).map(|_| on.dup()).collect::<Result<_, _>>()?;
    let failures = AtomicUsize::new(0);
    let exchange = |on: &Communicator, thread: usize| -> Outcome {
        for round in 0..200 {
            let len = [1, 700, 20_000][round % 3];
            let number = 1000 * thread + round;
            let mut inbox = vec![0_u32; len];
            on.sendrecv(&values(me, number, len), (peer, thread as i32), &mut inbox, (peer, thread as i32))?;
            expect(&inbox, &values(peer, number, len))?;
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        for (thread, own) in own.iter().enumerate() {
            let (exchange, failures) = (&exchange, &failures);
            for on in [own, on] {
                threads.spawn(move || {
                    if let Err(error) = exchange(on, thread) {
                        eprintln!("thread {thread}: {error}");
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
    });
    expect(failures.into_inner(), 0)?;
    Ok(on.barrier()?)
}

fn oneself() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    on.barrier()?;
    for len in SIZES {
        let (out, mut inbox) = (values(0, len, len), vec![0_u32; len]);
        on.sendrecv(&out, (0, 0), &mut inbox, (0, 0))?;
        expect(&inbox, &out)?;
    }
    on.send(&[5_u8], 0, 9)?;
    expect(on.recv_vec::<u8>(Any, Any)?.0, vec![5])?;
    let copy = on.dup()?;
    expect(copy.iprobe(Any, Any)?, None)
}

fn mistakes() -> Outcome {
    let world = World::init()?;
    let (on, peer) = (world.communicator(), 1 - world.rank());
    let text = |result: Result<_, cableway::Error>| result.map(drop).map_err(|error| error.to_string());
    let error = text(on.send(&[1_u64, 2], 7, 3).map(|()| 0)).err().unwrap_or_default();
    expect(error.contains("send of 16 bytes to rank 7, tag 3") && error.contains("none of the communicator's 2"), true)
        .map_err(|_| error)?;
    let error = text(on.send(&[1_u8], peer, -3).map(|()| 0)).err().unwrap_or_default();
    expect(error.contains("tag -3"), true).map_err(|_| error)?;
    expect(on.recv(&mut [0_u8], peer, -16).is_err(), true)?;
    // A message that is too long fills the buffer and says so; the next one is whole.
    for len in [100_usize, 300_000] {
        on.scope(|scope| {
            let (long, short) = (scope.isend(LONG.get(..len).unwrap_or(LONG), peer, 4)?, scope.isend(&[9_u8], peer, 4)?);
            let mut inbox = vec![0_u8; 64];
            let error = on.recv(&mut inbox, peer, 4).err().ok_or("a truncated message is no error")?;
            let truncated = matches!(error.engine_error(), Some(EngineError::Truncated { sent, room: 64, .. }) if *sent == len as u64);
            expect(truncated && inbox.iter().all(|&byte| byte == 3), true).map_err(|_| error)?;
            expect(on.recv_vec::<u8>(peer, 4)?.0, vec![9])?;
            long.wait()?;
            short.wait()?;
            Ok::<_, Box<dyn Error>>(())
        })?;
    }
    expect(on.send(&[1_u8, 2, 3], peer, 5).is_ok(), true)?;
    let error = on.recv_vec::<u16>(peer, 5).map(drop).err().map(|error| error.to_string()).unwrap_or_default();
    expect(error.contains("3 bytes"), true).map_err(|_| error)?;
    no_memory_for_a_message(on, world.rank())?;
    if World::init().is_ok() {
        return Err("a process joined its job twice".into());
    }
    Ok(on.barrier()?)
}

/// A message of 2^60 bytes: the sender has a mebibyte of them and sends it over and over.
fn no_memory_for_a_message(on: &Communicator, me: u32) -> Outcome {
    let memory = vec![0_u8; 1 << 20];
    let mebibyte = Datatype::contiguous(memory.len() as i64, &Predefined::Byte.datatype())?;
    let layout = Datatype::resized(&mebibyte, 0, 0)?.commit();
    let error = if me == 0 {
        on.send(&TypedSlice::new(&memory, 1 << 40, &layout)?, 1, 6)
    } else {
        on.recv_vec::<u8>(0, 6).map(drop)
    };
    let error = error.err().ok_or("there is no room for such a message")?.to_string();
    let reason = if me == 0 { "discarded" } else { "no memory for a message of 1152921504606846976 bytes" };
    expect(error.contains(reason), true).map_err(|_| error)?;
    // The next message is received as any other.
    let next = if me == 0 { on.send(&[4_u8], 1, 6).map(|()| vec![4]) } else { on.recv_vec(0, 6).map(|next| next.0) };
    expect(next?, vec![4_u8])
}

static LONG: &[u8] = &[3; 300_000];

/// A file that a process leaves when it has sent its message.
fn sent(process: u32) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("cableway-progress-{process}"))
}

fn progress_thread() -> Outcome {
    let world = World::options()?.set("progress_thread", "yes")?.init()?;
    let on = world.communicator();
    let out = values(0, 0, 1 << 20);
    let mut name = [std::process::id()];
    if world.rank() == 0 {
        on.send(&name, 1, 1)?;
        on.barrier()?;
        on.ssend(&out, 1, 0)?;
        std::fs::write(sent(name[0]), "")?;
        on.barrier()?;
        std::fs::remove_file(sent(name[0]))?;
    } else {
        on.recv(&mut name, 0, 1)?;
        let mut inbox = vec![0_u32; out.len()];
        on.scope(|scope| {
            let coming = scope.irecv(&mut inbox, 0, 0)?;
            on.barrier()?;
            // No call of the library until the message has been sent.
            while !sent(name[0]).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            coming.wait()
        })?;
        expect(inbox == out, true)?;
        on.barrier()?;
    }
    Ok(())
}

fn large() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let out = values(0, 1, 40 << 20);
    if world.rank() == 0 {
        on.send(&out, 1, 0)?;
    } else {
        let mut inbox = vec![0_u32; out.len()];
        on.recv(&mut inbox, 0, 0)?;
        expect(inbox == out, true)?;
    }
    Ok(())
}

/// Rank 1 waits for two seconds.
fn sleeper() -> Outcome {
    let world = World::options()?.set("pml_sleep_after", "3000")?.init()?;
    let on = world.communicator();
    let wait = Duration::from_secs(2);
    on.barrier()?;
    if world.rank() == 0 {
        std::thread::sleep(wait);
        return Ok(on.send(&[7_u8], 1, 0)?);
    }
    let (start, before) = (Instant::now(), processor_time());
    let mut inbox = [0_u8];
    on.recv(&mut inbox, 0, 0)?;
    let (took, used) = (start.elapsed(), processor_time() - before);
    expect(inbox, [7])?;
    // Shared memory wakes nobody, so that whoever uses it goes on polling.
    let sleeps = std::env::var("CABLEWAY_BTL").is_ok_and(|btl| btl != "sm");
    if sleeps && used > took / 2 {
        return Err(format!("{used:?} of the processor in {took:?}").into());
    }
    Ok(())
}

/// Of all threads of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// There and back, after pauses in which the other one falls asleep, has just done so, or has not yet.
fn sleepers() -> Outcome {
    let world = World::options()?.set("pml_sleep_after", "1")?.set("pml_spin", "0")?.init()?;
    let on = world.communicator();
    let peer = 1 - world.rank();
    let mut random = world.rank() + 1;
    let mut inbox = [0_u32; 2];
    for round in 0..2000 {
        let message = [round, world.rank()];
        if world.rank() == 0 {
            on.send(&message, peer, 0)?;
        }
        on.recv(&mut inbox, peer, 0)?;
        expect(inbox, [round, peer])?;
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        for _ in 0..random >> 18 {
            std::hint::spin_loop();
        }
        if world.rank() == 1 {
            on.send(&message, peer, 0)?;
        }
    }
    Ok(())
}
