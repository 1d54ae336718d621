//! Every protocol over links with every ability: data arrives, requests complete, and all resources are freed.

mod common;

use std::sync::atomic::Ordering;

use cableway_btl::Flags;
use cableway_datatype::{Datatype, Layout, Predefined};
use cableway_pml::{Buffer, Error, Request, SendMode, Status};

use common::{ANY_, Link, Ranks, bytes, pattern, space};

const SIZES: [usize; 14] = [0, 1, 8, 239, 240, 241, 4080, 4081, 8191, 8192, 32768, 100_000, 250_001, 1_000_003];

fn kinds() -> Vec<(&'static str, Vec<Link>)> {
    let all = Flags::GET | Flags::PUT | Flags::SEND_IN_PLACE;
    let link = |flags| Link::new("net", flags);
    vec![
        ("send only", vec![link(Flags::empty())]),
        ("get", vec![link(Flags::GET)]),
        ("get, asynchronous", vec![link(Flags::GET).with(|link| link.asynchronous = true)]),
        ("get, refused", vec![link(Flags::GET).with(|link| link.refuses = true)]),
        ("offered", vec![link(Flags::GET | Flags::OFFER)]),
        ("offered, refused", vec![link(Flags::GET | Flags::OFFER).with(|link| link.refuses = true)]),
        ("offered, not claimed", vec![link(Flags::GET | Flags::OFFER).with(|link| link.unclaimed = true)]),
        (
            "offered, busy",
            vec![link(Flags::GET | Flags::OFFER).with(|link| (link.busy, link.asynchronous) = (500, true))],
        ),
        (
            "offered, neither claimed nor fetched",
            vec![link(Flags::GET | Flags::OFFER).with(|link| (link.unclaimed, link.refuses) = (true, true))],
        ),
        ("put", vec![link(Flags::PUT)]),
        ("put, asynchronous", vec![link(Flags::PUT).with(|link| link.asynchronous = true)]),
        ("put, refused", vec![link(Flags::PUT).with(|link| link.refuses = true)]),
        ("in place", vec![link(Flags::SEND_IN_PLACE)]),
        ("in place, asynchronous", vec![link(Flags::SEND_IN_PLACE).with(|link| link.asynchronous = true)]),
        ("busy", vec![link(all).with(|link| (link.busy, link.asynchronous) = (700, true))]),
        ("busy, send only", vec![link(Flags::empty()).with(|link| link.busy = 700)]),
        ("three links", vec![link(Flags::empty()).with(|link| link.count = 3)]),
        ("three links, put", vec![link(Flags::PUT).with(|link| link.count = 3)]),
        (
            "two transports",
            vec![
                link(Flags::PUT).with(|link| link.capabilities.bandwidth = 3e9),
                Link::new("other", Flags::GET).with(|link| link.busy = 100),
            ],
        ),
    ]
}

#[test]
fn every_size_over_every_kind_of_link() {
    for (kind, links) in kinds() {
        for serialized in [false, true] {
            let ranks = Ranks::with(2, &links, &[], serialized);
            ranks.net.shuffle.store(true, Ordering::Relaxed);
            for (tag, len) in SIZES.into_iter().enumerate() {
                ranks.carry(len, tag as i32);
            }
            ranks.settle();
            assert_eq!(ranks.net.registered(), 0, "{kind}: registrations end with their messages");
            assert_eq!(ranks.net.fragments(), 0, "{kind}: fragments are all sent");
            assert_eq!(ranks.counter(1, "malformed") + ranks.counter(0, "malformed"), 0);
            ranks.finalize();
        }
    }
}

