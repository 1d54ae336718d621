//! Ranks that leave the job, perhaps before they were connected, and the errors of the others.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cableway::{Any, Communicator, EngineError, World};

use crate::faults::{kill_myself, others_go_on, survived};
use crate::support::{PATIENT, Role, SOON, Test, finish, over, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("leaving::waiting_for_a_peer_that_left_fails", || on_every_transport(3, "one_leaves", 2)),
    ("leaving::a_receive_from_any_waits_for_the_last_peer", || on_every_transport(3, "all_leave", 1)),
    ("leaving::a_peer_that_left_before_connecting_is_detected", || on_every_transport(3, "leaves_unmet", 2)),
    ("leaving::an_unconnected_peer_that_leaves_during_a_wait_is_detected", || {
        on_every_transport(3, "leaves_unmet_later", 2);
    }),
    ("leaving::a_peer_killed_before_connecting_is_detected", || on_every_transport(3, "dies_unmet", 2)),
    ("leaving::an_unconnected_peer_killed_during_a_wait_is_detected", || on_every_transport(3, "dies_unmet_later", 2)),
    ("leaving::ranks_may_end_at_different_times_without_warnings", || on_every_transport(4, "staggered_ends", 4)),
    ("leaving::a_cancelled_receive_survives_its_sender", || on_every_transport(2, "cancels", 1)),
    ("leaving::the_only_message_of_a_peer_arrives", || on_every_transport(6, "only_messages", 6)),
];

pub(crate) const ROLES: &[Role] = &[
    ("one_leaves", one_leaves),
    ("all_leave", all_leave),
    ("leaves_unmet", || unmet(Duration::ZERO, false)),
    ("leaves_unmet_later", || unmet(LATER, false)),
    ("dies_unmet", || unmet(Duration::ZERO, true)),
    ("dies_unmet_later", || unmet(LATER, true)),
    ("staggered_ends", staggered_ends),
    ("cancels", cancels),
    ("only_messages", only_messages),
];

type Outcome = Result<(), Box<dyn Error>>;

/// Long enough for the others to wait in most runs. The test passes in any case.
const LATER: Duration = Duration::from_millis(200);

/// The tag of messages of ranks that are about to wait.
const WAITS: i32 = 9;

/// Runs a job over each transport, and with the transports that the engine chooses. Checks how many ranks survived.
fn on_every_transport(ranks: u32, role: &str, survivors: usize) {
    let any = ["--set", PATIENT].map(str::to_owned).to_vec();
    for options in transports().iter().map(|btl| over(btl)).chain([any]) {
        let options: Vec<&str> = std::iter::once("--keep-going").chain(options.iter().map(String::as_str)).collect();
        let finished = finish(&mut role_job(ranks, &options, role));
        let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
        assert_eq!(survived, survivors, "{options:?}: {finished:#?}");
    }
}

/// Checks that `operation` soon fails with an error about `peer` for which `is` holds.
fn ends_soon<T>(
    what: &str,
    is: fn(&EngineError, u32) -> bool,
    peer: u32,
    operation: impl FnOnce() -> Result<T, cableway::Error>,
) -> Outcome {
    let start = Instant::now();
    let error = operation().err().ok_or_else(|| format!("{what} worked with a peer that is gone"))?;
    if start.elapsed() > SOON {
        return Err(format!("{what} took {:?}", start.elapsed()).into());
    }
    match error.engine_error() {
        Some(engine) if is(engine, peer) => Ok(()),
        _ => Err(format!("{what}: {error}").into()),
    }
}

fn has_left(error: &EngineError, of: u32) -> bool {
    matches!(error, EngineError::PeerLeft { peer } if *peer == of)
}

/// The left rank's offer of a message is refused.
fn gave_up(error: &EngineError, of: u32) -> bool {
    has_left(error, of) || matches!(error, EngineError::PeerAborted { peer, .. } if *peer == of)
}

/// A peer that was never connected may have left or died.
fn is_gone(error: &EngineError, of: u32) -> bool {
    has_left(error, of)
        || matches!(error, EngineError::PeerFailed { peer, .. } | EngineError::Unreachable { peer, .. } if *peer == of)
}

