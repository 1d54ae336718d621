//! The private data of librdmacm's requests and replies, and the proof of its sender.
//!
//! The manager carries 56 bytes with a request on InfiniBand and RoCE, and more on iWARP and with replies. One format
//! fits all.

use cableway_base::Rank;
use cableway_btl::Identity;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::card::VERSION;
use crate::receive_queues::LARGEST;

/// `CWCM`, as bytes on the wire.
const MAGIC: U32 = U32::from_bytes(*b"CWCM");
/// The length of a truncated proof. RFC 4868 also truncates to half.
const PROOF: usize = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WirePrivateData {
    magic: U32,
    version: U16,
    kind: u8,
    reserved: u8,
    from: U64,
    number: U32,
    size: U32,
    window: U32,
    credits_key: U32,
    credits: U64,
    proof: [u8; PROOF],
}

/// The length of private data in bytes.
pub(crate) const PRIVATE_DATA: usize = size_of::<WirePrivateData>();
const SIGNED: usize = PRIVATE_DATA - PROOF;

const _: () = {
    use memoffset::offset_of;
    assert!(PRIVATE_DATA == 56);
    assert!(offset_of!(WirePrivateData, from) == 8);
    assert!(offset_of!(WirePrivateData, number) == 16);
    assert!(offset_of!(WirePrivateData, credits) == 32);
    assert!(offset_of!(WirePrivateData, proof) == SIGNED);
};

/// The kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A connection request.
    Request,
    /// The request is accepted.
    Accept,
    /// Rejected: the sender's own request wins.
    Crossed,
    /// Rejected: the sender is about to end, or has closed the link.
    Closed,
    /// Rejected: the sender could not create its end. Other transports may still reach it.
    Unable,
}

/// Describes one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrivateData {
    pub(crate) kind: Kind,
    /// The number of a request, greater than those of all earlier requests of its sender. 0 in a reply.
    pub(crate) number: u32,
    /// The size of a receive buffer, and the number of messages that may wait at this end.
    pub(crate) size: u32,
    pub(crate) window: u32,
    /// The address at which the sender expects credits.
    pub(crate) credits: u64,
    pub(crate) credits_key: u32,
}

/// The private data as bytes on the wire.
pub(crate) type Bytes = [u8; PRIVATE_DATA];

/// The message that the private data belongs to. The proof covers it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CmMessage<'a> {
    /// A request to the process that published this card, and to no later process with the same name and address.
    Request { card: &'a [u8] },
    /// A reply to this request.
    Reply { request: &'a [u8] },
}

impl<'a> CmMessage<'a> {
    fn about(self) -> &'a [u8] {
        let (CmMessage::Request { card: about } | CmMessage::Reply { request: about }) = self;
        about
    }
}

impl PrivateData {
    /// Builds a refusal.
    pub(crate) fn refusal(kind: Kind) -> Self {
        PrivateData { kind, number: 0, size: 0, window: 0, credits: 0, credits_key: 0 }
    }

    /// Encodes the private data for `to`.
    ///
    /// # Errors
    /// The process has no name, or its secret is unavailable.
    pub(crate) fn encode(&self, identity: &Identity, to: Rank, part: CmMessage<'_>) -> Result<Bytes, String> {
        let mut wire = WirePrivateData {
            magic: MAGIC,
            version: U16::new(VERSION),
            kind: self.kind as u8,
            reserved: 0,
            from: U64::new(identity.job().own_name()),
            number: U32::new(self.number),
            size: U32::new(self.size),
            window: U32::new(self.window),
            credits_key: U32::new(self.credits_key),
            credits: U64::new(self.credits),
            proof: [0; PROOF],
        };
        let name = identity.job().name_of(to).ok_or("it has no name")?;
        let proof = identity.prove(to, &[&wire.as_bytes()[..SIGNED], &name.to_le_bytes(), part.about()]);
        wire.proof.copy_from_slice(&proof.ok_or("its secret is unavailable")?[..PROOF]);
        let mut bytes = [0; PRIVATE_DATA];
        bytes.copy_from_slice(wire.as_bytes());
        Ok(bytes)
    }

