//! The datagram, and who may have sent it.

use cableway_base::Rank;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
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
    from: U32,
    to: U32,
    job: [u8; 16],
    number: U32,
    first_packet: U32,
    knows: U32,
    window: U32,
    cell_key: U32,
    zero: U32,
    cell: U64,
    card: Card,
    proof: [u8; 32],
}

/// Bytes of a datagram.
pub(crate) const HELLO: usize = size_of::<WireHello>();
const SIGNED: usize = HELLO - 32;

const _: () = {
    use memoffset::offset_of;
    assert!(HELLO == 160);
    assert!(offset_of!(WireHello, from) == 8);
    assert!(offset_of!(WireHello, job) == 16);
    assert!(offset_of!(WireHello, number) == 32);
    assert!(offset_of!(WireHello, window) == 44);
    assert!(offset_of!(WireHello, cell_key) == 48);
    assert!(offset_of!(WireHello, cell) == 56);
    assert!(offset_of!(WireHello, card) == 64 && CARD == 64);
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

/// This process, as datagrams name it.
pub(crate) struct Identity {
    job: [u8; 16],
    secret: [u8; 32],
    pub(crate) rank: Rank,
    size: u32,
}

impl Identity {
    pub(crate) fn new(job: &cableway_btl::Job) -> Self {
        let mut name = [0; 16];
        name.copy_from_slice(&Sha256::digest(job.id.as_bytes())[..16]);
        Identity { job: name, secret: job.secret, rank: job.rank, size: job.size }
    }

    fn mac(&self, signed: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.secret)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of every length"));
        mac.update(signed);
        mac
    }

    pub(crate) fn encode(&self, to: Rank, hello: &Hello) -> [u8; HELLO] {
        let mut wire = WireHello {
            magic: MAGIC,
            version: U16::new(VERSION),
            flags: if hello.asks { ASKS } else { 0 } | if hello.closed { CLOSED } else { 0 },
            reserved: 0,
            from: U32::new(self.rank),
            to: U32::new(to),
            job: self.job,
            number: U32::new(hello.number),
            first_packet: U32::new(hello.first_packet),
            knows: U32::new(hello.knows),
            window: U32::new(hello.window),
            cell_key: U32::new(hello.cell_key),
            zero: U32::ZERO,
            cell: U64::new(hello.cell),
            card: hello.address.encode(),
            proof: [0; 32],
        };
        let proof = self.mac(&wire.as_bytes()[..SIGNED]).finalize().into_bytes();
        wire.proof.copy_from_slice(&proof);
        let mut bytes = [0; HELLO];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Reads a datagram of a process of this job to this one.
    ///
    /// # Errors
    /// What is wrong with it: it is to be ignored.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<(Rank, Hello), String> {
        let wire = WireHello::read_from_bytes(bytes).map_err(|_| format!("it has {} bytes", bytes.len()))?;
        if wire.magic != MAGIC || wire.version.get() != VERSION || wire.job != self.job {
            return Err("it belongs to something else".to_owned());
        }
        if self.mac(&bytes[..SIGNED]).verify_slice(&wire.proof).is_err() {
            return Err("its sender does not know the job's secret".to_owned());
        }
        let from = wire.from.get();
        if wire.to.get() != self.rank || from >= self.size || from == self.rank {
            return Err(format!("it goes from rank {from} to rank {}", wire.to));
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
    use proptest::prelude::*;

    use super::*;
    use crate::card::tests::address;

    pub(in super::super) fn identity(rank: Rank) -> Identity {
        Identity::new(&cableway_btl::Job::new("a job".into(), [7; 32], rank, 4, 1))
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
            let mut bytes = identity(2).encode(1, &hello);
            prop_assert_eq!(identity(1).decode(&bytes), Ok((2, hello)));
            prop_assert!(identity(3).decode(&bytes).is_err(), "it was to another");
            bytes[at] ^= flip;
            prop_assert!(identity(1).decode(&bytes).is_err());
            prop_assert!(identity(1).decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn strangers_are_recognised() {
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
        let hello = Hello {
            asks: true,
            closed: false,
            number: 17,
            first_packet: 1,
            knows: 0,
            window: 8,
            cell: 0,
            cell_key: 0,
            address,
        };
        let bytes = identity(0).encode(1, &hello);
        let other = Identity::new(&cableway_btl::Job::new("a job".into(), [8; 32], 1, 4, 1));
        assert!(other.decode(&bytes).unwrap_err().contains("secret"));
        let outside = Identity::new(&cableway_btl::Job::new("a job".into(), [7; 32], 9, 4, 1));
        assert!(identity(1).decode(&outside.encode(1, &hello)).unwrap_err().contains("rank 9"));
    }
}