fn one_leaves() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().clone();
    on.barrier()?;
    if world.rank() == 1 {
        [0, 2].into_iter().try_for_each(|other| on.recv(&mut [0_u8], other, WAITS).map(drop))?;
        drop(on);
        return if world.finalize() { Ok(()) } else { Err("not all that was sent has left".into()) };
    }
    let (large, mut small, mut room) = (vec![1_u8; 1 << 20], [0_u8; 8], vec![0_u8; 1 << 20]);
    // Under way when the rank leaves.
    on.scope(|scope| -> Outcome {
        let receive = scope.irecv(&mut small, 1, 0)?;
        let receive_more = scope.irecv(&mut room, 1, Any)?;
        let synchronous = scope.issend(&large[..1], 1, 0)?;
        let rendezvous = scope.isend(&large, 1, 0)?;
        on.send(&[0_u8], 1, WAITS)?;
        ends_soon("receive", has_left, 1, || receive.wait())?;
        ends_soon("receive of more", has_left, 1, || receive_more.wait())?;
        ends_soon("synchronous send", gave_up, 1, || synchronous.wait())?;
        ends_soon("large send", gave_up, 1, || rendezvous.wait())
    })?;
    // Started after the rank has left.
    ends_soon("late receive", has_left, 1, || on.recv(&mut small, 1, 0))?;
    ends_soon("late probe", has_left, 1, || on.probe(1, Any))?;
    ends_soon("late matched probe", has_left, 1, || on.mprobe(1, Any).map(drop))?;
    ends_soon("late send", has_left, 1, || on.send(&small, 1, 0))?;
    ends_soon("late large send", has_left, 1, || on.send(&large, 1, 0))?;
    ends_soon("late synchronous send", has_left, 1, || on.ssend(&small, 1, 0))?;
    // Other ranks may still send.
    let other = 2 - on.rank();
    on.scope(|scope| -> Outcome {
        let receive = scope.irecv(&mut small, Any, 7)?;
        std::thread::sleep(LATER);
        on.send(&[on.rank() as u8; 8], other, 7)?;
        receive.wait()?;
        Ok(())
    })?;
    if small != [other as u8; 8] {
        return Err("the message of the other is damaged".into());
    }
    others_go_on(&on)?;
    survived()
}

fn all_leave() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let rank = on.rank();
    on.barrier()?;
    let mut inbox = [0_u8; 4];
    if rank != 0 {
        std::thread::sleep(LATER);
        if rank == 2 {
            ends_soon("receive that waits for an end", has_left, 1, || on.recv(&mut inbox, 1, WAITS))?;
        }
        on.send(&[rank as u8; 4], 0, 0)?;
        return Ok(());
    }
    // Rank 1 leaves after its message. That does not affect rank 2, whose message arrives later.
    for expected in [1, 2] {
        on.recv(&mut inbox, Any, 0)?;
        if inbox != [expected; 4] {
            return Err("the wrong message arrived".into());
        }
    }
    let gone = |error: &EngineError, _| has_left(error, 1) || has_left(error, 2);
    ends_soon("receive from anybody", gone, 0, || on.recv(&mut inbox, Any, 0))?;
    ends_soon("probe of anybody", gone, 0, || on.probe(Any, 0))?;
    survived()
}

/// Rank 1 ends without sending a message.
fn unmet(after: Duration, killed: bool) -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    if world.rank() == 1 {
        std::thread::sleep(after);
        return if killed { kill_myself() } else { Ok(()) };
    }
    if world.rank() == 0 {
        let began = Instant::now();
        ends_soon("receive", is_gone, 1, || on.recv(&mut [0_u8; 8], 1, 0))?;
        ends_soon("probe", is_gone, 1, || on.probe(1, 0))?;
        on.send(&[began.elapsed().as_millis() as u64], 2, 0)?;
        return survived();
    }
    if killed {
        ends_soon("probe", is_gone, 1, || on.probe(1, 0))?;
        on.recv(&mut [0_u64], 0, 0)?;
    } else {
        // The rank that left may have been any source, and rank 0 still exists.
        on.recv(&mut [0_u64], Any, 0)?;
    }
    survived()
}

