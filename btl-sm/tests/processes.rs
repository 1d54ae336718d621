//! Tests real processes: killed, ended cleanly, in containers, and under other users.

#[path = "processes/child.rs"]
mod child;
mod common;

use std::process::Command;

use cableway_btl::{Access, Btl, Error, Flags, FragmentKind, Region, Sent};
use cableway_common_cuda::{Location, Order};
use child::{Other, RANK, ROLE, become_nobody, from_hex, hear, limit_descriptors, say, to_hex};
use common::{Process, pattern, send, send_fragment, until};

/// The number of messages of the role `flood`.
const FLOOD: usize = 200;

/// Runs the role of a child. Does nothing if this binary runs as a test.
#[test]
fn a_child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    if role == "another_user" {
        return flood();
    }
    if role == "unprivileged" {
        become_nobody();
    }
    let folder = std::env::var("TEST_FOLDER").map(|folder| format!("btl_sm_socket_folder={folder}"));
    let assignments: Vec<_> = folder.iter().map(String::as_str).collect();
    let process = Process::new(rank, 3, &assignments);
    say(&to_hex(&process.btl.card()));
    let peer = 1 - rank;
    let mut endpoints = process.btl.connect(peer, &from_hex(&hear())).unwrap();
    let Some(mut endpoint) = endpoints.pop() else {
        say("unreachable");
        return;
    };
    match role.as_str() {
        "frugal" => {
            let mut before = 0;
            for _ in 0..2 {
                limit_descriptors(64);
                say("ready");
                let heard = std::thread::spawn(hear);
                until(&[&process], "the word", || heard.is_finished());
                assert_eq!(heard.join().unwrap(), "open");
                let mut files = Vec::new();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                say(&files.len().to_string());
                before = before.max(files.len());
            }
            until(&[&process], "a message arrives", || process.take().is_some_and(|(_, bytes)| bytes == b"start"));
            send(&[&process], &mut *endpoint, b"start");
            until(&[&process], "finalized", || process.btl.finalize());
        }
        "flood" => {
            for index in 0..40_usize {
                send(&[&process], &mut *endpoint, &pattern(index, 10 * index));
            }
            say("sent");
            assert_eq!(hear(), "more");
            for index in 40..FLOOD {
                assert_eq!(endpoint.send_inline(&pattern(index, 10), b"").unwrap(), Sent::Done);
            }
            say("sent");
            hear();
        }
        "echo" => {
            say("ready");
            loop {
                process.progress();
                assert!(process.heard.failures.borrow().is_empty(), "{:?}", process.heard.failures.borrow());
                if let Some((_, bytes)) = process.take() {
                    send(&[&process], &mut *endpoint, &bytes);
                    if bytes == b"start" {
                        break;
                    }
                }
            }
            // The peer can read all sent messages even if this process ends at once.
            until(&[&process], "finalized", || process.btl.finalize());
        }
        "unprivileged" => {
            say("ready");
            if rank == 0 {
                send(&[&process], &mut *endpoint, b"start");
            }
            until(&[&process], "a message arrives", || process.take().is_some_and(|(_, bytes)| bytes == b"start"));
            if rank == 1 {
                send(&[&process], &mut *endpoint, b"start");
            }
            until(&[&process], "single copy is disabled", || endpoint_lost_single_copy(&mut *endpoint));
            say(if endpoint.capabilities().flags.contains(Flags::GET) { "offered" } else { "disabled" });
            // The other process must detect it by itself, and not by the end of this one.
            assert_eq!(hear(), "end");
            until(&[&process], "finalized", || process.btl.finalize());
        }
        _ => panic!("unknown role {role}"),
    }
}

/// Connects as another user to each process whose card the parent sends, until the input ends.
fn flood() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    become_nobody();
    let card = from_hex(&hear());
    let name = card.windows(12).position(|window| window == b"cableway-sm-").unwrap();
    let address = SocketAddrUnix::new_abstract_name(&card[name..]).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut held, mut said, mut refused) = (std::collections::VecDeque::new(), false, 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let kind = SocketType::SEQPACKET;
                let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).unwrap();
                if rustix::net::connect(&socket, &address).is_ok() {
                    held.push_back(socket);
                } else {
                    refused += 1;
                    std::thread::yield_now();
                }
                // As many as it can open itself, or as the other process accepts.
                if (held.len() > 500 || refused > 100_000) && !std::mem::replace(&mut said, true) {
                    say("flooding");
                }
                if held.len() > 500 {
                    held.pop_front();
                }
            }
        });
        hear();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn endpoint_lost_single_copy(endpoint: &mut dyn cableway_btl::Endpoint) -> bool {
    let mut byte = 0_u8;
    let region = Region { address: &raw mut byte, len: 1, location: Location::HOST, order: Order::None };
    // SAFETY: the registration is not used.
    unsafe { endpoint.register(region, Access::RemoteRead) }.is_ok_and(|registration| registration.is_none())
}

