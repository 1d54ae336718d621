//! A link that breaks in the midst of messages, with another beside it: nothing is lost, comes twice or out of order.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Error, SendMode};
use proptest::prelude::*;

use common::{ANY_, Link, Ranks, pattern};

/// The transport that will break, and the one that stands by.
fn links(flags: Flags, asynchronous: bool, busy: u32) -> [Link; 2] {
    let breaks = Link::new("breaks", flags | Flags::FAILOVER).with(|link| {
        link.capabilities.exclusivity = 9999;
        link.asynchronous = asynchronous;
        link.busy = busy;
    });
    let stands_by = Link::new("net", Flags::PUT).with(|link| {
        link.capabilities.max_send_size = 1 << 17;
        link.busy = busy;
    });
    [breaks, stands_by]
}

#[derive(Clone, Debug)]
struct Message {
    from: usize,
    len: usize,
    synchronous: bool,
    /// The receive is posted before the send.
    expected: bool,
    /// What moves between it and the next.
    turns: usize,
}

fn message() -> impl Strategy<Value = Message> {
    let len = prop_oneof![0usize..300, 3000usize..5000, 20_000usize..300_000];
    (0usize..2, len, any::<bool>(), any::<bool>(), 0usize..6)
        .prop_map(|(from, len, synchronous, expected, turns)| Message { from, len, synchronous, expected, turns })
}

fn flags() -> impl Strategy<Value = Flags> {
    prop::sample::select(vec![Flags::empty(), Flags::GET, Flags::PUT, Flags::GET.union(Flags::PUT)])
}

/// Sends all messages, with a break after so many events, and checks what comes. Returns whether there was a failover.
fn survive(
    messages: &[Message],
    [breaks, stands_by]: [Link; 2],
    after: usize,
    noticing: &[u32],
) -> Result<bool, TestCaseError> {
    let ranks = Ranks::new(2, &[breaks, stands_by]);
    ranks.net.sever(0, after, noticing);
    let data: Vec<Vec<u8>> = (0..).zip(messages).map(|(seed, message)| pattern(message.len, seed)).collect();
    let mut rooms: Vec<Vec<u8>> = data.iter().map(|data| vec![0; data.len()]).collect();
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for ((message, data), room) in messages.iter().zip(&data).zip(&mut rooms) {
        let Message { from, synchronous, expected, turns, .. } = *message;
        let mode = if synchronous { SendMode::Synchronous } else { SendMode::Standard };
        let to = 1 - from;
        let mut receive = || ranks.irecv(to, from as i32, 1, room);
        let early = expected.then(&mut receive);
        sends.push(ranks.isend(from, to as i32, 1, data, &mode));
        for turn in 0..turns {
            ranks.engines[turn % 2].progress();
        }
        receives.push(early.unwrap_or_else(receive));
    }
    ranks.finish(&receives.iter().map(|receive| &**receive).collect::<Vec<_>>());
    for send in &sends {
        send.finish(&ranks);
    }
    for (index, receive) in receives.iter().enumerate() {
        prop_assert_eq!(receive.result().unwrap().len, data[index].len() as u64);
        prop_assert!(rooms[index] == data[index], "message {index} is damaged");
    }
    ranks.settle();
    for rank in [0, 1] {
        prop_assert!(ranks.engines[rank].iprobe(&ranks.world[rank], ANY_, ANY_).unwrap().is_none(), "one came twice");
        prop_assert_eq!(ranks.counter(rank, "malformed"), 0);
    }
    prop_assert_eq!((ranks.net.fragments(), ranks.net.registered()), (0, 0));
    // What comes after goes on as ever.
    ranks.carry(100, 2);
    ranks.carry(200_000, 3);
    ranks.finalize();
    Ok(ranks.counter(0, "failovers") != 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn messages_survive_the_break_of_a_link(
        messages in prop::collection::vec(message(), 1..12),
        flags in flags(),
        asynchronous in any::<bool>(),
        busy in prop::sample::select(vec![0u32, 300]),
        after in 1usize..80,
        who in prop::sample::select(vec![&[0u32][..], &[1], &[0, 1]]),
    ) {
        survive(&messages, links(flags, asynchronous, busy), after, who)?;
    }
}

/// Every point of a few messages of each protocol.
#[test]
fn a_link_may_break_at_every_point() {
    let message = |from, len| Message { from, len, synchronous: len == 100, expected: from == 0, turns: 3 };
    let messages = [message(0, 100), message(1, 8), message(0, 150_000), message(1, 150_000), message(0, 3000)];
    for flags in [Flags::empty(), Flags::GET, Flags::PUT] {
        for asynchronous in [false, true] {
            for noticing in [&[0][..], &[1], &[0, 1]] {
                let mut points = 0;
                while survive(&messages, links(flags, asynchronous, 0), points + 1, noticing).unwrap() {
                    points += 1;
                }
                assert!(points > 12, "{flags:?}: {points} points");
            }
        }
    }
}

#[test]
fn without_another_link_the_requests_concerned_fail_and_nothing_else() {
    let [breaks, _] = links(Flags::GET, true, 0);
    let ranks = Ranks::new(3, &[breaks]);
    let (data, mut room, mut other) = (pattern(100_000, 1), vec![0; 100_000], vec![0; 8]);
    ranks.carry(100, 1);
    let receive = ranks.irecv(1, 0, 1, &mut room);
    let unconcerned = ranks.irecv(1, 2, 1, &mut other);
    let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
    ranks.net.sever(0, 1, &[0, 1]);
    let requests = [&*receive, send.0.as_deref().unwrap()];
    ranks.finish(&requests);
    for request in requests {
        assert!(matches!(request.error(), Some(Error::PeerFailed { .. })), "{:?}", request.error());
    }
    assert!(!unconcerned.is_complete());
}

#[test]
fn a_peer_that_died_is_found_dead_by_the_other_link() {
    let ranks = Ranks::new(2, &links(Flags::GET, true, 0));
    ranks.carry(100, 1);
    let mut room = [0; 8];
    let receive = ranks.irecv(0, 1, 1, &mut room);
    ranks.net.kill(1);
    for _ in 0..1000 {
        ranks.engines[0].progress();
    }
    assert!(matches!(receive.error(), Some(Error::PeerFailed { peer: 1, .. })), "{:?}", receive.error());
    assert_eq!(ranks.counter(0, "failovers"), 0);
}
