//! Flow control: unexpected data is bounded, and nothing deadlocks.

mod common;

use std::sync::Arc;
use std::time::Duration;

use cableway_btl::Flags;
use cableway_pml::{AttachedBuffer, Error, Request, SendMode};

use common::{ANY_, Link, Ranks, bytes, pattern};

const WINDOW: u64 = 64 << 10;

fn small_window(links: &[Link]) -> Ranks {
    Ranks::with(2, links, &[("pml_unexpected_limit", "64K")], false)
}

#[test]
fn a_receiver_without_posted_receives_keeps_bounded_data_and_loses_none() {
    const MESSAGES: usize = 100_000;
    let ranks = small_window(&[Link::new("net", Flags::GET)]);
    let data: Vec<[u8; 8]> = (0..MESSAGES as u64).map(u64::to_le_bytes).collect();
    let sends: Vec<_> = data.iter().map(|data| ranks.isend(0, 1, 1, data, &SendMode::Standard)).collect();
    ranks.settle();
    let open = sends.iter().filter(|send| !send.is_complete()).count();
    let kept = MESSAGES - open;
    assert!(kept as u64 * 8 <= WINDOW, "the receiver keeps the data of {kept} messages");
    assert!(kept > 100, "some messages were eager");
    assert_eq!(ranks.counter(0, "flow_controlled"), open as u64);
    for expected in 0..MESSAGES as u64 {
        let mut received = [0; 8];
        let status = ranks.recv(1, ANY_, ANY_, &mut received).unwrap();
        assert_eq!((status.len, u64::from_le_bytes(received)), (8, expected));
    }
    sends.iter().for_each(|send| send.finish(&ranks));
    // The credit was returned.
    let before = ranks.counter(0, "flow_controlled");
    for _ in 0..1000 {
        ranks.carry(8, 2);
    }
    assert_eq!(ranks.counter(0, "flow_controlled"), before);
}

#[test]
fn a_later_tag_is_matched_past_a_flood() {
    let ranks = small_window(&[Link::new("net", Flags::GET)]);
    let data = pattern(1000, 1);
    let flood: Vec<_> = (0..2000).map(|_| ranks.isend(0, 1, 1, &data, &SendMode::Standard)).collect();
    let wanted = ranks.isend(0, 1, 2, &data, &SendMode::Standard);
    let mut received = vec![0; 1000];
    assert_eq!(ranks.recv(1, 0, 2, &mut received).unwrap().tag, 2);
    wanted.finish(&ranks);
    for _ in &flood {
        ranks.recv(1, 0, 1, &mut received).unwrap();
    }
    flood.iter().for_each(|send| send.finish(&ranks));
}

#[test]
fn no_call_that_starts_a_send_waits_for_credit() {
    const MESSAGES: usize = 3000;
    // Empty messages cost credit as well: the window is used up long before the last message.
    for len in [0, 8] {
        let ranks = small_window(&[Link::new("net", Flags::GET)]);
        let mut memory = vec![0_u8; MESSAGES * (len + AttachedBuffer::OVERHEAD)];
        // SAFETY: the memory outlives the test's use of the buffer.
        let attached = Arc::new(unsafe { AttachedBuffer::new(memory.as_mut_ptr(), memory.len()) });
        for mode in [SendMode::Buffered(attached.clone()), SendMode::Standard, SendMode::Synchronous] {
            let buffered = matches!(mode, SendMode::Buffered(_));
            let data: Vec<Vec<u8>> = (0..MESSAGES).map(|number| number.to_le_bytes()[..len].to_vec()).collect();
            // No rank makes progress meanwhile.
            let sends: Vec<_> = data.iter().map(|data| ranks.isend(0, 1, 1, data, &mode)).collect();
            let last = ranks.isend(0, 1, 2, b"last", &SendMode::Standard);
            if buffered {
                assert!(sends.iter().all(|send| send.is_complete()), "{len} bytes: the attached buffer holds them");
                assert!(!attached.is_empty(), "{len} bytes: no credit is left");
            }
            let mut received = [0; 8];
            assert_eq!(
                ranks.recv(1, 0, 2, &mut received).unwrap().len,
                4,
                "{len} bytes: a later tag is received first"
            );
            last.finish(&ranks);
            for data in &data {
                assert_eq!(ranks.recv(1, 0, 1, &mut received).unwrap().len, len as u64);
                assert_eq!(received[..len], data[..], "messages arrive in the order of the sends");
            }
            sends.iter().for_each(|send| send.finish(&ranks));
            ranks.settle();
            assert!(attached.is_empty());
        }
    }
}