/// Returns whether a command works here. If not, prints the reason for skipping.
fn possible(what: &str, command: &[&str]) -> bool {
    let works = Command::new(command[0]).args(&command[1..]).output().is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: {what} is refused here ({command:?})");
    }
    works
}

#[test]
fn a_killed_peer_is_detected_and_its_earlier_messages_arrive() {
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "flood", &[]);
    let card = other.card();
    let mut endpoint = process.connect(1, &card);
    other.tell(&to_hex(&process.btl.card()));
    until(&[&process], "its first messages arrive", || process.heard.messages.borrow().len() == 40);
    assert_eq!(other.line(), "sent");
    // No process reads the rest while the sender lives.
    other.tell("more");
    assert_eq!(other.line(), "sent");
    other.kill();
    until(&[&process], "the death is detected", || !process.heard.failures.borrow().is_empty());
    for index in 0..FLOOD {
        let len = if index < 40 { 10 * index } else { 10 };
        assert!(process.take().unwrap().1 == pattern(index, len), "message {index} before the death");
    }
    assert!(process.take().is_none());
    let error = endpoint.send_inline(b"too late", b"").unwrap_err();
    assert!(matches!(error, Error::PeerGone { peer: 1, .. }), "{error}");
    assert!(endpoint.alloc(2000, FragmentKind::Host).is_err());
    for _ in 0..100_000 {
        process.progress();
    }
    assert_eq!(process.heard.failures.borrow().len(), 1, "reported once");
    drop(other);

    // The name of its socket is free, and it had no other name.
    let name = String::from_utf8_lossy(&card).into_owned();
    let name = &name[name.find("cableway-sm-1-").unwrap()..];
    assert!(!std::fs::read_to_string("/proc/net/unix").unwrap().contains(name));
}

#[test]
fn a_peer_that_leaves_has_not_failed() {
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "echo", &[]);
    let card = other.card();
    let mut endpoint = process.connect(1, &card);
    other.tell(&to_hex(&process.btl.card()));
    assert_eq!(other.line(), "ready");
    // Only the child progresses: it answers `start` and ends.
    send(&[&process], &mut *endpoint, b"start");
    assert!(other.child.wait().unwrap().success());
    until(&[&process], "its last message arrives", || process.take().is_some_and(|(_, bytes)| bytes == b"start"));
    until(&[&process], "its end is detected", || endpoint.send_inline(b"x", b"").is_err());
    for _ in 0..10_000 {
        process.progress();
    }
    assert!(process.heard.failures.borrow().is_empty(), "{:?}", process.heard.failures.borrow());
}

#[test]
fn a_peer_that_died_before_the_connection_is_reported() {
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "echo", &[]);
    let card = other.card();
    other.kill();
    let mut endpoint = process.connect(1, &card);
    assert_eq!(endpoint.send_inline(b"x", b"").unwrap(), Sent::Busy);
    until(&[&process], "the death is detected", || !process.heard.failures.borrow().is_empty());
    assert!(endpoint.send_inline(b"x", b"").is_err());
}

/// Sends messages of all kinds to an echo in another process and receives them back.
fn converse(process: &Process, other: &mut Other) -> Box<dyn cableway_btl::Endpoint> {
    let card = other.card();
    let mut endpoint = process.connect(1, &card);
    other.tell(&to_hex(&process.btl.card()));
    assert_eq!(other.line(), "ready");
    for len in [0, 8, 300, 5000, 30_000, 8, 100].repeat(10) {
        let message = pattern(len, len);
        send(&[process], &mut *endpoint, &message);
        until(&[process], "the echo arrives", || process.take().is_some_and(|(_, bytes)| bytes == message));
    }
    until(&[process], "a device fragment is sent", || {
        send_fragment(&mut *endpoint, &pattern(1, 10_000), FragmentKind::Device)
    });
    until(&[process], "the echo arrives", || process.take().is_some_and(|(_, bytes)| bytes == pattern(1, 10_000)));
    endpoint
}

#[test]
fn a_container_with_a_pid_namespace_uses_messages_without_single_copy() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    if !possible("a pid namespace", &[&unshare[..], &["true"]].concat()) {
        return;
    }
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "echo", &unshare);
    let mut endpoint = converse(&process, &mut other);
    assert!(endpoint_lost_single_copy(&mut *endpoint));
    assert!(!endpoint.capabilities().flags.contains(Flags::GET));
    other.kill();
    until(&[&process], "the death is detected", || !process.heard.failures.borrow().is_empty());
}

