use proptest::prelude::*;

use super::*;

fn encoded(message: &Preamble<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

fn reason(bytes: &[u8]) -> &'static str {
    match Preamble::parse(bytes) {
        Err(Malformed::ActiveMessage { len, reason }) => {
            assert_eq!(len, bytes.len() as u64);
            reason
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        id: u32,
        header in prop::collection::vec(any::<u8>(), 0..=HEADER_LIMIT),
        data in prop::collection::vec(any::<u8>(), 0..=INLINE_LIMIT),
        len: u64,
        tag in 1..=i32::MAX,
    ) {
        for data in [Data::Inline(&data), Data::Follows { len, tag }] {
            let message = Preamble { id, header: &header, data };
            let bytes = encoded(&message);
            prop_assert!(bytes.len() <= MESSAGE_LIMIT);
            prop_assert_eq!(Preamble::parse(&bytes), Ok(message));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_written_again(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(message) = Preamble::parse(&bytes) {
            prop_assert_eq!(encoded(&message), bytes);
        }
    }
}

#[test]
fn the_layouts_are_those_of_the_page() {
    let message = Preamble { id: 0x0403_0201, header: b"h", data: Data::Inline(b"dd") };
    assert_eq!(encoded(&message), [1, 2, 3, 4, 1, 0, 1, 0, b'h', b'd', b'd']);
    let data = Data::Follows { len: 0x0102, tag: 7 };
    let mut expected = vec![9, 0, 0, 0, 2, 0, 2, 0, 2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    expected.extend(b"hi");
    assert_eq!(encoded(&Preamble { id: 9, header: b"hi", data }), expected);
}

#[test]
fn malformed_messages_are_refused() {
    let inline = encoded(&Preamble { id: 1, header: b"head", data: Data::Inline(b"") });
    let follows = encoded(&Preamble { id: 1, header: b"head", data: Data::Follows { len: 5, tag: 3 } });
    for bytes in [&inline, &follows] {
        for len in 0..bytes.len() {
            assert_eq!(reason(&bytes[..len]), "it is too short for its header", "{len}");
        }
    }
    let with = |bytes: &[u8], at: usize, byte: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(reason(&with(&inline, 6, 0)), "its kind is unknown");
    assert_eq!(reason(&with(&inline, 7, 1)), "its kind is unknown");
    assert_eq!(reason(&with(&inline, 5, 0xff)), "its header is longer than the limit");
    assert_eq!(reason(&with(&follows, 20, 1)), "its reserved bytes are not zero");
    assert_eq!(reason(&with(&follows, 16, 0)), "its data has an invalid tag");
    assert_eq!(reason(&with(&follows, 19, 0x80)), "its data has an invalid tag");
    assert_eq!(reason(&[&follows[..], b"x"].concat()), "it is longer than its header");
    let long = [&inline[..], &[0; INLINE_LIMIT + 1]].concat();
    assert_eq!(reason(&long), "its inline data is longer than the limit");
}
