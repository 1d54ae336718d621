//! Data that follows its announcement without a request: it arrives once and in order, wherever it is when a receive
//! matches it or an end comes.

mod common;

use cableway_btl::Flags;
use cableway_datatype::{Datatype, Predefined};
use cableway_pml::{Buffer, Error, Outcome, Request, SendMode};

use common::{ANY_, Link, Ranks, bytes, pattern};

const LEN: usize = 20_000;
/// The announcement, and three fragments.
const MESSAGES: usize = 4;
/// Messages that are timed by each way before the data of others follows unasked.
const TRIALS: usize = 20;

fn ranks() -> Ranks {
    ranks_with(|_| (), &[])
}

/// Makes ranks of which the first may send `TRIALS` messages of `LEN` bytes to the second without a request.
fn ranks_with(change: fn(&mut Link), parameters: &[(&str, &str)]) -> Ranks {
    let link = Link::new("net", Flags::GET | Flags::OFFER).with(change);
    let trials = TRIALS.to_string();
    let parameters = [&[("pml_host_trials", trials.as_str()), ("pml_host_pause", "0")], parameters].concat();
    let ranks = Ranks::with(2, &[link], &parameters, false);
    // The first message by each way is not timed. That of a link may take longer, so that it is tried once more.
    for _ in 0..=3 * (TRIALS + 1) {
        ranks.carry(LEN, 0);
    }
    ranks.settle();
    ranks
}

fn nothing_is_left(ranks: &Ranks) {
    ranks.settle();
    assert_eq!((ranks.net.offers(), ranks.net.registered(), ranks.net.fragments()), (0, 0, 0));
    assert_eq!(ranks.counter(0, "malformed") + ranks.counter(1, "malformed"), 0);
}

/// Sends a message whose data follows.
fn send(ranks: &Ranks, tag: i32, data: &[u8]) {
    let before = ranks.counter(0, "sends_eager");
    assert!(ranks.isend(0, 1, tag, data, &SendMode::Standard).is_complete(), "the sender waits for nothing");
    assert_eq!(ranks.counter(0, "sends_eager"), before + 1);
}

/// Takes all messages off the wire.
fn intercept(ranks: &Ranks) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| ranks.net.intercept(0, 1)).map(|message| message.to_vec()).collect()
}

/// Delivers messages.
fn inject(ranks: &Ranks, messages: &[Vec<u8>]) {
    messages.iter().for_each(|message| ranks.net.inject(0, 1, message));
    ranks.settle();
}

#[test]
fn nobody_waits_for_an_answer() {
    let ranks = ranks();
    let (data, mut received) = (pattern(LEN, 3), vec![0; LEN]);
    let receive = ranks.irecv(1, 0, 3, &mut received);
    send(&ranks, 3, &data);
    assert_eq!(ranks.net.in_flight(), MESSAGES);
    ranks.finish(&[&receive]);
    assert_eq!(receive.result().unwrap().len, LEN as u64);
    assert!(received == data);
    nothing_is_left(&ranks);
}

#[test]
fn permits_run_out_and_other_sizes_have_none() {
    let ranks = ranks();
    let before = ranks.counter(0, "sends_eager");
    ranks.carry(2 * LEN, 1);
    assert_eq!(ranks.counter(0, "sends_eager"), before, "a size of its own");
    // One for each trial, and the first one.
    let permitted = TRIALS + 1;
    for _ in 0..permitted {
        ranks.carry(LEN, 1);
    }
    assert_eq!(ranks.counter(0, "sends_eager"), before + permitted as u64);
    ranks.carry(LEN, 1);
    assert_eq!(ranks.counter(0, "sends_eager"), before + permitted as u64, "the sender asks again");
    nothing_is_left(&ranks);
}

#[test]
fn a_receive_may_come_between_any_two_fragments() {
    for delivered in 0..=MESSAGES {
        let ranks = ranks();
        let (data, mut received) = (pattern(LEN, 3), vec![0; LEN]);
        send(&ranks, 3, &data);
        let messages = intercept(&ranks);
        assert_eq!(messages.len(), MESSAGES);
        inject(&ranks, &messages[..delivered]);
        let envelope = ranks.engines[1].iprobe(&ranks.world[1], ANY_, ANY_).unwrap();
        assert_eq!(envelope.map(|status| status.len), (delivered != 0).then_some(LEN as u64));
        let receive = ranks.irecv(1, ANY_, 3, &mut received);
        ranks.settle();
        assert_eq!(receive.is_complete(), delivered == MESSAGES);
        inject(&ranks, &messages[delivered..]);
        assert_eq!(receive.result().unwrap().len, LEN as u64);
        assert!(received == data, "after {delivered} messages");
        nothing_is_left(&ranks);
    }
}

