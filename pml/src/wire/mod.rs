//! Headers that precede a payload in a transport's message.
//!
//! All fields are little-endian. docs/wire.md draws the layouts. This module does not trust a peer's bytes, and parses
//! only private copies of them.

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