#[test]
fn the_links_abilities_determine_the_protocol() {
    let taken = |flags: Flags, change: fn(&mut Link)| {
        let ranks = Ranks::new(2, &[Link::new("net", flags).with(change)]);
        ranks.carry(1 << 20, 1);
        let at = |rank, name| ranks.counter(rank, name) != 0;
        (at(1, "protocol_get"), at(0, "protocol_put"), at(0, "protocol_fragments"))
    };
    assert_eq!(taken(Flags::GET | Flags::PUT, |_| ()), (true, false, false));
    assert_eq!(taken(Flags::PUT, |_| ()), (false, true, false));
    assert_eq!(taken(Flags::GET | Flags::OFFER, |_| ()), (false, false, true));
    assert_eq!(taken(Flags::GET | Flags::OFFER, |link| link.unclaimed = true), (true, false, false));
    assert_eq!(taken(Flags::empty(), |_| ()), (false, false, true));
    assert_eq!(taken(Flags::GET, |link| link.refuses = true), (true, false, true));
    assert_eq!(taken(Flags::PUT, |link| link.refuses = true), (false, true, true));
}

#[test]
fn unexpected_messages_are_received() {
    for (_, links) in kinds() {
        let ranks = Ranks::new(2, &links);
        let data: Vec<Vec<u8>> = SIZES.iter().map(|&len| pattern(len, 3)).collect();
        let sends: Vec<_> = data
            .iter()
            .enumerate()
            .map(|(tag, data)| ranks.isend(0, 1, tag as i32, data, &SendMode::Standard))
            .collect();
        ranks.settle();
        for (tag, data) in data.iter().enumerate().rev() {
            let mut received = vec![0; data.len()];
            let status = ranks.recv(1, ANY_, tag as i32, &mut received).unwrap();
            assert_eq!((status.source, status.len), (0, data.len() as u64));
            assert!(received == *data);
        }
        sends.iter().for_each(|send| send.finish(&ranks));
    }
}

#[test]
fn order_holds_over_many_links() {
    let links = [Link::new("net", Flags::GET).with(|link| (link.count, link.busy) = (4, 300))];
    let ranks = Ranks::new(2, &links);
    ranks.net.shuffle.store(true, Ordering::Relaxed);
    // Sizes of all protocols with one tag: only the order distinguishes them.
    let data: Vec<Vec<u8>> = (0..600).map(|i| pattern([8, 3000, 0, 9000, 64, 20_000][i % 6] + i, i as u8)).collect();
    let sends: Vec<_> = data.iter().map(|data| ranks.isend(0, 1, 5, data, &SendMode::Standard)).collect();
    for data in &data {
        let mut received = vec![0; data.len() + 10];
        let status = ranks.recv(1, 0, ANY_, &mut received).unwrap();
        assert_eq!(status.len, data.len() as u64);
        assert!(received[..data.len()] == data[..]);
    }
    sends.iter().for_each(|send| send.finish(&ranks));
}

#[test]
fn truncation_is_reported_and_the_message_drained() {
    for (kind, links) in kinds() {
        let ranks = Ranks::new(2, &links);
        for len in [8, 4000, 5000, 200_000] {
            for late in [false, true] {
                let data = pattern(len, 9);
                let mut received = vec![0xaa; len];
                let post = |received: &mut [u8]| ranks.irecv(1, 0, 1, &mut received[..len / 2]);
                let early = (!late).then(|| post(&mut received));
                let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
                ranks.settle();
                let receive = early.unwrap_or_else(|| post(&mut received));
                ranks.finish(&[&receive]);
                send.finish(&ranks);
                assert!(
                    matches!(receive.error(), Some(Error::Truncated { sent, capacity, .. })
                        if *sent == len as u64 && *capacity == len as u64 / 2),
                    "{kind}: {:?}",
                    receive.error()
                );
                assert_eq!(receive.status().len, len as u64, "the length as sent");
                assert!(received[..len / 2] == data[..len / 2]);
                assert!(
                    received[len / 2..].iter().all(|&byte| byte == 0xaa),
                    "{kind}: memory beyond the buffer is unchanged"
                );
                // Later messages still work.
                ranks.carry(len, 2);
            }
        }
    }
}

#[test]
fn an_empty_receive_gets_the_status() {
    let ranks = Ranks::new(2, &[Link::new("net", Flags::GET)]);
    let data = pattern(50_000, 1);
    let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
    assert!(matches!(ranks.recv(1, 0, 1, &mut []), Err(Error::Truncated { sent: 50_000, capacity: 0, .. })));
    send.finish(&ranks);
}

