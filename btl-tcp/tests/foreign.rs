//! Tests that foreign and misbehaving processes are refused and logged, without harm to other connections.

mod common;

use std::io::Write;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use cableway_btl::{Error, Job};
use cableway_btl_tcp::Tcp;
use cableway_common_cuda::Devices;
use common::raw::{connect, dial, frame, hello, read};
use common::{LOOPBACK, Node, Pair, node, pair, parameters, send, until};

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collect;

impl log::Log for Collect {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LOG.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

fn collect_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Collect).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
}

fn logged(text: &str) -> bool {
    LOG.lock().unwrap().iter().any(|line| line.contains(text))
}

/// A pair with a working connection, which must still work at the end.
fn working_pair(assignments: &[&str]) -> Pair {
    collect_log();
    let mut pair = pair(assignments);
    send(&[&pair.a, &pair.b], &mut *pair.to_b[0], b"before", b"");
    pair
}

fn still_works(pair: &mut Pair) {
    let before = pair.b.received();
    send(&[&pair.a, &pair.b], &mut *pair.to_b[0], b"after", b"");
    pair.until("the message arrives", || pair.b.received() > before);
    pair.no_failures();
}

#[test]
fn garbage_is_turned_away() {
    let mut pair = working_pair(&[]);
    let mut wrong_version = hello("test-job", 1, 0, 0);
    wrong_version[8] = 99;
    for (garbage, reason) in [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(), "does not speak this protocol"),
        (vec![0xff; 5000], "does not speak this protocol"),
        (wrong_version, "version 99"),
        (hello("another-job", 1, 0, 0), "another job"),
        (hello("test-job", 1, 1, 0), "connect to process 0x1,"),
        (hello("test-job", 7, 0, 0), "claims to be process 0x7 "),
        (hello("test-job", 0, 0, 0), "claims to be process 0x0 "),
        (hello("test-job", 1, 0, 999), "link 999"),
    ] {
        let mut foreign = dial(&pair.a);
        foreign.write_all(&garbage).unwrap();
        assert_eq!(read(&[&pair.a, &pair.b], &mut foreign, 1), None, "{reason}: the connection must be closed");
        assert!(logged(reason), "{reason}");
    }
    still_works(&mut pair);
}

#[test]
fn a_hello_without_the_secret_is_refused() {
    let mut pair = working_pair(&[]);
    let nodes = [&pair.a, &pair.b];
    let mut foreign = dial(&pair.a);
    foreign.write_all(&hello("test-job", 1, 0, 1)).unwrap();
    assert!(read(&nodes, &mut foreign, 32).is_some(), "a challenge");
    foreign.write_all(&[0; 32]).unwrap();
    assert_eq!(read(&nodes, &mut foreign, 1), None);
    assert!(logged("does not know the job's secret"));
    still_works(&mut pair);
}

#[test]
fn a_process_with_another_secret_cannot_connect() {
    collect_log();
    let quick = "peer_timeout=500ms";
    let a = node(0, 2, &[LOOPBACK, quick]);
    let job = Job::new("test-job".to_owned(), [43; 32], 1, 2, 2);
    let impostor = Node::of(1, Tcp::new(&job, &parameters(&[LOOPBACK, quick]), &Devices::none()).unwrap());
    let mut to_a = impostor.connect(&a);
    until(&[&a, &impostor], "an error", || to_a[0].send_inline(b"x", b"").is_err());
    assert_eq!(impostor.seen.failed.lock().len(), 1);
    assert!(a.seen.failed.lock().is_empty() && a.received() == 0);
}

#[test]
fn silent_connections_time_out() {
    let mut pair = working_pair(&["peer_timeout=1s"]);
    let nodes = [&pair.a, &pair.b];
    let mut silent = dial(&pair.a);
    let mut halfway = dial(&pair.a);
    halfway.write_all(&hello("test-job", 1, 0, 1)[..63]).unwrap();
    let start = Instant::now();
    assert_eq!(read(&nodes, &mut silent, 1), None);
    assert_eq!(read(&nodes, &mut halfway, 1), None);
    assert!(start.elapsed() >= Duration::from_millis(900));
    assert!(logged("did not identify itself"));
    still_works(&mut pair);
}

