use cableway_btl::{MAX_HEADER, Offer, RemoteHandle, SharedBytes};
use cableway_common_cuda::Strided;
use proptest::prelude::*;

use super::*;
use crate::abort::Abort;
use crate::protocol::rendezvous::{Announced, FLAG_ADDRESSABLE, FLAG_ON_DEVICE, FLAG_PAGE_LOCKED, RENDEZVOUS_LEN};
use crate::status::ANY;
use crate::wire::{BtlTag, Exposed, Id, MATCH_LEN, match_bytes, match_envelope};

fn envelope() -> impl Strategy<Value = Envelope> {
    (any::<u32>(), any::<u16>(), any::<i32>(), any::<u32>()).prop_map(|(context, epoch, tag, seq)| Envelope {
        context,
        epoch,
        tag: if tag == ANY { 0 } else { tag },
        seq,
    })
}

fn id() -> impl Strategy<Value = Id> {
    any::<u64>().prop_map(Id)
}

fn announced() -> impl Strategy<Value = Announced> {
    let ways = prop_oneof![Just((false, false)), Just((true, false)), Just((true, true))];
    let places = prop_oneof![Just((false, false)), Just((true, false)), Just((false, true))];
    (any::<u64>(), id(), ways, places).prop_map(|(len, sender, (addressable, packs), (on_device, page_locked))| {
        Announced { len, sender, addressable, packs, on_device, page_locked, follows: false }
    })
}

/// Announces data that follows without a request.
fn following(len: u64, sender: Id) -> Announced {
    Announced { len, sender, follows: true, ..Announced::NOTHING }
}

fn exposed() -> impl Strategy<Value = Exposed> {
    (any::<u32>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..=RemoteHandle::MAX)).prop_map(
        |(btl, ordinal, handle)| Exposed {
            btl: BtlTag(btl),
            ordinal,
            handle: RemoteHandle::new(&handle).unwrap(),
            blocks: None,
        },
    )
}

/// Generates blocks and their size in bytes.
fn blocks() -> impl Strategy<Value = (Strided, u64)> {
    let dimension = (1..1000_u64, 0..1_000_000_i64);
    (0..i64::MAX / 2, 1..1_000_000_u64, [dimension.clone(), dimension.clone(), dimension]).prop_map(
        |(offset, block, dimensions)| {
            let strided = Strided { offset, block, dimensions };
            (strided, strided.size().unwrap())
        },
    )
}

fn result_() -> impl Strategy<Value = Result<(), Abort>> {
    any::<u32>().prop_map(Abort::result)
}

/// Encodes a header, and checks that the same one is parsed.
fn bytes<H: Header + PartialEq + std::fmt::Debug>(header: H) -> Vec<u8> {
    let written = HeaderBuffer::new(&header);
    let bytes = written.as_bytes();
    let reader = Reader::new(bytes, bytes.len() + payload(bytes)).unwrap();
    assert_eq!(H::parse(&reader), Ok(header));
    bytes.to_vec()
}

/// Returns the length of the payload that a header needs.
fn payload(header: &[u8]) -> usize {
    usize::from(header[0] == kind::FRAGMENT)
}

fn parses(bytes: &[u8], message_len: usize) -> Result<(), Malformed> {
    recode(bytes, message_len).map(drop)
}

fn header() -> impl Strategy<Value = Vec<u8>> {
    let range = (0..u64::MAX / 2, 0..u64::MAX / 2);
    prop_oneof![
        envelope().prop_map(bytes),
        (envelope(), announced()).prop_map(|(envelope, announced)| bytes(Rts { envelope, announced })),
        (envelope(), 1..u64::MAX, id())
            .prop_map(|(envelope, len, sender)| bytes(Rts { envelope, announced: following(len, sender) })),
        (envelope(), announced(), exposed()).prop_map(|(envelope, announced, from)| {
            let announced = Announced { packs: false, ..announced };
            bytes(Get { envelope, announced, from })
        }),
        (envelope(), announced(), exposed(), blocks()).prop_map(|(envelope, announced, from, (blocks, len))| {
            let announced = Announced { len, packs: false, ..announced };
            bytes(Get { envelope, announced, from: Exposed { blocks: Some(blocks), ..from } })
        }),
        (id(), id(), exposed(), blocks()).prop_map(|(sender, receiver, to, (blocks, len))| {
            let to = Exposed { blocks: Some(blocks), ..to };
            bytes(Put { sender, receiver, offset: 0, len, total: len, to, offer: None })
        }),
        (id(), id(), range.clone(), any::<[bool; 2]>(), any::<Option<u64>>()).prop_map(
            |(sender, receiver, (from, len), [to_device, stream], offer)| {
                let offer = offer.map(Offer);
                bytes(Ack {
                    sender,
                    receiver,
                    from,
                    to: from + len,
                    total: len,
                    to_device,
                    fetches: !to_device,
                    stream,
                    cache_eager: !stream,
                    unasked: if to_device { 200 } else { 0 },
                    offer,
                })
            }
        ),
        (id(), id(), range.clone(), exposed(), any::<Option<u64>>()).prop_map(
            |(sender, receiver, (offset, len), to, offer)| {
                bytes(Put { sender, receiver, offset, len, total: offset + len, to, offer: offer.map(Offer) })
            }
        ),
        (id(), 0..u64::MAX / 2).prop_map(|(receiver, offset)| bytes(FragmentHeader {
            transfer: receiver,
            unasked: offset % 2 == 0,
            offset
        })),
        (id(), result_()).prop_map(|(sender, result)| bytes(Fin { sender, result })),
        (id(), range, result_()).prop_map(|(receiver, (offset, len), result)| bytes(PutFin {
            receiver,
            offset,
            len,
            result
        })),
        any::<u64>().prop_map(|consumed| bytes(CreditHeader { consumed })),
        any::<(u32, u64)>().prop_map(|(btl, received)| bytes(Resume { btl: BtlTag(btl), received })),
        (id(), any::<u64>(), 1..u32::MAX).prop_map(|(receiver, sent, code)| bytes(AbortHeader {
            receiver,
            sent,
            reason: Abort::from_code(code)
        })),
    ]
}

