use cableway_btl::Job;
use proptest::prelude::*;

use super::*;

fn identity(rank: Rank) -> Identity {
    Identity::new(&Job::new("job".into(), [7; 32], rank, 4, 4))
}

/// Feeds `bytes` one at a time, so that every message is split at every place.
fn feed(end: &mut Handshake, identity: &Identity, bytes: &[u8]) -> Result<HandshakeEvent, Refusal> {
    for (index, byte) in bytes.iter().enumerate() {
        assert_eq!(end.wants(), bytes.len() - index, "wants exactly the rest of the message");
        if let Some(told) = end.receive(identity, &[*byte])? {
            assert_eq!(index + 1, bytes.len());
            return Ok(told);
        }
    }
    panic!("the message was not complete");
}

fn reply(told: Result<HandshakeEvent, Refusal>) -> Vec<u8> {
    match told {
        Ok(HandshakeEvent::Reply(reply)) => reply.as_bytes().to_vec(),
        other => panic!("a reply was expected, not {other:?}"),
    }
}

/// Runs a handshake up to the verdict.
fn until_proved(from: Rank, to: Rank) -> (Handshake, Handshake) {
    let (client_id, server_id) = (identity(from), identity(to));
    let (mut client, hello) = Handshake::client(&client_id, to, 3, [1; 32]);
    let mut server = Handshake::server([2; 32]);
    let challenge = reply(feed(&mut server, &server_id, hello.as_bytes()));
    let proof = reply(feed(&mut client, &client_id, &challenge));
    let told = feed(&mut server, &server_id, &proof);
    assert!(matches!(told, Ok(HandshakeEvent::Proved { from: rank, link: 3 }) if rank == from), "{told:?}");
    (client, server)
}

#[test]
fn the_lower_rank_decides_as_server() {
    let (mut client, mut server) = until_proved(2, 1);
    let verdict = server.judge(&identity(1), Verdict::Accept).unwrap();
    assert_eq!(server.wants(), 0);
    assert!(matches!(feed(&mut client, &identity(2), verdict.as_bytes()), Ok(HandshakeEvent::Accepted)));
}

#[test]
fn the_lower_rank_decides_as_client() {
    let (mut client, mut server) = until_proved(1, 2);
    let verdict = server.judge(&identity(2), Verdict::Accept).unwrap();
    assert!(matches!(feed(&mut client, &identity(1), verdict.as_bytes()), Ok(HandshakeEvent::Accepted)));
    let told = feed(&mut server, &identity(2), Handshake::confirm().as_bytes());
    assert!(matches!(told, Ok(HandshakeEvent::Confirmed { from: 1, link: 3 })), "{told:?}");
}

#[test]
fn a_second_connection_is_a_duplicate() {
    let (mut client, mut server) = until_proved(2, 1);
    let verdict = server.judge(&identity(1), Verdict::Duplicate).unwrap();
    assert!(matches!(feed(&mut client, &identity(2), verdict.as_bytes()), Ok(HandshakeEvent::Duplicate)));
}

#[test]
fn a_closed_link_stays_closed() {
    let (mut client, mut server) = until_proved(2, 1);
    let verdict = server.judge(&identity(1), Verdict::Left).unwrap();
    assert!(matches!(feed(&mut client, &identity(2), verdict.as_bytes()), Ok(HandshakeEvent::Left)));
}

#[test]
fn foreign_processes_are_rejected() {
    let refusal = |change: &dyn Fn(&mut Hello)| {
        let (_, hello) = Handshake::client(&identity(1), 2, 0, [1; 32]);
        let mut hello = Hello::read_from_bytes(hello.as_bytes()).unwrap();
        change(&mut hello);
        Handshake::server([2; 32]).receive(&identity(2), hello.as_bytes()).unwrap_err()
    };
    assert_eq!(refusal(&|hello| hello.magic = U64::new(1)), Refusal::NotOurs);
    assert_eq!(refusal(&|hello| hello.version = U16::new(9)), Refusal::Version(9));
    assert_eq!(refusal(&|hello| hello.job[0] ^= 1), Refusal::Job);
    assert_eq!(refusal(&|hello| hello.link = U16::new(64)), Refusal::Link(64));
    assert_eq!(refusal(&|hello| hello.from = U64::new(4)), Refusal::Name { from: 4, to: 2, name: 2, size: 4 });
    assert_eq!(refusal(&|hello| hello.from = U64::new(2)), Refusal::Name { from: 2, to: 2, name: 2, size: 4 });
    assert_eq!(refusal(&|hello| hello.to = U64::new(1)), Refusal::Name { from: 1, to: 1, name: 2, size: 4 });
}

#[test]
fn garbage_is_refused_by_its_first_bytes() {
    let mut server = Handshake::server([2; 32]);
    assert_eq!(server.receive(&identity(2), b"GET / HTTP").unwrap_err(), Refusal::NotOurs);
}

#[test]
fn both_ends_must_know_the_secret() {
    let foreign = Identity::new(&Job::new("job".into(), [8; 32], 1, 4, 4));
    let (mut client, hello) = Handshake::client(&foreign, 2, 0, [1; 32]);
    let mut server = Handshake::server([2; 32]);
    let challenge = reply(feed(&mut server, &identity(2), hello.as_bytes()));
    let proof = reply(feed(&mut client, &foreign, &challenge));
    assert_eq!(server.receive(&identity(2), &proof).unwrap_err(), Refusal::Secret);
    // A server without the secret accepts any client, but its proof is refused.
    let foreign = Identity::new(&Job::new("job".into(), [8; 32], 2, 4, 4));
    let (mut client, _) = Handshake::client(&identity(1), 2, 0, [1; 32]);
    reply(feed(&mut client, &identity(1), &[2; 32]));
    let (_, mut server) = until_proved(1, 2);
    let verdict = server.judge(&foreign, Verdict::Accept).unwrap();
    assert_eq!(client.receive(&identity(1), verdict.as_bytes()).unwrap_err(), Refusal::Secret);
}