#[test]
fn unexpected_messages_are_received_in_any_order_of_tags() {
    let ranks = ranks();
    let data: Vec<Vec<u8>> = (0..5).map(|tag| pattern(LEN + tag, tag as u8)).collect();
    data.iter().enumerate().for_each(|(tag, data)| send(&ranks, tag as i32, data));
    ranks.settle();
    for tag in [3, 0, 4, 2, 1] {
        let mut received = vec![0; data[tag].len()];
        assert_eq!(ranks.recv(1, 0, tag as i32, &mut received).unwrap().len, data[tag].len() as u64);
        assert!(received == data[tag], "tag {tag}");
    }
    nothing_is_left(&ranks);
}

#[test]
fn a_short_receive_gets_what_fits() {
    // Within a fragment, at the border of two, and nothing.
    for space in [10_000, 8192, 2 * 8192, 1, 0] {
        for unexpected in [false, true] {
            let ranks = ranks();
            let (data, mut received) = (pattern(LEN, 3), vec![0; space]);
            let early = (!unexpected).then(|| ranks.irecv(1, 0, 3, &mut received));
            send(&ranks, 3, &data);
            ranks.settle();
            let receive = early.unwrap_or_else(|| ranks.irecv(1, 0, 3, &mut received));
            ranks.settle();
            assert!(matches!(receive.error(), Some(Error::Truncated { .. })), "{:?}", receive.error());
            assert!(received == data[..space], "{space} bytes");
            ranks.carry(LEN, 4);
            nothing_is_left(&ranks);
        }
    }
}

#[test]
fn blocks_are_packed_and_unpacked_fragment_by_fragment() {
    let ranks = ranks();
    // Blocks of 12 bytes at a distance of 20. No fragment ends with one.
    let layout = Datatype::vector(LEN as i64 / 12 + 1, 3, 5, &Predefined::Int.datatype()).unwrap().commit();
    let extent = (LEN / 12 + 1) * 20;
    let (source, mut target) = (pattern(extent, 7), vec![0; extent]);
    let (request, receive) = (Request::new(), Request::new());
    let before = ranks.counter(0, "sends_eager");
    // SAFETY: buffers and requests live until complete.
    unsafe {
        let into = Buffer::typed(target.as_mut_ptr(), 1, &layout);
        ranks.engines[1].irecv(&ranks.world[1], 0, 3, into, &receive).unwrap();
        let from = Buffer::typed(source.as_ptr().cast_mut(), 1, &layout);
        let sent = ranks.engines[0].isend(&ranks.world[0], 1, 3, from, &SendMode::Standard, &request).unwrap();
        assert_eq!(sent, Outcome::Started);
    }
    assert!(request.is_complete());
    assert_eq!(ranks.counter(0, "sends_eager"), before + 1);
    ranks.finish(&[&receive]);
    receive.result().unwrap();
    for (at, (&sent, &came)) in source.iter().zip(&target).enumerate().take(extent - 8) {
        assert_eq!(came, if at % 20 < 12 { sent } else { 0 }, "byte {at}");
    }
    nothing_is_left(&ranks);
}

#[test]
fn a_busy_link_takes_the_rest_later() {
    let ranks = ranks_with(|link| link.busy = 700, &[]);
    let data: Vec<Vec<u8>> = (0..TRIALS / 2).map(|at| pattern(LEN + at, at as u8)).collect();
    let mut received = vec![vec![0; LEN + TRIALS]; data.len()];
    let receives: Vec<_> = received.iter_mut().map(|into| ranks.irecv(1, 0, 5, into)).collect();
    let before = ranks.counter(0, "sends_eager");
    let sends: Vec<_> = data.iter().map(|data| ranks.isend(0, 1, 5, data, &SendMode::Standard)).collect();
    assert_eq!(ranks.counter(0, "sends_eager"), before + data.len() as u64);
    sends.iter().for_each(|send| send.finish(&ranks));
    for ((receive, data), received) in receives.iter().zip(&data).zip(&received) {
        ranks.finish(&[receive]);
        assert_eq!(receive.result().unwrap().len, data.len() as u64);
        assert!(received[..data.len()] == data[..]);
    }
    nothing_is_left(&ranks);
}