#[test]
fn a_flood_of_unproved_connections_is_bounded() {
    let mut pair = working_pair(&[]);
    let connections = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = connections();
    let connections_made: Vec<_> = (0..320).map(|_| dial(&pair.a)).collect();
    pair.until("all connections are accepted", || {
        // The first connections were closed to make room.
        LOG.lock().unwrap().iter().filter(|line| line.contains("too many unidentified connections")).count() > 0
    });
    for _ in 0..10_000 {
        pair.a.progress();
    }
    assert!(connections() - before <= connections_made.len() + 256 + 16, "{} more", connections() - before);
    still_works(&mut pair);
    // A peer can still connect.
    let c = node(0, 2, &[LOOPBACK]);
    drop(c);
    let (_stream, verdict) = connect(&[&pair.a, &pair.b], &pair.a, 1, 5);
    assert_eq!(verdict, b"TAKE");
}

#[test]
fn a_second_connection_for_a_link_is_a_duplicate() {
    let mut pair = working_pair(&[]);
    let (mut stream, verdict) = connect(&[&pair.a, &pair.b], &pair.a, 1, 0);
    assert_eq!(verdict, b"DUPL");
    assert_eq!(read(&[&pair.a, &pair.b], &mut stream, 1), None);
    still_works(&mut pair);
}

/// The bytes of a peer with a valid proof, and the reason for its disconnection.
#[test]
fn a_peer_that_breaks_the_framing_is_disconnected() {
    collect_log();
    for (bytes, reason) in [
        (frame(u32::MAX, 1), "a message of 4294967295 bytes"),
        (frame(u32::MAX, 2), "a piece of a put of 4294967271 bytes"),
        (frame(3, 3), "a frame of kind 3 that is 3 bytes long"),
        (frame(0, 77), "unknown kind 77"),
        ([frame(8, 3), vec![1; 8]].concat(), "confirms put"),
        ([frame(24 + 10, 2), vec![1; 34]].concat(), "was not registered"),
        ([frame(0, 4), frame(1, 1)].concat(), "after its goodbye"),
    ] {
        // A third process must not be affected.
        let (a, c) = (node(0, 3, &[LOOPBACK]), node(2, 3, &[LOOPBACK]));
        let nodes = [&a, &c];
        let (mut to_c, _to_a) = (a.connect(&c), c.connect(&a));
        send(&nodes, &mut *to_c[0], b"before", b"");
        let (mut stream, verdict) = connect(&nodes, &a, 1, 0);
        assert_eq!(verdict, b"TAKE");
        stream.write_all(&[&frame(2, 1)[..], b"ok"].concat()).unwrap();
        until(&nodes, "a message arrives", || a.received() == 1);
        stream.write_all(&bytes).unwrap();
        until(&nodes, "a failure", || a.seen.failed.lock().len() == 1);
        let (peer, error) = a.seen.failed.lock()[0].clone();
        assert!(peer == 1 && matches!(error, Error::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(reason) && logged(reason), "{error}");
        assert_eq!(read(&nodes, &mut stream, 1), None);
        send(&nodes, &mut *to_c[0], b"after", b"");
        until(&nodes, "the third process receives all messages", || c.received() == 2);
        // A disconnected peer cannot reconnect.
        let mut again = dial(&a);
        let greeting = hello("test-job", 1, 0, 0);
        again.write_all(&greeting).unwrap();
        let nonce = read(&nodes, &mut again, 32).unwrap();
        again.write_all(&common::raw::proof(&[b"client", &greeting, &nonce])).unwrap();
        assert_eq!(read(&nodes, &mut again, 4), None);
    }
}

#[test]
fn a_peer_that_dies_in_mid_message_fails_once_whatever_its_links() {
    collect_log();
    let a = node(0, 2, &[LOOPBACK]);
    let (mut first, _) = connect(&[&a], &a, 1, 0);
    let (mut second, _) = connect(&[&a], &a, 1, 1);
    first.write_all(&[frame(100_000, 1), vec![1; 60_000]].concat()).unwrap();
    second.write_all(&[&frame(4, 1)[..], b"word"].concat()).unwrap();
    until(&[&a], "the whole message arrives", || a.received() == 1);
    drop(first);
    until(&[&a], "a failure", || !a.seen.failed.lock().is_empty());
    assert_eq!(read(&[&a], &mut second, 1), None, "the other link must be closed");
    for _ in 0..1000 {
        a.progress();
    }
    assert_eq!(a.seen.failed.lock().len(), 1);
    assert_eq!(a.received(), 1, "a partial message must not be delivered");
}
