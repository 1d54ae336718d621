//! Messages whose data is offered to the sender: whoever moves a range, each byte comes once, and nobody waits for
//! anybody who is away.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Error, SendMode};

use common::{Link, Ranks, net::MOST_OFFERS, pattern};

const WINDOW: usize = 10_000;

fn ranks() -> Ranks {
    ranks_with(|_| ())
}

fn ranks_with(change: fn(&mut Link)) -> Ranks {
    let link = Link::new("net", Flags::GET | Flags::OFFER).with(|link| link.capabilities.get_limit = 3_000);
    let parameters = [("pml_offer_window", "10000"), ("pml_offer_patience", "10")];
    Ranks::with(2, &[link.with(change)], &parameters, false)
}

fn nothing_is_left(ranks: &Ranks) {
    ranks.settle();
    assert_eq!((ranks.net.offers(), ranks.net.registered(), ranks.net.fragments()), (0, 0, 0));
    assert_eq!(ranks.counter(0, "malformed") + ranks.counter(1, "malformed"), 0);
}

#[test]
fn every_size_around_the_windows() {
    let ranks = ranks();
    for windows in [1, 2, MOST_OFFERS, MOST_OFFERS + 1, 13] {
        for len in [windows * WINDOW - 1, windows * WINDOW, windows * WINDOW + 1] {
            ranks.carry(len, windows as i32);
        }
    }
    assert_eq!(ranks.counter(1, "protocol_get"), 0, "the sender was there");
    nothing_is_left(&ranks);
}

#[test]
fn what_a_sender_does_not_attend_to_is_fetched() {
    for len in [8_192, WINDOW, WINDOW + 1, 10 * WINDOW + 7] {
        let ranks = ranks();
        ranks.carry(10, 0);
        let (data, mut room) = (pattern(len, 5), vec![0; len]);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = ranks.irecv(1, 0, 1, &mut room);
        for _ in 0..1000 {
            ranks.engines[1].progress();
        }
        assert!(receive.is_complete() && receive.error().is_none(), "{len} bytes wait for the sender");
        assert!(room == data);
        assert!(!send.is_complete());
        send.finish(&ranks);
        assert_eq!((ranks.counter(1, "protocol_get"), ranks.counter(0, "protocol_fragments")), (1, 0));
        nothing_is_left(&ranks);
    }
}

#[test]
fn a_sender_may_leave_and_come_back_at_any_time() {
    let len = 12 * WINDOW + 3;
    for turns in 0..40 {
        let ranks = ranks();
        ranks.carry(10, 0);
        let (data, mut room) = (pattern(len, turns as u8), vec![0; len]);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = ranks.irecv(1, 0, 1, &mut room);
        // There, away, and there again.
        for _ in 0..turns % 8 {
            ranks.engines[1].progress();
            ranks.engines[0].progress();
        }
        for _ in 0..turns * 3 {
            ranks.engines[1].progress();
        }
        ranks.finish(&[&receive]);
        send.finish(&ranks);
        assert!(receive.error().is_none() && room == data, "after {turns} turns");
        // And the link is what it was.
        ranks.carry(len, 2);
        nothing_is_left(&ranks);
    }
}

#[test]
fn a_sender_that_was_away_is_asked_again() {
    let ranks = ranks();
    ranks.carry(10, 0);
    let (data, mut room) = (pattern(3 * WINDOW, 1), vec![0; 3 * WINDOW]);
    let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
    let receive = ranks.irecv(1, 0, 1, &mut room);
    for _ in 0..1000 {
        ranks.engines[1].progress();
    }
    assert!(receive.is_complete());
    send.finish(&ranks);
    let before = ranks.counter(0, "protocol_fragments");
    ranks.carry(3 * WINDOW, 2);
    assert_eq!(ranks.counter(0, "protocol_fragments"), before + 3);
    nothing_is_left(&ranks);
}

#[test]
fn both_directions_at_once_are_fetched() {
    let ranks = ranks();
    ranks.carry(10, 0);
    let len = 20 * WINDOW;
    let (data, mut rooms) = (pattern(len, 1), [vec![0; len], vec![0; len]]);
    let [one, two] = &mut rooms;
    let receives = [ranks.irecv(0, 1, 3, one), ranks.irecv(1, 0, 3, two)];
    let sends = [ranks.isend(0, 1, 3, &data, &SendMode::Standard), ranks.isend(1, 0, 3, &data, &SendMode::Standard)];
    ranks.finish(&[&receives[0], &receives[1]]);
    sends.iter().for_each(|send| send.finish(&ranks));
    assert!(rooms.iter().all(|room| *room == data));
    assert!(ranks.counter(0, "protocol_get") != 0 && ranks.counter(1, "protocol_get") != 0);
    nothing_is_left(&ranks);
}

#[test]
fn fragments_that_no_claim_covers_end_their_sender() {
    // Of what range the forged fragment is, in windows: the claimed one and the next, a window that is on offer and not
    // claimed, and the claimed one again.
    for (forged, replay) in [((0, 2), false), ((2, 3), false), ((0, 1), true)] {
        let ranks = ranks();
        ranks.carry(10, 0);
        let (data, mut room) = (pattern(4 * WINDOW, 1), vec![0; 4 * WINDOW]);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = ranks.irecv(1, 0, 1, &mut room);
        ranks.engines[1].progress();
        assert_eq!(ranks.net.offers(), 4);
        // The sender sees one of four offers, claims it, and sends what it is asked for.
        let offers: Vec<_> = std::iter::from_fn(|| ranks.net.intercept(1, 0)).collect();
        assert_eq!(offers.len(), 4);
        ranks.net.inject(1, 0, &offers[0]);
        ranks.engines[0].progress();
        let fragment = ranks.net.intercept(0, 1).expect("a fragment");
        assert_eq!(fragment.len(), 24 + WINDOW);
        if replay {
            ranks.net.inject(0, 1, &fragment);
        }
        let (from, to) = (forged.0 * WINDOW, forged.1 * WINDOW);
        let mut message = fragment[..24].to_vec();
        message[16..24].copy_from_slice(&(from as u64).to_le_bytes());
        message.extend_from_slice(&data[from..to]);
        ranks.net.inject(0, 1, &message);
        for _ in 0..1000 {
            ranks.engines[1].progress();
        }
        assert_eq!(ranks.counter(1, "malformed"), 1, "windows {forged:?}, replay: {replay}");
        assert!(matches!(receive.error(), Some(Error::PeerFailed { peer: 0, .. })), "{:?}", receive.error());
        drop(send);
    }
}

#[test]
fn a_death_in_the_middle_ends_the_receive() {
    for turns in 0..20 {
        let ranks = ranks_with(|link| link.asynchronous = true);
        ranks.carry(10, 0);
        let (data, mut room) = (pattern(40 * WINDOW, 1), vec![0; 40 * WINDOW]);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = ranks.irecv(1, 0, 1, &mut room);
        for turn in 0..turns {
            ranks.engines[1].progress();
            if turn % 3 == 0 {
                ranks.engines[0].progress();
            }
        }
        ranks.net.kill(0);
        for _ in 0..1000 {
            ranks.engines[1].progress();
        }
        assert!(
            receive.is_complete() && matches!(receive.error(), None | Some(Error::PeerFailed { peer: 0, .. })),
            "after {turns} turns: {:?}",
            receive.error()
        );
        drop(send);
    }
}
