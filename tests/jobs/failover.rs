//! Connections that break while both ranks live. They need verbs devices with virtual cables that can be pulled. The
//! guest has them (`tests/rxe-guest/run --pair 0% --cables 2`).

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use cableway::{EngineError, World};

use crate::faults::survived;
use crate::leaving::complaints;
use crate::support::{Finished, Role, Test, job, skip, start, this};

pub(crate) const TESTS: &[Test] = &[
    ("failover::tcp_takes_over_when_packets_vanish", || over_cable("packets_vanish", "openib,tcp", 16, 2)),
    ("failover::tcp_takes_over_when_a_port_goes_down", || over_cable("port_goes_down", "openib,tcp", 16, 2)),
    ("failover::a_port_that_comes_back_in_time_continues", || over_cable("port_comes_back", "openib", 20, 0)),
    ("failover::the_second_port_takes_over_when_the_first_cable_is_pulled", || {
        second_port("port_goes_down", "openib", "openib (rxe")
    }),
    ("failover::a_peer_on_the_second_network_only_is_reached", the_second_network_alone),
    ("failover::tcp_takes_over_when_one_cable_is_pulled_after_the_other", || {
        second_port("ports_go_down", "openib,tcp", "tcp")
    }),
    ("failover::tcp_takes_over_when_all_cables_are_pulled_at_once", || {
        second_port("all_ports_go_down", "openib,tcp", "tcp")
    }),
    ("failover::without_another_transport_requests_fail", || over_cable("nothing_else", "openib", 16, 0)),
    // Each test leaves a machine without the devices.
    ("removal::tcp_takes_over_when_devices_are_removed", || over_cable("devices_removed", "openib,tcp", 16, 2)),
    ("removal::without_another_transport_requests_fail", || over_cable("nothing_else_removed", "openib", 16, 0)),
];

pub(crate) const ROLES: &[Role] = &[
    ("packets_vanish", || talk(&[(2, || run("tc", "qdisc add dev cable1 root netem loss 100%"))], Duration::ZERO)),
    ("port_goes_down", || talk(&[(2, || pull(1))], Duration::ZERO)),
    ("ports_go_down", || talk(&[(1, || pull(1)), (4, || pull(3))], Duration::ZERO)),
    ("all_ports_go_down", || talk(&[(2, || [1, 3].into_iter().for_each(pull))], Duration::ZERO)),
    ("port_comes_back", || talk(&[(2, || pull(1))], Duration::from_secs(1))),
    ("devices_removed", || talk(&[(2, remove)], Duration::ZERO)),
    ("just_talk", just_talk),
    ("nothing_else", || nothing_else(|| pull(1))),
    ("nothing_else_removed", || nothing_else(remove)),
];

type Outcome = Result<(), Box<dyn Error>>;

/// Each rank has its own device.
const DEVICE: &str = "rxe$((CABLEWAY_JOB_RANK + 1))";
/// Each rank has two devices, on two networks.
const DEVICES: &str = "rxe$((CABLEWAY_JOB_RANK + 1)),rxe$((CABLEWAY_JOB_RANK + 3))";

/// A device resends after 4.096 us times two to `timeout`, six times.
fn over_cable(role: &str, btl: &str, timeout: u32, takeovers: usize) {
    if !std::path::Path::new("/sys/class/net/cable1").exists() {
        return skip("there is no pair of verbs devices with a cable that can be pulled");
    }
    let finished = over_devices(DEVICE, role, btl, timeout);
    assert_eq!(successors(&finished), vec!["tcp"; takeovers], "{finished:#?}");
}

/// Both ranks are on two networks. In the end a transport whose name begins with `by` carries the messages.
fn second_port(role: &str, btl: &str, by: &str) {
    if !has_two_cables() {
        return;
    }
    let finished = over_devices(DEVICES, role, btl, 16);
    let last = successors(&finished).iter().filter(|transport| transport.starts_with(by)).count();
    assert_eq!(last, 2, "{finished:#?}");
}

fn the_second_network_alone() {
    if !has_two_cables() {
        return;
    }
    let devices = "$(test $CABLEWAY_JOB_RANK = 0 && echo rxe1,rxe3 || echo rxe4)";
    let finished = over_devices(devices, "just_talk", "openib", 16);
    assert!(successors(&finished).is_empty(), "{finished:#?}");
}

fn has_two_cables() -> bool {
    let found = std::path::Path::new("/sys/class/net/cable3").exists();
    if !found {
        skip("there are no two pairs of verbs devices, each with a cable");
    }
    found
}

/// Runs ranks that use these devices and survive.
fn over_devices(devices: &str, role: &str, btl: &str, timeout: u32) -> Finished {
    mend();
    let (btl, timeout) = (format!("btl={btl}"), format!("btl_openib_ib_timeout={timeout}"));
    let sets = [&btl, &timeout, "peer_timeout=30s", "btl_tcp_if_include=lo"];
    let options: Vec<&str> = ["--keep-going"].into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).collect();
    let [program, role] = this(role);
    let mut command = job(2, &options);
    let rank = format!("CABLEWAY_BTL_OPENIB_IF_INCLUDE={devices} exec \"$0\" \"$1\"");
    command.args(["sh", "-c", &rank, &program, &role]);
    let finished = start(&mut command).finish();
    mend();
    let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
    assert_eq!(survived, 2, "{finished:#?}");
    finished
}

