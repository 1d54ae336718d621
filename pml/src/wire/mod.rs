//! What the headers of all layers share: their kinds, the envelope, names of transfers and registered memory, and the
//! reader of a peer's bytes.
//!
//! All fields are little-endian. docs/wire.md draws the layouts. Each protocol declares its own headers in its
//! `header.rs`. The reader does not trust a peer's bytes, and reads only private copies of them.

mod batch;
mod blocks;
mod card;
mod envelope;
mod exposed;
mod header;
mod ids;
pub(crate) mod kind;
mod node_card;
mod reader;

pub(crate) use batch::{List, Puts, PutsReader, Several, WholePut, is_batch, parse_batch};
pub(crate) use blocks::BlocksLayout;
pub(crate) use card::Card;
pub(crate) use envelope::{Envelope, MATCH_LEN, MatchLayout, match_bytes, match_envelope};
pub(crate) use exposed::{Exposed, ExposedFields};
pub(crate) use header::{Header, HeaderBuffer, flag, layouts};
pub(crate) use ids::{BtlTag, Id};
pub use node_card::{NodeCard, RouteCost};
pub(crate) use reader::{Malformed, Reader};