#[test]
fn a_changed_verdict_is_refused() {
    let (mut client, mut server) = until_proved(2, 1);
    let verdict = server.judge(&identity(1), Verdict::Accept).unwrap();
    let mut changed = verdict.as_bytes().to_vec();
    changed[..4].copy_from_slice(b"LEFT");
    assert_eq!(client.receive(&identity(2), &changed).unwrap_err(), Refusal::Secret);
}

#[test]
fn a_replayed_proof_is_refused() {
    let (client_id, server_id) = (identity(1), identity(2));
    let (mut client, hello) = Handshake::client(&client_id, 2, 0, [1; 32]);
    let challenge = reply(feed(&mut Handshake::server([2; 32]), &server_id, hello.as_bytes()));
    let proof = reply(feed(&mut client, &client_id, &challenge));
    let mut another = Handshake::server([3; 32]);
    reply(feed(&mut another, &server_id, hello.as_bytes()));
    assert_eq!(another.receive(&server_id, &proof).unwrap_err(), Refusal::Secret);
    // A client's proof does not serve as a server's either.
    let word = [&ACCEPT.to_bytes()[..], &proof].concat();
    assert_eq!(client.receive(&client_id, &word).unwrap_err(), Refusal::Secret);
}

/// The names of a host MPI with several jobs. Those of job 5 belong to this job.
#[derive(Default)]
struct Host {
    /// The names with assigned numbers, and the peers whose secret was requested.
    asked: parking_lot::Mutex<(Vec<u64>, Vec<Rank>)>,
}

impl cableway_btl::Names for Host {
    fn name(&self, peer: Rank) -> Option<u64> {
        let named = || self.asked.lock().0.get(peer as usize - 4).copied();
        if peer < 4 { Some(5 << 32 | u64::from(peer)) } else { named() }
    }

    fn rank(&self, name: u64) -> Option<Rank> {
        if self.is_member(name) {
            return Some(name as u32).filter(|&rank| rank < 4);
        }
        let given = &mut self.asked.lock().0;
        given.push(name);
        Some(4 + given.len() as u32 - 1)
    }

    fn is_member(&self, name: u64) -> bool {
        name >> 32 == 5
    }

    fn job_secret(&self) -> Option<[u8; 32]> {
        Some([7; 32])
    }

    fn own_secret(&self) -> [u8; 32] {
        [50; 32]
    }

    fn secret_of(&self, peer: Rank) -> Option<[u8; 32]> {
        self.asked.lock().1.push(peer);
        Some([60; 32])
    }
}

#[test]
fn a_claim_without_proof_leaves_nothing_behind() {
    use std::sync::Arc;
    let host = Arc::new(Host::default());
    let mut job = Job::of_host("five".to_owned(), host.clone(), 1, 4, 4);
    job.foreign_processes = 1 << 16;
    let here = Identity::new(&job);
    let hello = |from: u64| {
        let (_, hello) = Handshake::client(&identity(0), 1, 0, [1; 32]);
        let mut hello = Hello::read_from_bytes(hello.as_bytes()).unwrap();
        (hello.from, hello.to) = (U64::new(from), U64::new(5 << 32 | 1));
        hello
    };
    for number in 0..100_000_u64 {
        let mut server = Handshake::server([2; 32]);
        reply(server.receive(&here, hello(6 << 32 | number).as_bytes()).map(Option::unwrap));
        assert_eq!(server.receive(&here, &[0; 32]).unwrap_err(), Refusal::Secret);
    }
    assert_eq!(*host.asked.lock(), (vec![], vec![]));

    // A process that knows this process's published secret gets a number. Only then is its own secret requested.
    let knows = Identity::new(&Job::new("six".to_owned(), [50; 32], 0, 4, 4));
    let hello = hello(6 << 32);
    let mut server = Handshake::server([2; 32]);
    let nonce = reply(server.receive(&here, hello.as_bytes()).map(Option::unwrap));
    let proof = knows.prove(1, &[CLIENT, hello.as_bytes(), &nonce]).unwrap();
    let told = server.receive(&here, &proof);
    assert!(matches!(told, Ok(Some(HandshakeEvent::Proved { from: 4, link: 0 }))), "{told:?}");
    let verdict = server.judge(&here, Verdict::Accept).unwrap();
    assert_eq!(*host.asked.lock(), (vec![6 << 32], vec![4]));
    let words: &[&[u8]] = &[SERVER, hello.as_bytes(), &nonce, &verdict.as_bytes()[..4]];
    let expected = Identity::new(&Job::new("six".to_owned(), [60; 32], 0, 4, 4)).expected(5 << 32 | 1, words).unwrap();
    assert_eq!(verdict.as_bytes()[4..], expected);
}

proptest! {
    #[test]
    fn no_bytes_pass_without_the_secret(bytes in proptest::collection::vec(any::<u8>(), 0..300), client in any::<bool>()) {
        let identity = identity(1);
        let mut end = if client { Handshake::client(&identity, 2, 0, [1; 32]).0 } else { Handshake::server([2; 32]) };
        let mut rest = &bytes[..];
        while !rest.is_empty() && end.wants() != 0 {
            let (now, later) = rest.split_at(end.wants().min(rest.len()));
            rest = later;
            match end.receive(&identity, now) {
                // A client answers any challenge.
                Ok(told) => prop_assert!(told.is_none() || matches!(told, Some(HandshakeEvent::Reply(_)))),
                Err(_) => break,
            }
        }
    }
}