/// Returns the transports that ranks said they use after a failure.
fn successors(finished: &Finished) -> Vec<&str> {
    let lines = finished.stderr.lines();
    lines.filter_map(|line| Some(line.split_once(" uses ")?.1.split_once(" from now on")?.0)).collect()
}

/// Plugs the cables in again.
fn mend() {
    run("tc", "qdisc del dev cable1 root");
    for (cable, network) in [(1, "10.79.0"), (3, "10.80.0")] {
        if std::path::Path::new(&format!("/sys/class/net/cable{cable}")).exists() {
            run("ip", &format!("link set cable{cable} up"));
            run("ip", &format!("route replace {network}.2 dev cable{cable} src {network}.1 table 79"));
        }
    }
}

fn pull(cable: u32) {
    run("ip", &format!("link set cable{cable} down"));
}

/// Removes a device and the network of both. The kernel finishes that only after the ranks have ended, and the commands
/// take as long. But the network is unusable as soon as its name is gone.
fn remove() {
    let commands = "rdma link delete rxe1 >/dev/null 2>&1 & ip link delete cable1 >/dev/null 2>&1 &";
    let status = Command::new("sh").args(["-c", commands]).status().expect("there is a shell");
    assert!(status.success(), "{commands}: {status}");
    let until = Instant::now() + Duration::from_secs(10);
    while std::path::Path::new("/sys/class/net/cable1").exists() {
        assert!(Instant::now() < until, "{commands}: the network is there still");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn run(program: &str, arguments: &str) {
    // Commands without an effect are refused.
    let output = Command::new(program).args(arguments.split(' ')).output().expect("iproute2 is installed");
    if !output.status.success() {
        eprintln!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
}

fn content(round: u32, rank: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(round * 7 + rank) as u8).collect()
}

/// Runs [`exchange`], and checks that the break is logged.
fn talk(breaks: &[(u32, fn())], pause: Duration) -> Outcome {
    let seen = complaints()?;
    exchange(breaks, pause)?;
    // A port that goes down is logged in any case. The caller checks whether another transport took over.
    if seen() == 0 {
        return Err("nobody was told of the break".into());
    }
    survived()
}

fn just_talk() -> Outcome {
    exchange(&[], Duration::ZERO)?;
    survived()
}

/// Exchanges messages of many sizes in both directions. In the given rounds rank 0 breaks something, and repairs it
/// after `pause` if that is not zero.
fn exchange(breaks: &[(u32, fn())], pause: Duration) -> Outcome {
    const SIZES: [usize; 6] = [0, 8, 1000, 5000, 60_000, 300_000];
    let world = World::init()?;
    let on = world.communicator().clone();
    let (me, other) = (on.rank(), 1 - on.rank());
    for round in 0..6 {
        let out: Vec<Vec<u8>> = SIZES.iter().map(|&len| content(round, me, len)).collect();
        let mut rooms: Vec<Vec<u8>> = SIZES.iter().map(|&len| vec![0; len]).collect();
        on.scope(|scope| -> Outcome {
            // Half of the receives are posted late.
            let early = (round % 2) as usize;
            let mut receives = Vec::new();
            let mut rooms = rooms.iter_mut();
            for room in rooms.by_ref().take(3 * early) {
                receives.push(scope.irecv(room, other, 0)?);
            }
            let sends = out.iter().map(|data| scope.isend(data, other, 0)).collect::<Result<Vec<_>, _>>()?;
            if let Some((_, breaks)) = breaks.iter().find(|(when, _)| me == 0 && *when == round) {
                breaks();
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                    mend();
                }
            }
            for room in rooms {
                receives.push(scope.irecv(room, other, 0)?);
            }
            for receive in receives {
                receive.wait()?;
            }
            Ok(sends.into_iter().try_for_each(|send| send.wait().map(drop))?)
        })?;
        for (room, len) in rooms.iter().zip(SIZES) {
            if *room != content(round, other, len) {
                return Err(format!("{len} bytes of round {round} are damaged").into());
            }
        }
    }
    on.barrier()?;
    drop(on);
    if !world.finalize() {
        return Err("not all that was sent has left".into());
    }
    Ok(())
}

/// Both ranks live, but cannot reach each other any more.
fn nothing_else(breaks: fn()) -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    on.barrier()?;
    let other = 1 - on.rank();
    let (data, mut room) = (vec![1_u8; 1 << 20], vec![0_u8; 1 << 20]);
    let errors = on.scope(|scope| -> Result<_, Box<dyn Error>> {
        let receive = scope.irecv(&mut room, other, 1)?;
        let send = scope.issend(&data[..100], other, 0)?;
        if on.rank() == 0 {
            breaks();
        }
        Ok([receive.wait().err(), send.wait().err()])
    })?;
    for error in errors {
        let error = error.ok_or("a message came by a cable that was pulled")?;
        match error.engine_error() {
            Some(EngineError::PeerFailed { peer, .. }) if *peer == other => {}
            _ => return Err(error.into()),
        }
    }
    survived()
}
