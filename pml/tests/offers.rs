//! Messages whose ranges are offered to the sender: each byte is moved once, by either side, and the receiver does not
//! wait for a sender that does not poll.

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
    let parameters = [("pml_offer_window", "10000"), ("pml_offer_patience", "10"), ("pml_host_trials", "0")];
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
    assert_eq!(ranks.counter(1, "protocol_get"), 0, "the sender polled");
    nothing_is_left(&ranks);
}

#[test]
fn the_receiver_fetches_what_the_sender_does_not_claim() {
    for len in [8_192, WINDOW, WINDOW + 1, 10 * WINDOW + 7] {
        let ranks = ranks();
        ranks.carry(10, 0);
        ranks.carry_without_sender(&pattern(len, 5));
        assert_eq!((ranks.counter(1, "protocol_get"), ranks.counter(0, "protocol_fragments")), (1, 0));
        nothing_is_left(&ranks);
    }
}

#[test]
fn a_sender_may_stop_and_resume_polling_at_any_time() {
    let len = 12 * WINDOW + 3;
    for turns in 0..40 {
        let ranks = ranks();
        ranks.carry(10, 0);
        let (data, mut received) = (pattern(len, turns as u8), vec![0; len]);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = ranks.irecv(1, 0, 1, &mut received);
        // The sender polls, stops, and polls again.
        for _ in 0..turns % 8 {
            ranks.engines[1].progress();
            ranks.engines[0].progress();
        }
        for _ in 0..turns * 3 {
            ranks.engines[1].progress();
        }
        ranks.finish(&[&receive]);
        send.finish(&ranks);
        assert!(receive.error().is_none() && received == data, "after {turns} turns");
        // The link still works.
        ranks.carry(len, 2);
        nothing_is_left(&ranks);
    }
}

#[test]
fn a_sender_that_polls_again_gets_offers_again() {
    let ranks = ranks();
    ranks.carry(10, 0);
    let (data, mut received) = (pattern(3 * WINDOW, 1), vec![0; 3 * WINDOW]);
    let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
    let receive = ranks.irecv(1, 0, 1, &mut received);
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
    let (data, mut buffers) = (pattern(len, 1), [vec![0; len], vec![0; len]]);
    let [one, two] = &mut buffers;
    let receives = [ranks.irecv(0, 1, 3, one), ranks.irecv(1, 0, 3, two)];
    let sends = [ranks.isend(0, 1, 3, &data, &SendMode::Standard), ranks.isend(1, 0, 3, &data, &SendMode::Standard)];
    ranks.finish(&[&receives[0], &receives[1]]);
    sends.iter().for_each(|send| send.finish(&ranks));
    assert!(buffers.iter().all(|received| *received == data));
    assert!(ranks.counter(0, "protocol_get") != 0 && ranks.counter(1, "protocol_get") != 0);
    nothing_is_left(&ranks);
}

#[test]
fn a_sender_of_unclaimed_fragments_is_disconnected() {
    // The range of the forged fragment, in windows: the claimed window and the next, an offered window that is not
    // claimed, and the claimed window again.
    for (forged, replay) in [((0, 2), false), ((2, 3), false), ((0, 1), true)] {
        let ranks = ranks();
        ranks.carry(10, 0);
        let (data, mut received) = (pattern(4 * WINDOW, 1), vec![0; 4 * WINDOW]);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = ranks.irecv(1, 0, 1, &mut received);
        ranks.engines[1].progress();
        assert_eq!(ranks.net.offers(), 4);
        // The sender sees one of four offers, claims it, and sends its range.
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
        ranks.die_while_sending(40 * WINDOW, turns);
    }
}