    /// Decodes private data sent to this process. Some networks append zeros.
    ///
    /// # Errors
    /// What is wrong with it. The caller must refuse it.
    pub(crate) fn decode(identity: &Identity, bytes: &[u8], part: CmMessage<'_>) -> Result<(Rank, Self), String> {
        let (wire, _) =
            WirePrivateData::read_from_prefix(bytes).map_err(|_| format!("it has {} bytes", bytes.len()))?;
        if wire.magic != MAGIC || wire.version.get() != VERSION {
            return Err("wrong magic number, version or job".to_owned());
        }
        let (name, own) = (wire.from.get(), identity.job().own_name());
        let expected = identity.expected(name, &[&bytes[..SIGNED], &own.to_le_bytes(), part.about()]);
        let expected = expected.ok_or("the job has no secret")?;
        // The comparison takes the same time for every wrong proof.
        if wire.proof.iter().zip(expected).fold(0, |differs, (a, b)| differs | (a ^ b)) != 0 {
            return Err("its sender does not know the job's secret".to_owned());
        }
        let from = identity.job().rank_of(name).filter(|_| name != own);
        let from = from.ok_or_else(|| format!("unknown process {name:#x} sent it"))?;
        let kind = match wire.kind {
            0 => Kind::Request,
            1 => Kind::Accept,
            2 => Kind::Crossed,
            3 => Kind::Closed,
            4 => Kind::Unable,
            kind => return Err(format!("unknown kind {kind}")),
        };
        let (asks, agrees) = (kind == Kind::Request, kind == Kind::Accept);
        let refuses = !asks && !agrees;
        let (number, size, window) = (wire.number.get(), wire.size.get(), wire.window.get());
        if wire.reserved != 0 || (window == 0) != refuses || (number == 0) == asks {
            return Err("its fields contradict each other".to_owned());
        }
        if !refuses && (size as usize) < LARGEST {
            return Err(format!("its buffers are of {size} bytes, where the longest messages take {LARGEST} at least"));
        }
        if asks != matches!(part, CmMessage::Request { .. }) {
            return Err("a request arrived as a reply, or a reply as a request".to_owned());
        }
        let (credits, credits_key) = (wire.credits.get(), wire.credits_key.get());
        Ok((from, PrivateData { kind, number, size, window, credits, credits_key }))
    }

    /// Returns the receive queue as a list of one.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        std::iter::once((self.size, self.window))
    }
}