#[test]
fn a_full_attached_buffer_is_an_error_when_credit_is_used_up() {
    const MESSAGES: usize = 100;
    let ranks = small_window(&[Link::new("net", Flags::GET)]);
    let data = [7; 8];
    let mut memory = vec![0_u8; MESSAGES * (data.len() + AttachedBuffer::OVERHEAD)];
    // SAFETY: the memory outlives the test's use of the buffer.
    let attached = Arc::new(unsafe { AttachedBuffer::new(memory.as_mut_ptr(), memory.len()) });
    let mode = SendMode::Buffered(attached.clone());
    let mut sent = 0;
    let refused = loop {
        let request = Request::new();
        // SAFETY: a buffered send is complete when the call returns.
        match unsafe { ranks.engines[0].isend(&ranks.world[0], 1, 1, bytes(&data), &mode, &request) } {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoBufferSpace { .. }), "{refused}");
    let eager = WINDOW as usize / 136;
    assert_eq!(sent, eager + MESSAGES, "messages covered by credit need no buffer");
    let mut received = [0; 8];
    for _ in 0..sent {
        ranks.recv(1, 0, 1, &mut received).unwrap();
    }
    ranks.settle();
    assert!(attached.is_empty());
    assert!(ranks.isend(0, 1, 1, &data, &mode).is_complete(), "the buffer has space again");
}

#[test]
fn floods_in_both_directions_end() {
    for links in [
        vec![Link::new("net", Flags::GET)],
        vec![Link::new("net", Flags::empty()).with(|link| link.busy = 500)],
        vec![Link::new("net", Flags::PUT).with(|link| (link.count, link.asynchronous) = (2, true))],
    ] {
        let ranks = small_window(&links);
        let data: Vec<Vec<u8>> = (0..3000).map(|i| pattern([8, 2000, 20_000][i % 3], i as u8)).collect();
        let sends: Vec<_> = data
            .iter()
            .flat_map(|data| [0, 1].map(|rank| ranks.isend(rank, 1 - rank as i32, 1, data, &SendMode::Standard)))
            .collect();
        for data in &data {
            for rank in [0, 1] {
                let mut received = vec![0; 20_000];
                let status = ranks.recv(rank, ANY_, 1, &mut received).unwrap();
                assert!(status.len == data.len() as u64 && received[..data.len()] == data[..]);
            }
        }
        sends.iter().for_each(|send| send.finish(&ranks));
    }
}

#[test]
fn without_a_window_everything_is_announced() {
    let ranks = Ranks::with(2, &[Link::new("net", Flags::GET)], &[("pml_unexpected_limit", "0")], false);
    for len in [0, 8, 3000, 100_000] {
        ranks.carry(len, 1);
    }
    assert_eq!(ranks.counter(0, "sends_eager"), 0);
    assert_eq!(ranks.counter(0, "sends_rendezvous"), 4);
}

#[test]
fn a_peer_that_ignores_its_credit_is_disconnected() {
    let ranks = small_window(&[Link::new("net", Flags::GET)]);
    // Inject an eager message of 4000 bytes repeatedly, each time with the next sequence number.
    let data = pattern(4000, 1);
    assert!(ranks.isend(0, 1, 1, &data, &SendMode::Standard).is_complete());
    let mut message = ranks.net.intercept(0, 1).unwrap().to_vec();
    for seq in 0..100u32 {
        message[12..16].copy_from_slice(&seq.to_le_bytes());
        ranks.net.inject(0, 1, &message);
    }
    ranks.settle();
    assert_eq!(ranks.counter(1, "malformed"), 1);
    assert!(ranks.counter(1, "unexpected") <= WINDOW / 4000);
}

#[test]
fn what_is_owed_after_an_operation_leaves_by_a_drain() {
    let data = pattern(60_000, 1);
    // The rank whose request completes first owes the other one a header: data is stored, or was fetched.
    for (flag, debtor) in [(Flags::PUT, 0), (Flags::GET, 1)] {
        let ranks = Ranks::new(2, &[Link::new("net", flag).with(|link| link.busy = 500)]);
        let mut refused = 0;
        for _ in 0..100 {
            let mut received = vec![0; data.len()];
            let receive = ranks.irecv(1, 0, 1, &mut received);
            let send = ranks.isend(0, 1, 1, &data, &SendMode::Synchronous);
            let is_complete = |rank| if rank == 0 { send.is_complete() } else { receive.is_complete() };
            for turn in 0.. {
                assert!(turn < 10_000, "nothing moves");
                ranks.engines[debtor].progress();
                if is_complete(debtor) {
                    break;
                }
                ranks.engines[1 - debtor].progress();
            }
            let other_ends_alone = || {
                for _ in 0..100 {
                    ranks.engines[1 - debtor].progress();
                }
                is_complete(1 - debtor)
            };
            if !other_ends_alone() {
                refused += 1;
                assert!(ranks.engines[debtor].drain(Duration::from_secs(120)));
                assert!(other_ends_alone(), "a drain sends all");
            }
            assert!(received == data);
        }
        assert!(refused > 0, "the link refused no such header");
    }
}
