//! A link breaks during messages, and another takes over: no message is lost, repeated or out of order.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Error, SendMode};
use proptest::prelude::*;

use common::{ANY_, Link, Ranks, pattern};

/// Returns the transport that will break, and its standby.
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

/// Returns two modules of one transport that will break, and a transport on standby for both. The second module is on
/// standby for the first.
fn links_in_a_row(flags: Flags, asynchronous: bool, busy: u32) -> [Link; 3] {
    let [first, last] = links(flags, asynchronous, busy);
    let second = first.with(|link| {
        link.place = 1;
        link.capabilities.exclusivity -= 1;
        // Fragments for devices, too.
        link.capabilities.max_send_size = link.capabilities.device_max_send_size;
    });
    [first, second, last]
}

/// A transport breaks after a number of events, and these ranks notice it.
type Break<'r> = (usize, usize, &'r [u32]);

#[derive(Clone, Debug)]
struct Message {
    from: usize,
    len: usize,
    synchronous: bool,
    /// Whether the receive is posted before the send.
    expected: bool,
    /// The progress between this message and the next.
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

/// Sends all messages while links break, and checks what arrives. Returns which transports broke.
fn survive(messages: &[Message], links: &[Link], breaks: &[Break]) -> Result<Vec<bool>, TestCaseError> {
    let ranks = Ranks::new(2, links);
    for &(btl, after, noticing) in breaks {
        ranks.net.sever(btl, after, noticing);
    }
    if breaks.len() > 1 {
        // With two breaks, each rank might know only one of them, and report it over the other broken link.
        ranks.net.senders_notice();
    }
    let data: Vec<Vec<u8>> = (0..).zip(messages).map(|(seed, message)| pattern(message.len, seed)).collect();
    let mut buffers: Vec<Vec<u8>> = data.iter().map(|data| vec![0; data.len()]).collect();
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for ((message, data), received) in messages.iter().zip(&data).zip(&mut buffers) {
        let Message { from, synchronous, expected, turns, .. } = *message;
        let mode = if synchronous { SendMode::Synchronous } else { SendMode::Standard };
        let to = 1 - from;
        let mut receive = || ranks.irecv(to, from as i32, 1, received);
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
        prop_assert!(buffers[index] == data[index], "message {index} is damaged");
    }
    ranks.settle();
    for rank in [0, 1] {
        prop_assert!(
            ranks.engines[rank].iprobe(&ranks.world[rank], ANY_, ANY_).unwrap().is_none(),
            "a message arrived twice"
        );
        prop_assert_eq!(ranks.counter(rank, "malformed"), 0);
    }
    prop_assert_eq!((ranks.net.fragments(), ranks.net.registered()), (0, 0));
    // Later messages still work.
    ranks.carry(100, 2);
    ranks.carry(200_000, 3);
    let broken = (0..links.len()).map(|btl| ranks.net.is_severed(btl)).collect();
    ranks.finalize();
    Ok(broken)
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
        survive(&messages, &links(flags, asynchronous, busy), &[(0, after, who)])?;
    }

    #[test]
    fn messages_survive_the_break_of_the_replacement_link(
        messages in prop::collection::vec(message(), 1..12),
        flags in flags(),
        asynchronous in any::<bool>(),
        busy in prop::sample::select(vec![0u32, 300]),
        after in (1usize..60, 1usize..40),
        who in prop::array::uniform2(prop::sample::select(vec![&[0u32][..], &[1], &[0, 1]])),
    ) {
        let breaks = [(0, after.0, who[0]), (1, after.1, who[1])];
        survive(&messages, &links_in_a_row(flags, asynchronous, busy), &breaks)?;
    }
}

/// Breaks the link at every point of a few messages of each protocol.
#[test]
fn a_link_may_break_at_every_point() {
    let message = |from, len| Message { from, len, synchronous: len == 100, expected: from == 0, turns: 3 };
    let messages = [message(0, 100), message(1, 8), message(0, 150_000), message(1, 150_000), message(0, 3000)];
    for flags in [Flags::empty(), Flags::GET, Flags::PUT] {
        for asynchronous in [false, true] {
            for noticing in [&[0][..], &[1], &[0, 1]] {
                let mut points = 0;
                let links = links(flags, asynchronous, 0);
                while survive(&messages, &links, &[(0, points + 1, noticing)]).unwrap()[0] {
                    points += 1;
                }
                assert!(points > 12, "{flags:?}: {points} points");
            }
        }
    }
}

