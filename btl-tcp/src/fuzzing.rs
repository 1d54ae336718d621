//! Entry points for fuzzers: every parser of bytes from a peer or an unknown sender. None may panic.

use crate::card::Card;
use crate::decode::{Body, Decoder, Step};
use cableway_btl::{Identity, Job};

use crate::handshake::Handshake;

/// A peer's card.
pub fn card(bytes: &[u8]) {
    if let Ok(card) = Card::decode(bytes) {
        assert_eq!(card.encode(), bytes);
        let _ = crate::pairing::routes(&card, &card);
    }
}

/// The frames of a connection, in pieces whose first byte gives their length.
pub fn frames(mut bytes: &[u8]) {
    let mut decoder = Decoder::new(1 << 16);
    while let Some((&length, rest)) = bytes.split_first() {
        let (mut piece, later) = rest.split_at(usize::from(length).min(rest.len()));
        bytes = later;
        loop {
            let placed = decoder.missing().min(piece.len());
            piece = &piece[placed..];
            decoder.placed(placed);
            if decoder.missing() != 0 {
                break;
            }
            match decoder.step(&mut piece) {
                Ok(Step::Starved) | Err(_) if piece.is_empty() => break,
                Err(_) => return,
                Ok(Step::Begin(Body::Message { length } | Body::Put { length, .. })) => {
                    assert_eq!(length, decoder.missing());
                }
                Ok(_) => {}
            }
        }
    }
}

/// Either end of a handshake.
pub fn handshake(bytes: &[u8]) {
    let Some((&role, mut bytes)) = bytes.split_first() else { return };
    let identity = Identity::new(&Job::new("fuzz".to_owned(), [7; 32], 1, 4, 4));
    let mut end = match role & 1 {
        0 => Handshake::server([1; 32]),
        _ => Handshake::client(&identity, 2, 0, [1; 32]).0,
    };
    while !bytes.is_empty() && end.wants() != 0 {
        let (now, later) = bytes.split_at(end.wants().min(bytes.len()));
        bytes = later;
        if end.receive(&identity, now).is_err() {
            return;
        }
    }
}