fn first_words(bytes: &[u8]) -> [u64; 2] {
    SharedBytes::from_private(bytes).first_words().unwrap()
}

proptest! {
    #[test]
    fn what_is_written_is_read(bytes in header()) {
        let written = recode(&bytes, bytes.len() + payload(&bytes)).map(|written| written.as_bytes().to_vec());
        prop_assert_eq!(written.as_ref(), Ok(&bytes));
        let reader = Reader::new(&bytes, bytes.len()).unwrap();
        let expected = if bytes[0] == kind::MATCH { Envelope::parse(&reader).ok() } else { None };
        prop_assert_eq!(match_envelope(first_words(&bytes)), expected);
    }

    #[test]
    fn a_cut_header_is_refused(bytes in header(), cut in 0..MAX_HEADER) {
        let cut = cut % bytes.len();
        prop_assert!(parses(&bytes[..cut], cut).is_err());
    }

    /// Checks that a changed byte changes the header or is refused.
    #[test]
    fn no_byte_is_ignored(before in header(), at in 1..MAX_HEADER, change in 1..=u8::MAX) {
        let mut bytes = before.clone();
        let at = 1 + at % (bytes.len() - 1);
        bytes[at] ^= change;
        let read = recode(&bytes, bytes.len() + payload(&bytes)).map(|written| written.as_bytes().to_vec());
        prop_assert_ne!(read, Ok(before), "byte {} of {:?}", at, bytes);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..MAX_HEADER), more in 0usize..99) {
        if let Ok(written) = recode(&bytes, bytes.len() + more) {
            prop_assert!(bytes.starts_with(written.as_bytes()));
        }
    }
}

#[test]
fn what_no_engine_sends_is_refused() {
    let envelope = Envelope { context: 1, epoch: 0, tag: 3, seq: 9 };
    let wildcard = match_bytes(&Envelope { tag: ANY, ..envelope });
    assert_eq!(parses(&wildcard, MATCH_LEN), Err(Malformed::Tag(ANY)));
    assert_eq!(match_envelope(first_words(&wildcard)), None);
    let mut flagged = match_bytes(&envelope);
    flagged[1] = 0x80;
    assert!(matches!(parses(&flagged, MATCH_LEN), Err(Malformed::Flags { .. })));
    let announced = Announced { len: 10, sender: Id(1), on_device: true, ..Announced::NOTHING };
    let mut both = bytes(Rts { envelope, announced });
    both[1] |= FLAG_PAGE_LOCKED;
    assert!(matches!(parses(&both, RENDEZVOUS_LEN), Err(Malformed::Flags { .. })));
    let part = bytes(Rts { envelope, announced });
    assert!(parses(&part, RENDEZVOUS_LEN + 10).is_ok());
    assert!(matches!(parses(&part, RENDEZVOUS_LEN + 9), Err(Malformed::Payload { .. })));
    let follows = bytes(Rts { envelope, announced: following(10, Id(1)) });
    let payload = parses(&follows, RENDEZVOUS_LEN + 10);
    assert!(matches!(payload, Err(Malformed::Payload { .. })), "the data follows in fragments");
    let empty = HeaderBuffer::new(&Rts { envelope, announced: following(0, Id(1)) });
    assert!(matches!(parses(empty.as_bytes(), RENDEZVOUS_LEN), Err(Malformed::Flags { .. })));
    for other in [FLAG_ADDRESSABLE, FLAG_ON_DEVICE] {
        let mut both = follows.clone();
        both[1] |= other;
        assert!(matches!(parses(&both, RENDEZVOUS_LEN), Err(Malformed::Flags { .. })));
    }
    let ack = Ack {
        sender: Id(1),
        receiver: Id(2),
        from: 5,
        to: 4,
        total: 9,
        to_device: false,
        fetches: false,
        stream: true,
        cache_eager: false,
        unasked: 0,
        offer: None,
    };
    assert!(matches!(parses(HeaderBuffer::new(&ack).as_bytes(), 56), Err(Malformed::Range { .. })));
    let beyond = HeaderBuffer::new(&FragmentHeader { transfer: Id(1), unasked: false, offset: u64::MAX });
    assert!(matches!(parses(beyond.as_bytes(), 25), Err(Malformed::Range { .. })));
    assert!(matches!(parses(beyond.as_bytes(), 24), Err(Malformed::Payload { .. })));
    assert_eq!(parses(&[99], 1), Err(Malformed::Kind(99)));
}
