//! Foreign processes that connect. What a child process must do is in `tests/processes.rs`.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl as _, Error, Job, Received as Message, Token, Upcalls};
use cableway_common_cuda::{DescriptorRequest, Devices};

use super::socket::{self, Descriptor, Received};
use super::wire::{Hello, Packet, Refusal, WireAnswer, WireDescriptorRequest};
use crate::card::Card;
use crate::pool::{EAGER, Reference};
use crate::ring::fifo;
use crate::segment::{FifoMemory, Memory};
use crate::settings::Settings;
use crate::{SharedMemory, node::Node};

/// Collects the log of this binary.
struct Lines(parking_lot::Mutex<Vec<String>>);

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().push(record.args().to_string());
    }
    fn flush(&self) {}
}

static LINES: Lines = Lines(parking_lot::Mutex::new(Vec::new()));

fn listen_to_the_log() {
    // Another test may have installed it already.
    let _ = log::set_logger(&LINES);
    log::set_max_level(log::LevelFilter::Warn);
}

fn was_logged(part: &str) -> bool {
    LINES.0.lock().iter().any(|line| line.contains(part))
}

#[derive(Default)]
struct Events(RefCell<Vec<Vec<u8>>>, RefCell<Vec<Error>>);

impl Upcalls for Events {
    fn receive(&self, _peer: Rank, message: Message<'_>) {
        let mut bytes = vec![0; message.bytes().len()];
        message.bytes().copy_to(&mut bytes);
        self.0.borrow_mut().push(bytes);
    }
    fn completed(&self, _: Token, _: Result<(), Error>) {}
    fn peer_failed(&self, _: Rank, error: Error) {
        self.1.borrow_mut().push(error);
    }
    fn peer_left(&self, peer: Rank) {
        self.1.borrow_mut().push(Error::PeerLeft { btl: crate::NAME, peer });
    }
}

fn job(rank: Rank) -> Job {
    Job::new("doors".into(), [7; 32], rank, 4, 4)
}

struct TestServer {
    btl: Arc<SharedMemory>,
    heard: Events,
}

impl TestServer {
    fn new() -> Self {
        let btl = SharedMemory::new(&job(0), &Parameters::default(), &Devices::none()).unwrap();
        TestServer { btl, heard: Events::default() }
    }

    fn call(&self) -> Descriptor {
        socket::connect(&Card::parse(&self.btl.card()).unwrap().socket).unwrap()
    }

    /// Returns the server's answer.
    fn answer(&self, caller: &OwnedFd) -> Received {
        let start = Instant::now();
        loop {
            self.btl.progress(&self.heard);
            match socket::receive(caller).unwrap() {
                Received::Nothing => assert!(start.elapsed() < Duration::from_secs(20), "no answer"),
                answer => return answer,
            }
        }
    }

    fn is_turned_away(&self, caller: &OwnedFd) -> bool {
        matches!(self.answer(caller), Received::HungUp)
    }
}

/// Returns a packet and the number of its files, or `None` if nothing was received.
fn packet(received: Received) -> Option<(Vec<u8>, usize)> {
    match received {
        Received::Packet(bytes, files) => Some((bytes, files.len())),
        _ => None,
    }
}

/// Builds rank 3's valid hello and its segment.
fn introduction() -> (Hello, Memory) {
    introduction_of(3)
}

fn introduction_of(rank: Rank) -> (Hello, Memory) {
    let settings = Settings::new(&job(rank), &Parameters::default());
    let memory = Memory::create("caller", settings.geometry.layout().unwrap().len).unwrap();
    let hello = Hello {
        secret: [7; 32],
        from: u64::from(rank).into(),
        to: 0.into(),
        index: 0.into(),
        geometry: settings.geometry,
        cookie_address: 0.into(),
        cookie: 0.into(),
        node: Node::of_this_process().unwrap(),
    };
    (hello, memory)
}

#[test]
fn a_process_of_the_job_is_admitted() {
    let (hello, memory) = introduction();
    let server = TestServer::new();
    let caller = server.call();
    socket::send(caller.as_fd(), &Packet::Hello(hello).to_bytes(), memory.file()).unwrap();
    let Some((bytes, 1)) = packet(server.answer(&caller)) else { panic!("no reply") };
    assert!(matches!(Packet::parse(&bytes), Ok(Packet::Reply(_))));
    // No memory holds its cookie, so single copy is off, and the answer says so.
    let Some((bytes, 0)) = packet(server.answer(&caller)) else { panic!("no answer") };
    assert_eq!(Packet::parse(&bytes), Ok(Packet::Ready { single_copy: false }));
}