/// Returns every other block of 100 ints, and the span.
fn strided(blocks: u64) -> (Layout, usize) {
    let layout = Datatype::vector(blocks as i64, 100, 200, &Predefined::Int.datatype()).unwrap().commit();
    (layout, blocks as usize * 800)
}

#[test]
fn data_in_blocks_on_either_side() {
    for (kind, links) in kinds() {
        let ranks = Ranks::new(2, &links);
        for blocks in [1u64, 2, 9, 10, 300, 1000] {
            let (layout, span) = strided(blocks);
            let source = pattern(span, 7);
            let packed: Vec<u8> = source.chunks(800).flat_map(|row| &row[..400]).copied().collect();
            for (from_pieces, to_pieces) in [(true, false), (false, true), (true, true)] {
                let mut received = vec![0u8; span];
                let from = if from_pieces { Buffer::typed(source.as_ptr(), 1, &layout) } else { bytes(&packed) };
                let to = if to_pieces {
                    Buffer::typed(received.as_mut_ptr(), 1, &layout)
                } else {
                    space(&mut received[..packed.len()])
                };
                let (sent, result) = ranks.transfer(from, to, &SendMode::Standard);
                assert!(sent.is_none());
                assert_eq!(result.unwrap().len, packed.len() as u64);
                if to_pieces {
                    let got: Vec<u8> =
                        received.chunks(800).flat_map(|row| &row[..400.min(row.len())]).copied().collect();
                    assert!(got == packed, "{kind}, {blocks} blocks");
                    assert!(
                        received.chunks(800).all(|row| row.len() <= 400 || row[400..].iter().all(|&byte| byte == 0))
                    );
                    received.clear();
                } else {
                    assert!(received[..packed.len()] == packed, "{kind}, {blocks} blocks");
                }
            }
        }
    }
}

#[test]
fn messages_to_oneself() {
    let ranks = Ranks::new(1, &[Link::new("net", Flags::GET)]);
    for len in [0, 8, 5000, 100_000] {
        let data = pattern(len, 2);
        let send = ranks.isend(0, 0, 4, &data, &SendMode::Standard);
        let mut received = vec![0; len];
        assert_eq!(ranks.recv(0, 0, 4, &mut received).unwrap().len, len as u64);
        assert!(received == data);
        send.finish(&ranks);
    }
}

#[test]
fn the_peer_that_does_not_exist() {
    let ranks = Ranks::new(1, &[Link::new("net", Flags::empty())]);
    let null = cableway_pml::PROC_NULL;
    assert!(ranks.isend(0, null, 1, &[1, 2], &SendMode::Synchronous).is_complete());
    let status = ranks.recv(0, null, 1, &mut [0]).unwrap();
    assert_eq!(status, Status { source: null, tag: ANY_, len: 0, cancelled: false });
    assert_eq!(ranks.engines[0].iprobe(&ranks.world[0], null, 1).unwrap(), Some(status));
    let message = ranks.engines[0].improbe(&ranks.world[0], null, 1).unwrap().unwrap();
    // SAFETY: nothing is written.
    assert_eq!(unsafe { ranks.engines[0].mrecv(message, Buffer::EMPTY) }.unwrap(), status);
}

#[test]
fn bad_arguments_are_errors() {
    let ranks = Ranks::new(2, &[Link::new("net", Flags::empty())]);
    let (engine, world, request) = (&ranks.engines[0], &ranks.world[0], Request::new());
    // SAFETY: no buffer.
    unsafe {
        let send = |dest, tag| engine.isend(world, dest, tag, Buffer::EMPTY, &SendMode::Standard, &request);
        assert!(matches!(send(2, 0), Err(Error::NoSuchRank { rank: 2, size: 2 })));
        assert!(matches!(send(-7, 0), Err(Error::NoSuchRank { rank: -7, .. })));
        assert!(matches!(send(1, ANY_), Err(Error::BadTag { tag: ANY_ })));
        assert!(matches!(engine.irecv(world, 5, 0, Buffer::EMPTY, &request), Err(Error::NoSuchRank { .. })));
    }
    assert!(!request.is_active() && !request.is_complete());
}