/// Breaks the second link at every point of the replacement and after it, and the first link early and late.
#[test]
fn the_replacement_link_may_break_at_every_point() {
    let message = |from, len| Message { from, len, synchronous: len == 100, expected: from == 0, turns: 3 };
    let messages = [message(0, 100), message(1, 8), message(0, 150_000), message(1, 150_000), message(0, 3000)];
    let links = links_in_a_row(Flags::GET, true, 0);
    for after in [1, 9] {
        for first in [&[0][..], &[1], &[0, 1]] {
            for second in [&[0][..], &[1], &[0, 1]] {
                let mut points = 0;
                while survive(&messages, &links, &[(0, after, first), (1, points + 1, second)]).unwrap()[1] {
                    points += 1;
                }
                assert!(points > 12, "{first:?} and {second:?}: {points} points");
            }
        }
    }
}

#[test]
fn the_third_link_takes_over_if_the_second_cannot_connect() {
    let links = links_in_a_row(Flags::GET, true, 0);
    let ranks = Ranks::new(2, &links);
    ranks.net.break_btl(1);
    ranks.carry(100, 1);
    ranks.net.sever(0, 1, &[0, 1]);
    ranks.carry(100_000, 2);
    ranks.carry(100, 3);
    assert!(ranks.net.is_severed(0));
    assert_eq!((ranks.counter(0, "failovers"), ranks.net.carried(1)), (1, 0));
    ranks.finalize();
}

#[test]
fn the_second_module_of_a_transport_takes_over_from_the_first() {
    let links = links_in_a_row(Flags::GET, true, 0);
    let ranks = Ranks::new(2, &links);
    ranks.carry(100, 1);
    assert_eq!(ranks.net.carried(1), 0, "it is on standby");
    ranks.net.sever(0, 1, &[0]);
    ranks.carry(100, 2);
    let before = ranks.counter(1, "protocol_get") + ranks.counter(0, "protocol_get");
    ranks.carry(100_000, 3);
    assert_eq!(
        ranks.counter(1, "protocol_get") + ranks.counter(0, "protocol_get"),
        before + 1,
        "its abilities are used"
    );
    assert_eq!((ranks.net.carried(1) > 0, ranks.net.carried(2)), (true, 0));
    ranks.finalize();
}

#[test]
fn without_a_standby_link_only_the_requests_with_the_peer_fail() {
    let [breaks, _] = links(Flags::GET, true, 0);
    let ranks = Ranks::new(3, &[breaks]);
    let (data, mut received, mut other) = (pattern(100_000, 1), vec![0; 100_000], vec![0; 8]);
    ranks.carry(100, 1);
    let receive = ranks.irecv(1, 0, 1, &mut received);
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

/// Checks a peer that first reports a broken link; then the transport reports malformed bytes from it.
#[test]
fn a_peer_with_malformed_bytes_is_not_reconnected_by_another_link() {
    let ranks = Ranks::new(2, &links(Flags::GET, true, 0));
    ranks.carry(100, 1);
    let mut received = [0; 8];
    let receive = ranks.irecv(1, 0, 1, &mut received);
    ranks.net.blame(1);
    ranks.net.sever(0, 1, &[0]);
    let data = pattern(100, 2);
    let _send = ranks.isend(0, 1, 2, &data, &SendMode::Standard);
    for _ in 0..1000 {
        ranks.engines.iter().for_each(|engine| _ = engine.progress());
    }
    assert!(matches!(receive.error(), Some(Error::PeerFailed { peer: 0, .. })), "{:?}", receive.error());
}

#[test]
fn the_standby_link_detects_that_the_peer_died() {
    let ranks = Ranks::new(2, &links(Flags::GET, true, 0));
    ranks.carry(100, 1);
    let mut received = [0; 8];
    let receive = ranks.irecv(0, 1, 1, &mut received);
    ranks.net.kill(1);
    for _ in 0..1000 {
        ranks.engines[0].progress();
    }
    assert!(matches!(receive.error(), Some(Error::PeerFailed { peer: 1, .. })), "{:?}", receive.error());
    assert_eq!(ranks.counter(0, "failovers"), 0);
}