#[test]
fn foreign_processes_are_refused() {
    listen_to_the_log();
    type Spoiler = (&'static str, &'static str, fn(&mut Hello));
    let spoilers: [Spoiler; 6] = [
        ("another job's secret", "does not know the job's secret", |hello| hello.secret[31] ^= 1),
        ("a rank beyond the job", "process 0x4 wants process 0x0", |hello| hello.from = 4.into()),
        ("the rank that it calls", "process 0x0 wants process 0x0", |hello| hello.from = 0.into()),
        ("a call for another rank", "process 0x3 wants process 0x1", |hello| hello.to = 1.into()),
        ("an impossible geometry", "the FIFO's geometry", |hello| hello.geometry.fifo_cells = 3.into()),
        ("an index out of range", "is out of range", |hello| hello.index = 70_000.into()),
    ];
    for (what, logged, spoil) in spoilers {
        let (mut hello, memory) = introduction();
        spoil(&mut hello);
        let server = TestServer::new();
        let caller = server.call();
        socket::send(caller.as_fd(), &Packet::Hello(hello).to_bytes(), memory.file()).unwrap();
        match server.answer(&caller) {
            Received::HungUp => {}
            Received::Packet(bytes, files) if files.is_empty() => {
                assert_eq!(Packet::parse(&bytes), Ok(Packet::Refuse(Refusal::Segment)), "{what}");
            }
            _ => panic!("{what}: was admitted"),
        }
        assert!(server.heard.1.borrow().is_empty(), "{what}: no peer may fail");
        assert!(was_logged(logged), "{what} was not logged");
    }
}

#[test]
fn garbage_is_refused_without_harm() {
    listen_to_the_log();
    let server = TestServer::new();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 1], &[0xff; 4000], &Packet::Goodbye.to_bytes()] {
        let caller = server.call();
        socket::send(caller.as_fd(), garbage, None).unwrap();
        assert!(server.is_turned_away(&caller), "{} bytes", garbage.len());
    }
    assert!(was_logged("turned away process") && was_logged("a packet has the wrong magic number"));
    drop(server.call());
    a_process_of_the_job_is_admitted();
}

#[test]
fn segments_that_could_fault_are_refused() {
    let (hello, memory) = introduction();
    let longer = Memory::create("longer", hello.geometry.layout().unwrap().len + 4096).unwrap();
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, hello.geometry.layout().unwrap().len as u64).unwrap();
    let no_memory = std::fs::File::open("/dev/null").unwrap();
    let files = [("longer", longer.file()), ("unsealed", Some(unsealed.as_fd())), ("none", None)];
    for (what, file) in files.into_iter().chain([("a device", Some(no_memory.as_fd()))]) {
        let server = TestServer::new();
        let caller = server.call();
        socket::send(caller.as_fd(), &Packet::Hello(hello.clone()).to_bytes(), file).unwrap();
        let Some((bytes, 0)) = packet(server.answer(&caller)) else { panic!("{what}: was admitted") };
        assert_eq!(Packet::parse(&bytes), Ok(Packet::Refuse(Refusal::Segment)), "{what}");
        assert!(server.is_turned_away(&caller));
    }
    drop(memory);
}

#[test]
fn a_second_connection_of_a_connected_rank_is_refused() {
    let (hello, memory) = introduction();
    let server = TestServer::new();
    let (first, second) = (server.call(), server.call());
    socket::send(first.as_fd(), &Packet::Hello(hello.clone()).to_bytes(), memory.file()).unwrap();
    assert!(matches!(packet(server.answer(&first)), Some((_, 1))));
    socket::send(second.as_fd(), &Packet::Hello(hello).to_bytes(), memory.file()).unwrap();
    assert!(server.is_turned_away(&second));
    assert!(matches!(server.answer(&first), Received::Packet(..)), "the first connection must continue");
    assert!(server.heard.1.borrow().is_empty());
}

#[test]
fn the_oldest_of_too_many_silent_connections_is_closed() {
    listen_to_the_log();
    let server = TestServer::new();
    let silent: Vec<_> = (0..super::admission::most_accepted()).map(|_| server.call()).collect();
    let (hello, memory) = introduction();
    let caller = server.call();
    socket::send(caller.as_fd(), &Packet::Hello(hello).to_bytes(), memory.file()).unwrap();
    assert!(matches!(packet(server.answer(&caller)), Some((_, 1))));
    assert!(server.is_turned_away(&silent[0]));
    assert!(was_logged("too many unidentified connections"));
    assert!(
        matches!(socket::receive(silent.last().unwrap()), Ok(Received::Nothing)),
        "the other connections must stay open"
    );
}

