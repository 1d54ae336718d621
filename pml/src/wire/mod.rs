//! Headers that precede a payload in a transport's message.
//!
//! Little-endian throughout; drawn in docs/wire.md. Nothing here trusts a peer's bytes, and parsing is a pure function
//! over a private copy of them.

mod batch;
mod card;
mod headers;
mod message;
mod parse;

pub(crate) use batch::{List, Puts, PutsReader, Several, WholePut, is_batch, parse_batch};
pub(crate) use card::Card;
pub(crate) use headers::{
    Buffer as HeaderBuffer, FRAGMENT_LEN, MATCH_LEN, RENDEZVOUS_LEN, match_bytes, match_envelope, rendezvous_bytes,
};
pub(crate) use message::{Ack, Announced, BtlTag, Envelope, Exposed, Header, Id, Invite, Put};
pub(crate) use parse::{Malformed, parse};
