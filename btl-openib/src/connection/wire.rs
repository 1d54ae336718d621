//! The datagram, and who may have sent it.

use cableway_base::Rank;
use cableway_btl::Identity;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::card::{Address, BITS_24, CARD, Card, VERSION};

/// `CWIB`, as bytes on the wire.
const MAGIC: U32 = U32::from_bytes(*b"CWIB");
/// The sender waits for an answer.
const ASKS: u8 = 1;
/// The sender is about to end, and takes no connection.
const CLOSED: u8 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHello {
    magic: U32,
    version: U16,
    flags: u8,
    reserved: u8,
    from: U64,
    to: U64,
    job: [u8; 16],
    number: U32,
    first_packet: U32,
    knows: U32,
    window: U32,
    cell_key: U32,
    zero: U32,
    cell: U64,
    card: Card,
    proof: [u8; Identity::PROOF],
}

/// Bytes of a datagram.
pub(crate) const HELLO: usize = size_of::<WireHello>();
const SIGNED: usize = HELLO - 32;

const _: () = {
    use memoffset::offset_of;
    assert!(HELLO == 168);
    assert!(offset_of!(WireHello, from) == 8);
    assert!(offset_of!(WireHello, job) == 24);
    assert!(offset_of!(WireHello, number) == 40);
    assert!(offset_of!(WireHello, window) == 52);
    assert!(offset_of!(WireHello, cell_key) == 56);
    assert!(offset_of!(WireHello, cell) == 64);
    assert!(offset_of!(WireHello, card) == 72 && CARD == 64);
    assert!(offset_of!(WireHello, proof) == SIGNED);
};

/// What one end says of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) asks: bool,
    pub(crate) closed: bool,
    /// The queue pair that it made for the receiver, and its first packet's number.
    pub(crate) number: u32,
    pub(crate) first_packet: u32,
    /// The receiver's queue pair that it has connected its own to; 0: none yet. No queue pair of a user has number 0.
    pub(crate) knows: u32,
    /// Messages that may wait at its end.
    pub(crate) window: u32,
    /// Where it wants to be told how many of its messages were consumed.
    pub(crate) cell: u64,
    pub(crate) cell_key: u32,
    pub(crate) address: Address,
}

impl Hello {
    /// # Errors
    /// Nothing names that process, or proves to it who this one is.
    pub(crate) fn encode(&self, identity: &Identity, to: Rank) -> Result<[u8; HELLO], String> {
        let mut wire = WireHello {
            magic: MAGIC,
            version: U16::new(VERSION),
            flags: if self.asks { ASKS } else { 0 } | if self.closed { CLOSED } else { 0 },
            reserved: 0,
            from: U64::new(identity.job().own_name()),
            to: U64::new(identity.job().name_of(to).ok_or("it has no name")?),
            job: identity.digest(),
            number: U32::new(self.number),
            first_packet: U32::new(self.first_packet),
            knows: U32::new(self.knows),
            window: U32::new(self.window),
            cell_key: U32::new(self.cell_key),
            zero: U32::ZERO,
            cell: U64::new(self.cell),
            card: self.address.encode(),
            proof: [0; 32],
        };
        wire.proof = identity.prove(to, &[&wire.as_bytes()[..SIGNED]]).ok_or("there is no secret that both know")?;
        let mut bytes = [0; HELLO];
        bytes.copy_from_slice(wire.as_bytes());
        Ok(bytes)
    }