/// Computes a control message for a network without immediate data. No other process can compute it. `words` begins
/// with the request and its reply. Both ends compute the same message, under the secret of the passive side.
pub(crate) fn control_message(
    identity: &Identity,
    peer: Rank,
    asked_here: bool,
    words: &[&[u8]],
) -> Result<[u8; Identity::PROOF], String> {
    if asked_here {
        let name = identity.job().name_of(peer).ok_or("it has no name")?;
        return identity.expected(name, words).ok_or_else(|| "the job has no secret".to_owned());
    }
    identity.prove(peer, words).ok_or_else(|| "its secret is unavailable".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::sync::atomic::Ordering;

    use super::super::wire::tests::{identity, of_two_jobs};
    use super::*;

    prop_compose! {
        fn private_data()(kind in 0..5, number in 1..u32::MAX, size in LARGEST as u32.., window in 1..u32::MAX,
                          credits in any::<u64>(), credits_key in any::<u32>()) -> PrivateData {
            match kind {
                0 => PrivateData { kind: Kind::Request, number, size, window, credits, credits_key },
                1 => PrivateData { kind: Kind::Accept, number: 0, size, window, credits, credits_key },
                2 => PrivateData { credits, credits_key, ..PrivateData::refusal(Kind::Crossed) },
                3 => PrivateData::refusal(Kind::Closed),
                _ => PrivateData::refusal(Kind::Unable),
            }
        }
    }

    proptest! {
        #[test]
        fn private_data_survives_encoding_and_detects_changes(said in private_data(), at in 0..PRIVATE_DATA, flip in 1u8..,
                                                        zeros in 0..200_usize) {
            let parts = |about| (CmMessage::Request { card: about }, CmMessage::Reply { request: about });
            let of = |(request, reply)| if said.kind == Kind::Request { request } else { reply };
            let part = of(parts(b"would you"));
            let mut bytes = said.encode(&identity(2), 1, part).unwrap().to_vec();
            bytes.resize(PRIVATE_DATA + zeros, 0);
            prop_assert_eq!(PrivateData::decode(&identity(1), &bytes, part), Ok((2, said)));
            prop_assert!(PrivateData::decode(&identity(3), &bytes, part).is_err(), "it was to another");
            let other = of(parts(b"or would you"));
            prop_assert!(PrivateData::decode(&identity(1), &bytes, other).is_err(), "it was to another");
            let (request, reply) = parts(b"would you");
            let misplaced = of((reply, request));
            prop_assert!(PrivateData::decode(&identity(1), &bytes, misplaced).is_err(), "a request arrived as a reply, or a reply as a request");
            bytes[at] ^= flip;
            prop_assert!(PrivateData::decode(&identity(1), &bytes, part).is_err());
            prop_assert!(PrivateData::decode(&identity(1), &bytes[..at], part).is_err());
        }
    }

    #[test]
    fn buffers_hold_the_longest_messages() {
        let part = CmMessage::Request { card: b"a card" };
        let read = |size| {
            let said = PrivateData { kind: Kind::Request, number: 1, size, window: 1, credits: 0, credits_key: 0 };
            PrivateData::decode(&identity(1), &said.encode(&identity(0), 1, part).unwrap(), part)
        };
        assert!(read(LARGEST as u32).is_ok());
        for size in [0, LARGEST as u32 - 1] {
            assert!(read(size).unwrap_err().contains(&format!("of {size} bytes")));
        }
    }

    #[test]
    fn foreign_processes_are_rejected() {
        use cableway_btl::Job;
        let size = LARGEST as u32;
        let said = PrivateData { kind: Kind::Request, number: 1, size, window: 1, credits: 0, credits_key: 0 };
        let part = CmMessage::Request { card: b"a card" };
        let bytes = said.encode(&identity(0), 1, part).unwrap();
        let other = Identity::new(&Job::new("a job".into(), [8; 32], 1, 4, 1));
        assert!(PrivateData::decode(&other, &bytes, part).unwrap_err().contains("secret"));
        let outside = Identity::new(&Job::new("a job".into(), [7; 32], 9, 4, 1));
        let bytes = said.encode(&outside, 1, part).unwrap();
        assert!(PrivateData::decode(&identity(1), &bytes, part).unwrap_err().contains("0x9"));
    }

    #[test]
    fn processes_of_two_jobs_meet_and_claims_without_proof_are_not_looked_up() {
        let ((here, met), (there, _)) = (of_two_jobs(5, 6, [50, 60]), of_two_jobs(6, 5, [60, 50]));
        let size = LARGEST as u32;
        let said = PrivateData { kind: Kind::Request, number: 1, size, window: 1, credits: 0, credits_key: 0 };
        let part = CmMessage::Request { card: b"a card" };
        let request = said.encode(&there, 3, part).unwrap();
        assert_eq!(PrivateData::decode(&here, &request, part), Ok((3, said)));
        // Both ends compute the same message, under the secret of the passive side.
        let words: &[&[u8]] = &[b"greeting", &request];
        assert_eq!(control_message(&here, 3, true, words), control_message(&there, 3, false, words));
        let before = met.met.load(Ordering::Relaxed);
        let (liar, _) = of_two_jobs(6, 5, [60, 51]);
        let request = said.encode(&liar, 3, part).unwrap();
        assert!(PrivateData::decode(&here, &request, part).unwrap_err().contains("secret"));
        assert_eq!(met.met.load(Ordering::Relaxed), before);
    }
}
