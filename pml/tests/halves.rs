//! Messages of which the receiver fetches one half while the sender stores the other: each byte is moved once, by either
//! side, and the receiver does not wait for a sender that does not poll.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Error, SendMode};

use common::{Link, Ranks, net::MOST_OFFERS, pattern};

const PAGE: usize = 4096;
const RANGE: usize = 128 << 10;
/// The first byte of a FIN of a PUT.
const PUT_FIN: u8 = 8;

fn ranks_with(change: fn(&mut Link)) -> Ranks {
    let link = Link::new("net", Flags::GET | Flags::PUT | Flags::OFFER).with(|link| {
        link.capabilities.get_limit = 50_000;
        link.capabilities.put_limit = 30_000;
        link.asynchronous = true;
    });
    Ranks::with(2, &[link.with(change)], &[("pml_host_way", "halves")], false)
}

fn ranks() -> Ranks {
    ranks_with(|_| ())
}

fn nothing_is_left(ranks: &Ranks) {
    ranks.settle();
    assert_eq!((ranks.net.offers(), ranks.net.registered(), ranks.net.fragments()), (0, 0, 0));
    assert_eq!(ranks.counter(0, "malformed") + ranks.counter(1, "malformed"), 0);
}

#[test]
fn both_sides_move_messages_of_every_size() {
    let ranks = ranks();
    for pages in [2, 3, 4, 2 * RANGE / PAGE, 4 * RANGE / PAGE, 9 * RANGE / PAGE] {
        for len in [pages * PAGE, pages * PAGE + 1, (pages + 1) * PAGE - 1] {
            let (puts, stored) = (ranks.counter(0, "protocol_put"), ranks.counter(0, "bytes_put"));
            ranks.carry(len, pages as i32);
            let back = len - (len / 2).next_multiple_of(PAGE);
            let ranges = (back / RANGE).clamp(1, 4) as u64;
            assert_eq!(ranks.counter(0, "protocol_put") - puts, ranges, "{len} bytes");
            assert_eq!(ranks.counter(0, "bytes_put") - stored, back as u64, "{len} bytes");
        }
    }
    assert_eq!(ranks.counter(0, "protocol_fragments"), 0);
    nothing_is_left(&ranks);
}

#[test]
fn the_receiver_fetches_everything_if_the_sender_does_not_poll() {
    for len in [4 * PAGE, 3 * RANGE + 7, 20 * RANGE] {
        let ranks = ranks();
        ranks.carry(10, 0);
        ranks.carry_without_sender(&pattern(len, 5));
        assert_eq!((ranks.counter(0, "protocol_put"), ranks.counter(0, "protocol_fragments")), (0, 0));
        nothing_is_left(&ranks);
    }
}

#[test]
fn a_sender_may_poll_at_any_time() {
    let len = 9 * RANGE + 3;
    let mut counts = Vec::new();
    for turns in 0..60 {
        let ranks = ranks();
        ranks.carry(10, 0);
        let (data, mut received) = (pattern(len, turns as u8), vec![0; len]);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = ranks.irecv(1, 0, 1, &mut received);
        for _ in 0..turns {
            ranks.engines[1].progress();
        }
        ranks.finish(&[&receive]);
        send.finish(&ranks);
        assert!(receive.error().is_none() && received == data, "after {turns} turns");
        counts.push(ranks.counter(0, "protocol_put"));
        ranks.carry(len, 2);
        nothing_is_left(&ranks);
    }
    // A late sender finds fewer of the four ranges.
    assert_eq!((counts[0], counts[59]), (4, 0), "{counts:?}");
    assert!(counts.iter().any(|&count| count == 1 || count == 2 || count == 3), "{counts:?}");
}

#[test]
fn messages_that_find_no_offer_are_fetched() {
    let ranks = ranks();
    ranks.carry(10, 0);
    let len = 4 * PAGE;
    let count = 3 * MOST_OFFERS;
    let data: Vec<_> = (0..count).map(|at| pattern(len, at as u8)).collect();
    let mut received = vec![vec![0; len]; count];
    let receives: Vec<_> = received.iter_mut().map(|into| ranks.irecv(1, 0, 1, into)).collect();
    let sends: Vec<_> = data.iter().map(|data| ranks.isend(0, 1, 1, data, &SendMode::Standard)).collect();
    ranks.finish(&receives.iter().map(|receive| &**receive).collect::<Vec<_>>());
    sends.into_iter().for_each(|send| send.finish(&ranks));
    assert!(received == data);
    nothing_is_left(&ranks);
}

#[test]
fn what_cannot_be_copied_comes_as_fragments() {
    let ranks = ranks_with(|link| link.refuses = true);
    for (tag, len) in [4 * PAGE, 9 * RANGE + 1].into_iter().enumerate() {
        ranks.carry(len, tag as i32);
    }
    assert!(ranks.counter(0, "protocol_fragments") != 0);
    nothing_is_left(&ranks);
}

#[test]
fn a_fin_of_a_range_that_was_not_claimed_disconnects() {
    let ranks = ranks();
    ranks.carry(10, 0);
    let (data, mut received) = (pattern(4 * PAGE, 1), vec![0; 4 * PAGE]);
    let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
    let receive = ranks.irecv(1, 0, 1, &mut received);
    ranks.engines[1].progress();
    let put = ranks.net.intercept(1, 0).expect("a request for a PUT");
    // PutFin: kind, flags, zero, code, then the receiver, the offset and the length as in the request.
    let mut fin = vec![0; 32];
    fin[0] = PUT_FIN;
    fin[8..32].copy_from_slice(&put[16..40]);
    ranks.net.inject(0, 1, &fin);
    for _ in 0..1000 {
        ranks.engines[1].progress();
    }
    assert_eq!(ranks.counter(1, "malformed"), 1);
    assert!(matches!(receive.error(), Some(Error::PeerFailed { peer: 0, .. })), "{:?}", receive.error());
    drop(send);
}

#[test]
fn a_death_in_the_middle_ends_the_receive() {
    for turns in 0..20 {
        let ranks = ranks();
        ranks.carry(10, 0);
        ranks.die_while_sending(9 * RANGE, turns);
    }
}
