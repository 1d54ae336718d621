use cableway_btl::Job;
use proptest::prelude::*;

use super::*;

fn identity(rank: Rank) -> Identity {
    Identity::new(&Job::new("job".into(), [7; 32], rank, 4, 4))
}

/// Feeds `bytes` one at a time, so that every message is seen split everywhere.
fn feed(end: &mut Handshake, identity: &Identity, bytes: &[u8]) -> Result<Told, Refusal> {
    for (index, byte) in bytes.iter().enumerate() {
        assert_eq!(end.wants(), bytes.len() - index, "wants exactly the rest of the message");
        if let Some(told) = end.receive(identity, &[*byte])? {
            assert_eq!(index + 1, bytes.len());
            return Ok(told);
        }
    }
    panic!("the message was not complete");
}

fn reply(told: Result<Told, Refusal>) -> Vec<u8> {
    match told {
        Ok(Told::Reply(reply)) => reply.as_bytes().to_vec(),
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
    assert!(matches!(told, Ok(Told::Proved { from: rank, link: 3 }) if rank == from), "{told:?}");
    (client, server)
}

#[test]
fn the_lower_rank_decides_as_server() {
    let (mut client, mut server) = until_proved(2, 1);
    let verdict = server.judge(&identity(1), Verdict::Accept);
    assert_eq!(server.wants(), 0);
    assert!(matches!(feed(&mut client, &identity(2), verdict.as_bytes()), Ok(Told::Accepted)));
}

#[test]
fn the_lower_rank_decides_as_client() {
    let (mut client, mut server) = until_proved(1, 2);
    let verdict = server.judge(&identity(2), Verdict::Accept);
    assert!(matches!(feed(&mut client, &identity(1), verdict.as_bytes()), Ok(Told::Accepted)));
    let told = feed(&mut server, &identity(2), Handshake::confirm().as_bytes());
    assert!(matches!(told, Ok(Told::Confirmed { from: 1, link: 3 })), "{told:?}");
}

#[test]
fn a_second_connection_is_a_duplicate() {
    let (mut client, mut server) = until_proved(2, 1);
    let verdict = server.judge(&identity(1), Verdict::Duplicate);
    assert!(matches!(feed(&mut client, &identity(2), verdict.as_bytes()), Ok(Told::Duplicate)));
}

#[test]
fn a_link_that_was_closed_stays_closed() {
    let (mut client, mut server) = until_proved(2, 1);
    let verdict = server.judge(&identity(1), Verdict::Left);
    assert!(matches!(feed(&mut client, &identity(2), verdict.as_bytes()), Ok(Told::Left)));
}

#[test]
fn strangers_are_told_apart() {
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
    let stranger = Identity::new(&Job::new("job".into(), [8; 32], 1, 4, 4));
    let (mut client, hello) = Handshake::client(&stranger, 2, 0, [1; 32]);
    let mut server = Handshake::server([2; 32]);
    let challenge = reply(feed(&mut server, &identity(2), hello.as_bytes()));
    assert_eq!(client.receive(&stranger, &challenge).unwrap_err(), Refusal::Secret);
    assert_eq!(server.receive(&identity(2), &[0; 32]).unwrap_err(), Refusal::Secret);
}

#[test]
fn a_proof_cannot_be_replayed() {
    let (client_id, server_id) = (identity(1), identity(2));
    let (mut client, hello) = Handshake::client(&client_id, 2, 0, [1; 32]);
    let challenge = reply(feed(&mut Handshake::server([2; 32]), &server_id, hello.as_bytes()));
    let proof = reply(feed(&mut client, &client_id, &challenge));
    let mut another = Handshake::server([3; 32]);
    reply(feed(&mut another, &server_id, hello.as_bytes()));
    assert_eq!(another.receive(&server_id, &proof).unwrap_err(), Refusal::Secret);
    // Nor does what a server says serve as what a client must say.
    let mut another = Handshake::server([2; 32]);
    let challenge = reply(feed(&mut another, &server_id, hello.as_bytes()));
    assert_eq!(another.receive(&server_id, &challenge[32..]).unwrap_err(), Refusal::Secret);
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
                Ok(told) => prop_assert!(told.is_none()),
                Err(_) => break,
            }
        }
    }
}
