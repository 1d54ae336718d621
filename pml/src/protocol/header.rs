//! The headers of all protocols and of the core: passes each message to the parser of its kind.

use super::fragments::{Ack, FRAGMENT_LEN, FragmentHeader};
use super::get::Get;
use super::invitation::Invite;
use super::put::{Put, PutFin};
use super::rendezvous::{AbortHeader, Announced, Fin, RENDEZVOUS_LEN, rendezvous_bytes};
use crate::core::{CreditHeader, Resume};
use crate::wire::{Encode, Envelope, HeaderBuffer, MATCH_LEN, Malformed, Reader, kind, match_bytes};

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// An eager message; the payload is its data.
    Match(Envelope),
    Rendezvous(Envelope, Announced),
    Get(Get),
    Ack(Ack),
    Put(Put),
    Fragment(FragmentHeader),
    Fin(Fin),
    PutFin(PutFin),
    Credit(CreditHeader),
    Resume(Resume),
    Invite(Invite),
    Abort(AbortHeader),
}

/// Parses the header of a message of `message_len` bytes. `bytes` is a private copy of its beginning, long enough for
/// any header. Returns the header and its length.
pub(crate) fn parse(bytes: &[u8], message_len: usize) -> Result<(Header, usize), Malformed> {
    let reader = Reader::new(bytes, message_len)?;
    let header = match reader.kind {
        kind::MATCH => return Ok((Header::Match(Envelope::parse(&reader)?), MATCH_LEN)),
        kind::RENDEZVOUS => {
            let (envelope, announced) = Announced::parse(&reader)?;
            return Ok((Header::Rendezvous(envelope, announced), RENDEZVOUS_LEN));
        }
        kind::FRAGMENT => return Ok((Header::Fragment(FragmentHeader::parse(&reader)?), FRAGMENT_LEN)),
        kind::GET => Header::Get(Get::parse(&reader)?),
        kind::ACK => Header::Ack(Ack::parse(&reader)?),
        kind::PUT => Header::Put(Put::parse(&reader)?),
        kind::FIN => Header::Fin(Fin::parse(&reader)?),
        kind::PUT_FIN => Header::PutFin(PutFin::parse(&reader)?),
        kind::CREDIT => Header::Credit(CreditHeader::parse(&reader)?),
        kind::ABORT => Header::Abort(AbortHeader::parse(&reader)?),
        kind::RESUME => Header::Resume(Resume::parse(&reader)?),
        kind::INVITE => Header::Invite(Invite::parse(&reader)?),
        unknown => return Err(Malformed::Kind(unknown)),
    };
    // Without a payload.
    Ok((header, message_len))
}

/// For tests and fuzzers. The protocols encode their own headers.
impl Encode for Header {
    fn encode(&self, out: &mut HeaderBuffer) {
        match self {
            Header::Match(envelope) => out.push(&match_bytes(envelope)),
            Header::Rendezvous(envelope, announced) => out.push(&rendezvous_bytes(envelope, announced)),
            Header::Get(get) => get.encode(out),
            Header::Ack(ack) => ack.encode(out),
            Header::Put(put) => put.encode(out),
            Header::Fragment(fragment) => fragment.encode(out),
            Header::Fin(fin) => fin.encode(out),
            Header::PutFin(fin) => fin.encode(out),
            Header::Credit(credit) => credit.encode(out),
            Header::Resume(resume) => resume.encode(out),
            Header::Invite(invite) => invite.encode(out),
            Header::Abort(abort) => abort.encode(out),
        }
    }
}

#[cfg(test)]
mod tests;