/// The number of logged warnings and errors.
static COMPLAINTS: AtomicUsize = AtomicUsize::new(0);

struct Complaints;

/// Prints and counts log lines from now on. Returns a function that returns the count.
pub(crate) fn complaints() -> Result<fn() -> usize, log::SetLoggerError> {
    log::set_logger(&Complaints)?;
    log::set_max_level(log::LevelFilter::Warn);
    Ok(|| COMPLAINTS.load(Ordering::Relaxed))
}

impl log::Log for Complaints {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            COMPLAINTS.fetch_add(1, Ordering::Relaxed);
            eprintln!("{}: {}", record.level(), record.args());
        }
    }

    fn flush(&self) {}
}

/// All ranks exchange messages. Then each rank ends at once or a little later. The last ones end so late that they wait
/// for messages about which the others know nothing.
fn staggered_ends() -> Outcome {
    let complaints = complaints()?;
    let world = World::init()?;
    let on = world.communicator().clone();
    let (rank, size) = (on.rank(), on.size());
    let (mut small, mut large) = ([0_u32; 2], vec![0_u8; 300_000]);
    let others = (0..size).filter(|&other| other != rank);
    for other in others.clone() {
        (0..200).try_for_each(|count| on.send(&[rank, count], other, 0))?;
    }
    for _ in 0..200 * (size - 1) {
        on.recv(&mut small, Any, 0)?;
    }
    let out = vec![rank as u8; 300_000];
    on.scope(|scope| -> Outcome {
        let sends = others.clone().map(|other| scope.isend(&out, other, 1)).collect::<Result<Vec<_>, _>>()?;
        for _ in others {
            on.recv(&mut large, Any, 1)?;
        }
        Ok(sends.into_iter().try_for_each(|send| send.wait().map(drop))?)
    })?;
    // A chain: each rank waits for the previous one, which ends right after. Rank 0 does not wait.
    if rank != 0 {
        on.recv(&mut small, Any, 2)?;
    }
    if rank + 1 < size {
        std::thread::sleep(LATER / 2);
        on.send(&small, rank + 1, 2)?;
    }
    drop(on);
    if !world.finalize() || complaints() != 0 {
        return Err("an ordinary end caused warnings".into());
    }
    survived()
}

/// Cancels an unmatched receive after its source has left.
fn cancels() -> Outcome {
    let world = World::init()?;
    let on: &Communicator = world.communicator();
    on.barrier()?;
    if world.rank() == 1 {
        return Ok(on.recv(&mut [0_u8], 0, WAITS).map(drop)?);
    }
    let (mut named, mut any) = ([0_u8; 8], [0_u8; 8]);
    on.scope(|scope| -> Outcome {
        let (named, any) = (scope.irecv(&mut named, 1, 0)?, scope.irecv(&mut any, Any, 0)?);
        on.send(&[0_u8], 1, WAITS)?;
        let send_for_ever = || -> Result<(), cableway::Error> {
            loop {
                on.send(&[0_u8], 1, 3)?;
            }
        };
        ends_soon("send", has_left, 1, send_for_ever)?;
        match (named.cancel()?, any.cancel()?) {
            (None, None) => Ok(()),
            other => Err(format!("not cancelled: {other:?}").into()),
        }
    })?;
    survived()
}

/// Each pair of ranks connects for one message there and one back, at the same time. Whoever has all messages leaves, while
/// others may not have read its own.
fn only_messages() -> Outcome {
    let complaints = complaints()?;
    let world = World::init()?;
    let on = world.communicator().clone();
    let (rank, size) = (on.rank(), on.size());
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let mut inbox = [0; 1];
        on.sendrecv(&[rank], (to, 0), &mut inbox, (from, 0))?;
        if inbox != [from] {
            return Err(format!("{inbox:?} came from rank {from}").into());
        }
    }
    drop(on);
    if !world.finalize() || complaints() != 0 {
        return Err("an ordinary end caused warnings".into());
    }
    survived()
}
