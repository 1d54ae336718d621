//! Addresses of processes as bytes, also malformed ones.

use cableway_btl::published::{Values, decode, encode};

fn values() -> Values {
    [("pml", vec![1, 2, 3]), ("btl.sm", vec![]), ("btl.tcp", vec![7; 300])]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
}

#[test]
fn values_survive() {
    assert_eq!(decode(&encode(&values())), Some(values()));
    assert_eq!(decode(&[]), Some(Values::new()));
}

#[test]
fn the_layout_is_as_documented() {
    let one: Values = [("ab".to_owned(), vec![9])].into();
    assert_eq!(encode(&one), [2, 0, b'a', b'b', 1, 0, 0, 0, 9]);
}

#[test]
fn every_shortened_card_is_refused_or_has_fewer_values() {
    let bytes = encode(&values());
    for len in 0..bytes.len() {
        if let Some(fewer) = decode(&bytes[..len]) {
            assert!(fewer.len() < values().len(), "{len} bytes");
        }
    }
}

#[test]
fn malformed_cards_are_refused() {
    let twice = [encode(&values()), encode(&values())].concat();
    assert_eq!(decode(&twice), None, "a key twice");
    assert_eq!(decode(&[1, 0, 0xff, 0, 0, 0, 0]), None, "a key that is not UTF-8");
    assert_eq!(decode(&[0xff, 0xff, b'a']), None, "a key beyond the end");
    assert_eq!(decode(&[1, 0, b'a', 0xff, 0xff, 0xff, 0xff]), None, "a value beyond the end");
}
