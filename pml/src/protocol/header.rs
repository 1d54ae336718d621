//! Headers of every kind, for fuzzers and tests.

use super::fragments::{Ack, FragmentHeader};
use super::get::Get;
use super::put::{Put, PutFin};
use super::rendezvous::{AbortHeader, Fin, Rts};
use crate::core::{CreditHeader, Resume};
use crate::wire::{Envelope, Header, HeaderBuffer, Malformed, Reader, kind};

/// Parses a header of any kind, and encodes it again. The arguments are those of [`Reader::new`].
pub(crate) fn recode(bytes: &[u8], message_len: usize) -> Result<HeaderBuffer, Malformed> {
    let reader = &Reader::new(bytes, message_len)?;
    match reader.kind {
        kind::MATCH => recoded::<Envelope>(reader),
        kind::RENDEZVOUS => recoded::<Rts>(reader),
        kind::GET => recoded::<Get>(reader),
        kind::ACK => recoded::<Ack>(reader),
        kind::PUT => recoded::<Put>(reader),
        kind::FRAGMENT => recoded::<FragmentHeader>(reader),
        kind::FIN => recoded::<Fin>(reader),
        kind::PUT_FIN => recoded::<PutFin>(reader),
        kind::CREDIT => recoded::<CreditHeader>(reader),
        kind::ABORT => recoded::<AbortHeader>(reader),
        kind::RESUME => recoded::<Resume>(reader),
        unknown => Err(Malformed::Kind(unknown)),
    }
}

fn recoded<H: Header>(reader: &Reader<'_>) -> Result<HeaderBuffer, Malformed> {
    H::parse(reader).map(|header| HeaderBuffer::new(&header))
}

#[cfg(test)]
mod tests;
