//! Tests on a verbs device of this machine.

use cableway_base::Parameters;
use cableway_btl::{Identity, Job};
use cableway_common_cuda::Devices;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::connection::private_data::CmMessage;
use crate::connection::service::Service;
use crate::port::Port;
use crate::settings::Settings;
use crate::verbs::{Events, Param};

fn process(rank: Rank) -> (Arc<Shared>, Service) {
    process_with(rank, "peer_timeout=40s")
}

fn process_with(rank: Rank, assignment: &str) -> (Arc<Shared>, Service) {
    const ALWAYS: [&str; 2] = ["btl_openib_connection_manager=rdmacm", "peer_timeout=40s"];
    let text = std::env::var("CABLEWAY_TEST_OPENIB").unwrap_or_default();
    let mut parameters = Parameters::default();
    for assignment in text.split_whitespace().chain(ALWAYS).chain([assignment]) {
        parameters.assign_internal(assignment).unwrap();
    }
    let mut settings = Settings::new(&parameters).unwrap();
    let port = Port::open_all(&settings, 1).unwrap().unwrap().remove(0);
    settings.queues = port.list.clone();
    let job = Job::new("test-job".to_owned(), [42; 32], rank, 2, 2);
    Service::start(port, Identity::new(&job), settings, &Devices::none()).unwrap().unwrap()
}

/// Sends `request` to `peer`; returns the id, whether the peer accepted, and its reply.
fn put(own: &Shared, peer: &Shared, end: &LocalEnd, request: &[u8]) -> (Id, bool, Vec<u8>) {
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    let events = Events::new().unwrap();
    let [from, to] = [own, peer].map(|shared| shared.address.listener.unwrap());
    let service = own.settings.type_of_service(own.address.kind);
    let id = Id::resolve(&events, from.ip(), to, service, 60_000).unwrap();
    loop {
        let mut source = [PollFd::from_borrowed_fd(events.descriptor(), PollFlags::IN)];
        assert!(poll(&mut source, Some(&minute)).unwrap() != 0, "nothing happens");
        match events.next().unwrap().map(|(_, event)| event) {
            Some(CmEvent::AddressResolved) => id.resolve_route(60_000).unwrap(),
            Some(CmEvent::RouteResolved) => {
                let (number, reads, retries) = (end.number(), own.port.reads, own.settings.retries);
                id.connect(&Param { private_data: request, number, reads, retries }).unwrap();
            }
            Some(CmEvent::ConnectResponse { private_data, .. } | CmEvent::Established { private_data }) => {
                return (id, true, private_data);
            }
            Some(CmEvent::Rejected { private_data }) => return (id, false, private_data),
            Some(CmEvent::Other) | None => {}
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Checks the active side.
#[test]
fn queue_pairs_use_the_configured_traffic_class() {
    if !crate::verbs::has_device() {
        return;
    }
    let of = |rank, class: u8| process_with(rank, &format!("btl_openib_traffic_class={class}"));
    for class in [104, 0] {
        let [(a, _serves_a), (b, _serves_b)] = [of(0, class), of(1, 32)];
        if a.port.context.is_iwarp() {
            return println!("skipped: over iWARP the kernel connects");
        }
        let mut common = ConnectorCommon::new(&a);
        let link = a.link(1);
        let end = common.begin(&link, None).unwrap();
        let private_data = PrivateData { number: 1, ..a.private_data(Kind::Request, &end) };
        let part = CmMessage::Request { card: &b.address.publish() };
        let request = private_data.encode(&a.identity, 1, part).unwrap();
        let (id, agreed, _) = put(&a, &b, &end, &request);
        assert!(agreed);
        a.connect(&end, &id, Reads { serves: 1, makes: 1 }).unwrap();
        assert_eq!(end.pairs[0].pair.traffic_class().unwrap(), class);
    }
}

/// An attacker may replay a request that it has seen.
#[test]
fn a_replayed_request_is_rejected() {
    if !crate::verbs::has_device() {
        return;
    }
    let [(a, _serves_a), (b, _serves_b)] = [0, 1].map(process);
    let mut common = ConnectorCommon::new(&a);
    let link = a.link(1);
    let card = b.address.publish();
    let mut ask = |number| {
        let end = common.begin(&link, None).unwrap();
        let private_data = PrivateData { number, ..a.private_data(Kind::Request, &end) };
        let request = private_data.encode(&a.identity, 1, CmMessage::Request { card: &card }).unwrap();
        (end, request)
    };
    let reply = |said: &[u8], request: &[u8]| {
        PrivateData::decode(&a.identity, said, CmMessage::Reply { request }).map(|(rank, reply)| (rank, reply.kind))
    };
    let (end, request) = ask(7);
    let (_connection, agreed, said) = put(&a, &b, &end, &request);
    assert_eq!((agreed, reply(&said, &request)), (true, Ok((1, Kind::Accept))));
    // A replayed request gets no proven reply. A new request gets the reply that it crossed another one.
    let (other_end, another) = ask(8);
    let (_, agreed, said) = put(&a, &b, &other_end, &request);
    assert!(!agreed && reply(&said, &request).is_err(), "{said:?}");
    let (_, agreed, said) = put(&a, &b, &other_end, &another);
    assert_eq!((agreed, reply(&said, &another)), (false, Ok((1, Kind::Crossed))));
}