    /// Reads a datagram to this process, of one of this job or of one that may be met.
    ///
    /// # Errors
    /// What is wrong with it: it is to be ignored.
    pub(crate) fn decode(identity: &Identity, bytes: &[u8]) -> Result<(Rank, Hello), String> {
        let wire = WireHello::read_from_bytes(bytes).map_err(|_| format!("it has {} bytes", bytes.len()))?;
        // A process of a job that may be met is told by its name.
        let ours = wire.job == identity.digest() || identity.job().strangers != 0;
        if wire.magic != MAGIC || wire.version.get() != VERSION || !ours {
            return Err("it belongs to something else".to_owned());
        }
        let (name, own) = (wire.from.get(), identity.job().own_name());
        if wire.to.get() != own || name == own {
            return Err(format!("it goes from process {name:#x} to process {:#x}", wire.to));
        }
        let from =
            identity.job().rank_of(name).ok_or_else(|| format!("process {name:#x} sent it, whom nobody knows"))?;
        if !identity.is_proof(from, &[&bytes[..SIGNED]], &wire.proof) {
            return Err("its sender does not know the job's secret".to_owned());
        }
        if wire.flags & !(ASKS | CLOSED) != 0 || wire.reserved != 0 || wire.zero != U32::ZERO {
            return Err("its reserved bits are not zero".to_owned());
        }
        let number = wire.number.get();
        if number > BITS_24 || wire.first_packet.get() > BITS_24 || wire.knows.get() > BITS_24 {
            return Err(format!("its queue pair has the number {number}"));
        }
        let closed = wire.flags & CLOSED != 0;
        if !closed && (number == 0 || wire.window.get() == 0) {
            return Err("it offers no queue pair".to_owned());
        }
        let hello = Hello {
            asks: wire.flags & ASKS != 0,
            closed,
            number,
            first_packet: wire.first_packet.get(),
            knows: wire.knows.get(),
            window: wire.window.get(),
            cell: wire.cell.get(),
            cell_key: wire.cell_key.get(),
            address: wire.card.check()?,
        };
        Ok((from, hello))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use cableway_btl::{Job, Names};
    use proptest::prelude::*;

    use super::*;
    use crate::card::tests::address;

    pub(in super::super) fn identity(rank: Rank) -> Identity {
        Identity::new(&Job::new("a job".into(), [7; 32], rank, 4, 1))
    }

    prop_compose! {
        fn hello()(asks in any::<bool>(), closed in any::<bool>(), number in 1..=BITS_24, first_packet in 0..=BITS_24,
                   knows in 0..=BITS_24, window in 1..u32::MAX, cell in any::<u64>(), cell_key in any::<u32>(),
                   address in address()) -> Hello {
            Hello { asks, closed, number, first_packet, knows, window, cell, cell_key, address }
        }
    }

    proptest! {
        #[test]
        fn a_datagram_reads_as_written_and_only_so(hello in hello(), at in 0..HELLO, flip in 1u8..) {
            let mut bytes = hello.encode(&identity(2), 1).unwrap();
            prop_assert_eq!(Hello::decode(&identity(1), &bytes), Ok((2, hello)));
            prop_assert!(Hello::decode(&identity(3), &bytes).is_err(), "it was to another");
            bytes[at] ^= flip;
            prop_assert!(Hello::decode(&identity(1), &bytes).is_err());
            prop_assert!(Hello::decode(&identity(1), &bytes[..at]).is_err());
        }
    }

    #[test]
    fn strangers_are_recognised() {
        let hello = some_hello();
        let bytes = hello.encode(&identity(0), 1).unwrap();
        let other = Identity::new(&Job::new("a job".into(), [8; 32], 1, 4, 1));
        assert!(Hello::decode(&other, &bytes).unwrap_err().contains("secret"));
        let outside = Identity::new(&Job::new("a job".into(), [7; 32], 9, 4, 1));
        assert!(Hello::decode(&identity(1), &hello.encode(&outside, 1).unwrap()).unwrap_err().contains("0x9"));
    }

    /// A host's names: a job of two processes, whose own number is in the upper half.
    struct TwoJobs {
        own: u64,
        others: u64,
        half: [u8; 32],
    }

    impl Names for TwoJobs {
        fn name(&self, peer: Rank) -> Option<u64> {
            let (job, rank) = if peer < 2 { (self.own, peer) } else { (self.others, peer - 2) };
            (peer < 4).then_some(job << 32 | u64::from(rank))
        }

        fn rank(&self, name: u64) -> Option<Rank> {
            (0..4).find(|&rank| self.name(rank) == Some(name))
        }

        fn secret(&self, _peer: Rank) -> Option<[u8; 32]> {
            Some(self.half)
        }
    }

    #[test]
    fn processes_of_two_jobs_meet_by_their_names() {
        let of = |own, others, secret, half| {
            let job = Job::new(format!("job {own}"), [secret; 32], 1, 2, 2);
            Identity::new(&job.with_names(Arc::new(TwoJobs { own, others, half: [half; 32] }), 2))
        };
        let (here, there) = (of(5, 6, 1, 9), of(6, 5, 2, 9));
        let hello = some_hello();
        // Rank 1 of each is rank 3 to the other.
        assert_eq!(Hello::decode(&there, &hello.encode(&here, 3).unwrap()), Ok((3, hello)));
        assert_eq!(Hello::decode(&here, &hello.encode(&there, 3).unwrap()), Ok((3, hello)));
        assert!(hello.encode(&here, 4).is_err(), "nobody has that number");
        let liar = of(6, 5, 2, 8);
        assert!(Hello::decode(&here, &hello.encode(&liar, 3).unwrap()).unwrap_err().contains("secret"));
        let elsewhere = of(7, 5, 2, 9);
        assert!(Hello::decode(&here, &hello.encode(&elsewhere, 3).unwrap()).unwrap_err().contains("nobody knows"));
    }

    fn some_hello() -> Hello {
        let address = Address {
            mtu: 5,
            kind: crate::gid::Kind::RoceV2,
            lid: 0,
            reads: 1,
            gid: [1; 16],
            datagrams: 2,
            datagram_key: 3,
            max_message: 4096,
            process: crate::process::Process::default(),
        };
        Hello {
            asks: true,
            closed: false,
            number: 17,
            first_packet: 1,
            knows: 0,
            window: 8,
            cell: 0,
            cell_key: 0,
            address,
        }
    }
}