#[test]
fn a_receiver_without_receives_collects_bounded_data() {
    let ranks = ranks_with(|_| (), &[("pml_unexpected_limit", "64K")]);
    let data = pattern(LEN, 3);
    let before = ranks.counter(0, "sends_eager");
    let sends: Vec<_> = (0..6).map(|_| ranks.isend(0, 1, 3, &data, &SendMode::Standard)).collect();
    ranks.settle();
    assert_eq!(ranks.counter(0, "sends_eager"), before + 3, "credit covers three");
    assert_eq!(sends.iter().filter(|send| send.is_complete()).count(), 3);
    for _ in 0..6 {
        let mut received = vec![0; LEN];
        ranks.recv(1, 0, 3, &mut received).unwrap();
        assert!(received == data);
    }
    sends.iter().for_each(|send| send.finish(&ranks));
    // The credit was returned: small messages cost more than what was left of it.
    let before = ranks.counter(0, "flow_controlled");
    for _ in 0..1000 {
        ranks.carry(8, 2);
    }
    assert_eq!(ranks.counter(0, "flow_controlled"), before);
    nothing_is_left(&ranks);
}

#[test]
fn the_death_of_the_sender_in_the_middle_fails_the_receive() {
    for delivered in 1..=MESSAGES {
        for unexpected in [false, true] {
            let ranks = ranks();
            let (data, mut received) = (pattern(LEN, 3), vec![0; LEN]);
            let early = (!unexpected).then(|| ranks.irecv(1, 0, 3, &mut received));
            send(&ranks, 3, &data);
            let messages = intercept(&ranks);
            inject(&ranks, &messages[..delivered]);
            ranks.net.kill(0);
            for _ in 0..1000 {
                ranks.engines[1].progress();
            }
            let receive = early.unwrap_or_else(|| ranks.irecv(1, 0, 3, &mut received));
            match (delivered == MESSAGES, receive.error()) {
                (true, None) => assert!(receive.is_complete() && received == data),
                (false, Some(Error::PeerFailed { peer: 0, .. })) => {}
                (_, other) => panic!("after {delivered} messages, unexpected {unexpected}: {other:?}"),
            }
        }
    }
}

#[test]
fn data_of_a_removed_communicator_is_dropped() {
    for delivered in 0..=MESSAGES {
        let ranks = ranks();
        let data = pattern(LEN, 3);
        let other: Vec<_> =
            (0..2).map(|at| ranks.engines[at].add_communicator(9, vec![0, 1], at as u32).unwrap()).collect();
        let request = Request::new();
        // SAFETY: the send completes within the call.
        let sent =
            unsafe { ranks.engines[0].isend(&other[0], 1, 3, bytes(&data), &SendMode::Standard, &request).unwrap() };
        assert_eq!(sent, Outcome::Started);
        assert!(request.is_complete());
        let messages = intercept(&ranks);
        inject(&ranks, &messages[..delivered]);
        ranks.engines[1].remove_communicator(&other[1]);
        inject(&ranks, &messages[delivered..]);
        ranks.carry(LEN, 4);
        nothing_is_left(&ranks);
    }
}

#[test]
fn what_no_sender_sends_disconnects_it() {
    type Change = fn(&mut Vec<Vec<u8>>);
    let changes: [(&str, Change); 5] = [
        ("without an announcement", |messages| drop(messages.remove(0))),
        ("in another order", |messages| messages.swap(1, 2)),
        ("twice", |messages| messages.insert(2, messages[1].clone())),
        ("too much", |messages| messages.push(messages[1].clone())),
        ("longer than its credit", |messages| {
            // The length in the announcement.
            messages[0][16..24].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        }),
    ];
    for (what, change) in changes {
        for posted in [false, true] {
            let ranks = ranks();
            let (data, mut received) = (pattern(LEN, 3), vec![0; LEN]);
            let _receive = posted.then(|| ranks.irecv(1, 0, 3, &mut received));
            send(&ranks, 3, &data);
            let mut messages = intercept(&ranks);
            change(&mut messages);
            inject(&ranks, &messages);
            assert_eq!(ranks.counter(1, "malformed"), 1, "{what}");
        }
    }
}