/// Rank 3 is attached while rank 2 leaves, and its first message is in the FIFO before either is handled.
#[test]
fn the_first_message_of_a_peer_arrives_while_another_leaves() {
    let server = TestServer::new();
    let [(leaver, leavers_memory), (sender, senders_memory)] = [2, 3].map(introduction_of);
    let (leaving, coming) = (server.call(), server.call());
    socket::send(leaving.as_fd(), &Packet::Hello(leaver).to_bytes(), leavers_memory.file()).unwrap();
    let Received::Packet(reply, mut files) = server.answer(&leaving) else { panic!("no reply") };
    let Ok(Packet::Reply(reply)) = Packet::parse(&reply) else { panic!("no reply") };
    let layout = reply.geometry.layout().unwrap();
    let memory = Arc::new(Memory::open(files.pop().unwrap(), layout.len).unwrap());
    let fragment = Reference::new(EAGER, 0);
    let classes = sender.geometry.layout().unwrap();
    senders_memory.header(&classes.eager, fragment.id()).len.store(5, Relaxed);
    let record =
        fifo::Record { producer: reply.index.get() as u16 + 1, kind: fifo::Kind::Fragment, value: fragment.bits() };
    fifo::push(&FifoMemory::new(memory, layout.fifo_cells), record).unwrap();
    // The next look at the sockets finds both, the goodbye first.
    socket::send(leaving.as_fd(), &Packet::Goodbye.to_bytes(), None).unwrap();
    socket::send(coming.as_fd(), &Packet::Hello(sender).to_bytes(), senders_memory.file()).unwrap();
    let mut progress = server.btl.progress.lock();
    while progress.look(&server.btl.inner, &server.heard) == 0 {}
    assert_eq!((server.heard.1.borrow().len(), &*server.heard.0.borrow()), (1, &vec![vec![0; 5]]));
}

#[test]
fn last_packets_are_read_before_the_close_is_reported() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    socket::send(ours.as_fd(), b"never read", None).unwrap();
    socket::send(theirs.as_fd(), &Packet::Goodbye.to_bytes(), None).unwrap();
    drop(theirs);
    let Some((bytes, 0)) = packet(socket::receive(&ours).unwrap()) else { panic!("the goodbye must arrive") };
    assert_eq!(Packet::parse(&bytes), Ok(Packet::Goodbye));
    assert!(matches!(socket::receive(&ours).unwrap(), Received::HungUp));
}

#[test]
fn unknown_device_memory_is_refused_and_unrequested_memory_is_ignored() {
    listen_to_the_log();
    let (hello, memory) = introduction();
    let server = TestServer::new();
    let caller = server.call();
    let send = |packet: Packet| socket::send(caller.as_fd(), &packet.to_bytes(), None).unwrap();
    socket::send(caller.as_fd(), &Packet::Hello(hello).to_bytes(), memory.file()).unwrap();
    assert!(matches!(packet(server.answer(&caller)), Some((_, 1))));
    assert!(matches!(packet(server.answer(&caller)), Some((_, 0))));
    send(Packet::Ready { single_copy: false });
    let wanted = WireDescriptorRequest::from(&DescriptorRequest { buffer_id: 5, base: 4096, len: 4096 });
    send(Packet::DescriptorRequest(wanted));
    let Some((bytes, 0)) = packet(server.answer(&caller)) else { panic!("no answer") };
    assert_eq!(Packet::parse(&bytes), Ok(Packet::DescriptorAnswer(wanted, WireAnswer::Gone)));
    send(Packet::DescriptorAnswer(wanted, WireAnswer::Pieces(vec![4096])));
    assert!(server.is_turned_away(&caller));
    assert!(was_logged("out of turn"));
}

#[test]
fn a_packet_arrives_without_its_file_if_descriptors_are_exhausted() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const CHILD: &str = "CABLEWAY_TEST_NO_ROOM";
    if std::env::var_os(CHILD).is_none() {
        // The limit applies to the whole process.
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "connection::tests::a_packet_arrives_without_its_file_if_descriptors_are_exhausted";
        let output =
            command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    socket::send(theirs.as_fd(), b"with a file", Some(ours.as_fd())).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let received = socket::receive(&ours);
    // Several files are not taken in part, because the rest could not be told apart.
    socket::send_with(theirs.as_fd(), b"with two", &[ours.as_fd(), theirs.as_fd()]).unwrap();
    setrlimit(Resource::Nofile, limit).unwrap();
    let lowest = ours.try_clone().unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + 1), ..limit }).unwrap();
    let two = socket::receive(&ours);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(packet(received.unwrap()), Some((b"with a file".to_vec(), 0)));
    assert_eq!(packet(two.unwrap()), Some((b"with two".to_vec(), 0)));
}
