//! Ranks that die, and the errors of the others.

use std::error::Error;
use std::time::{Duration, Instant};

use cableway::{Any, Communicator, EngineError, World};

use crate::support::{Finished, Role, SOON, Test, finish, over, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("faults::a_killed_peer_is_an_error_soon", || every_transport("peer_dies")),
    ("faults::a_peer_killed_in_mid_message_is_an_error_soon", || every_transport("dies_in_mid_message")),
    ("faults::the_last_messages_of_a_peer_that_left_arrive", || every_transport("peer_leaves")),
];

pub(crate) const ROLES: &[Role] =
    &[("peer_dies", peer_dies), ("dies_in_mid_message", dies_in_mid_message), ("peer_leaves", peer_leaves)];

type Outcome = Result<(), Box<dyn Error>>;

/// Ranks 0 and 2 survive rank 1, which is killed by a signal of its own.
pub(crate) fn every_transport(role: &str) {
    for btl in &transports() {
        let options = over(btl);
        let options: Vec<&str> = std::iter::once("--keep-going").chain(options.iter().map(String::as_str)).collect();
        survived_all(btl, finish(&mut role_job(3, &options, role)));
    }
}

/// Checks that two of three ranks survived.
pub(crate) fn survived_all(btl: &str, finished: Finished) {
    let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
    assert_eq!(survived, 2, "{btl}: {finished:#?}");
}

pub(crate) fn survived() -> Outcome {
    println!("survived");
    Ok(())
}

pub(crate) fn kill_myself() -> Outcome {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Err("still alive".into())
}

/// Checks that `operation` soon fails with an error about rank 1.
pub(crate) fn fails_soon(what: &str, operation: impl FnOnce() -> Result<(), cableway::Error>) -> Outcome {
    let start = Instant::now();
    let error = operation().err().ok_or_else(|| format!("{what} worked with a dead peer"))?;
    if start.elapsed() > SOON {
        return Err(format!("{what} took {:?}", start.elapsed()).into());
    }
    match error.engine_error() {
        Some(EngineError::PeerFailed { peer: 1, .. }) => Ok(()),
        _ => Err(format!("{what}: {error}").into()),
    }
}

/// Checks that the survivors can still exchange messages.
pub(crate) fn others_go_on(on: &Communicator) -> Outcome {
    let other = 2 - on.rank();
    for _ in 0..100 {
        let (out, mut inbox) = (vec![on.rank(); 10_000], vec![9; 10_000]);
        on.sendrecv(&out, (other, 50), &mut inbox, (other, 50))?;
        if inbox != vec![other; 10_000] {
            return Err("the survivors' messages are damaged".into());
        }
    }
    Ok(())
}

fn peer_dies() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    on.barrier()?;
    if world.rank() == 1 {
        // The others wait for messages by now or soon.
        std::thread::sleep(Duration::from_millis(200));
        return kill_myself();
    }
    fails_soon("receive", || on.recv(&mut [0_u8; 100], 1, 0).map(drop))?;
    fails_soon("receive of more", || on.recv(&mut vec![0_u8; 1 << 20], 1, 0).map(drop))?;
    fails_soon("synchronous send", || on.ssend(&[1_u8], 1, 0))?;
    fails_soon("probe", || on.probe(1, Any).map(drop))?;
    others_go_on(on)?;
    survived()
}

fn dies_in_mid_message() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let mut memory = vec![0_u8; 64 << 20];
    on.barrier()?;
    if world.rank() == 1 {
        return on.scope(|scope| {
            // Announced to both. The rank dies however much of the message they have fetched.
            let _sends = [scope.isend(&memory, 0, 0)?, scope.isend(&memory, 2, 0)?];
            on.recv(&mut [0_u8; 1], Any, 1)?;
            on.recv(&mut [0_u8; 1], Any, 1)?;
            kill_myself()
        });
    }
    on.probe(1, 0)?;
    on.send(&[0_u8], 1, 1)?;
    let start = Instant::now();
    // Depending on the time of death, the first message may have arrived completely.
    let first = on.recv(&mut memory, 1, 0).map(drop);
    fails_soon("receive", || first.and_then(|()| on.recv(&mut memory, 1, 0).map(drop)))?;
    if start.elapsed() > SOON {
        return Err(format!("it took {:?}", start.elapsed()).into());
    }
    others_go_on(on)?;
    survived()
}

fn peer_leaves() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().clone();
    on.barrier()?;
    if world.rank() == 1 {
        // Messages that were sent before still arrive.
        on.send(&[7_u8; 1000], 0, 0)?;
        on.send(&[7_u8; 1000], 2, 0)?;
        drop(on);
        world.finalize();
        return Ok(());
    }
    let mut inbox = [0_u8; 1000];
    on.recv(&mut inbox, 1, 0)?;
    if inbox != [7; 1000] {
        return Err("the last message is damaged".into());
    }
    others_go_on(&on)?;
    survived()
}