#[test]
fn a_user_namespace_accepts_messages_only_from_its_own_user() {
    // SAFETY: a plain system call.
    let root = unsafe { libc::geteuid() } == 0;
    let same = ["unshare", "--user", "--map-root-user"];
    if !root || !possible("a user namespace", &[&same[..], &["true"]].concat()) {
        println!("skipped: needs root and user namespaces");
        return;
    }
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "echo", &same);
    let endpoint = converse(&process, &mut other);
    assert!(!endpoint.capabilities().flags.contains(Flags::GET), "single copy must be off in another user namespace");

    let different = ["setpriv", "--reuid", "65534", "--clear-groups", "unshare", "--user", "--map-root-user"];
    if !possible("a user namespace of another user", &[&different[..], &["true"]].concat()) {
        return;
    }
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "echo", &different);
    assert!(process.btl.connect(1, &other.card()).unwrap().is_empty());
}

#[test]
fn a_tiny_dev_shm_suffices() {
    let script = "mount -t tmpfs -o size=64k none /dev/shm && exec \"$@\"";
    let unshare = ["unshare", "--mount", "sh", "-c", script, "sh"];
    if !possible("a mount namespace", &[&unshare[..], &["true"]].concat()) {
        return;
    }
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "echo", &unshare);
    converse(&process, &mut other);
}

#[test]
fn another_network_namespace_needs_a_shared_folder() {
    let unshare = ["unshare", "--net"];
    if !possible("a network namespace", &[&unshare[..], &["true"]].concat()) {
        return;
    }
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "echo", &unshare);
    let card = other.card();
    assert!(process.btl.connect(1, &card).unwrap().is_empty());
    other.tell(&to_hex(&process.btl.card()));
    assert_eq!(other.line(), "unreachable");

    let folder = std::env::temp_dir().join(format!("cableway-sm-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let assignment = format!("btl_sm_socket_folder={}", folder.display());
    let variable = format!("TEST_FOLDER={}", folder.display());
    let process = Process::new(0, 3, &[&assignment]);
    let mut other = Other::start(1, "echo", &["env", &variable, "unshare", "--net"]);
    converse(&process, &mut other);
    other.kill();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "the killed process leaves its socket");
    let third = Process::new(2, 3, &[&assignment]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "the next process removes it");
    drop((process, third));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "processes remove their sockets when they end");
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn messages_pass_if_the_kernel_refuses_single_copy() {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    let mut zero = Other::start(0, "unprivileged", &[]);
    let mut one = Other::start(1, "unprivileged", &[]);
    let (card_zero, card_one) = (to_hex(&zero.card()), to_hex(&one.card()));
    zero.tell(&card_one);
    one.tell(&card_zero);
    for child in [&mut zero, &mut one] {
        assert_eq!(child.line(), "ready");
    }
    for child in [&mut zero, &mut one] {
        assert_eq!(child.line(), "disabled");
    }
    for child in [&mut zero, &mut one] {
        child.tell("end");
        assert!(child.child.wait().unwrap().success());
    }
}

#[test]
fn processes_of_another_user_are_refused() {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    let process = Process::new(0, 3, &[]);
    let mut other = Other::start(1, "unprivileged", &[]);
    let mut endpoint = process.connect(1, &other.card());
    other.tell(&to_hex(&process.btl.card()));
    assert_eq!(other.line(), "ready");
    assert_eq!(endpoint.send_inline(b"x", b"").unwrap(), Sent::Busy);
    until(&[&process], "the connection fails", || !process.heard.failures.borrow().is_empty());
    let error = process.heard.failures.borrow()[0].1.to_string();
    assert!(error.contains("user 65534, not 0"), "{error}");
}

#[test]
fn a_flood_of_another_user_takes_no_descriptors_and_blocks_no_peer() {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    let process = Process::new(0, 3, &[]);
    let mut frugal = Other::start(1, "frugal", &[]);
    let card = frugal.card();
    frugal.tell(&to_hex(&process.btl.card()));
    assert_eq!(frugal.line(), "ready");
    frugal.tell("open");
    let before: usize = frugal.line().parse().unwrap();
    assert!(before > 20, "{before} files");

    assert_eq!(frugal.line(), "ready");
    let mut flooder = Other::start(2, "another_user", &[]);
    flooder.tell(&to_hex(&card));
    assert_eq!(flooder.line(), "flooding");
    frugal.tell("open");
    let meanwhile: usize = frugal.line().parse().unwrap();
    assert_eq!(meanwhile, before, "the program opens as many files as before");

    // A peer can still connect and gets an answer.
    let mut endpoint = process.connect(1, &card);
    send(&[&process], &mut *endpoint, b"start");
    until(&[&process], "the answer arrives", || process.take().is_some_and(|(_, bytes)| bytes == b"start"));
    assert!(frugal.child.wait().unwrap().success());
    assert!(process.heard.failures.borrow().is_empty(), "{:?}", process.heard.failures.borrow());
    flooder.tell("end");
    assert!(flooder.child.wait().unwrap().success());
}
