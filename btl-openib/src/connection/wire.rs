//! The hello datagram and the proof of its sender.

use cableway_base::Rank;
use cableway_btl::Identity;
use smallvec::SmallVec;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::card::{Address, BITS_24, CARD, Card, VERSION};
use crate::receive_queues::MOST_QUEUES;

/// `CWIB`, as bytes on the wire.
const MAGIC: U32 = U32::from_bytes(*b"CWIB");
/// The sender wants an answer.
const ASKS: u8 = 1;
/// The sender is about to end, and accepts no connection.
const CLOSED: u8 = 2;
/// The sender could not create its end, and accepts no connection.
const UNABLE: u8 = 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHello {
    magic: U32,
    version: U16,
    flags: u8,
    queues: u8,
    from: U64,
    to: U64,
    job: [u8; 16],
    first_packet: U32,
    knows: U32,
    credits_key: U32,
    credits: U64,
    card: Card,
    queue: [WireQueue; MOST_QUEUES],
    proof: [u8; Identity::PROOF],
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireQueue {
    number: U32,
    size: U32,
    window: U32,
}

/// The length of a datagram, in bytes.
pub(crate) const HELLO: usize = size_of::<WireHello>();
const SIGNED: usize = HELLO - 32;

const _: () = {
    use memoffset::offset_of;
    // A datagram fits into the smallest MTU.
    assert!(HELLO == 252 && HELLO <= 256);
    assert!(offset_of!(WireHello, from) == 8);
    assert!(offset_of!(WireHello, job) == 24);
    assert!(offset_of!(WireHello, first_packet) == 40);
    assert!(offset_of!(WireHello, credits_key) == 48);
    assert!(offset_of!(WireHello, credits) == 52);
    assert!(offset_of!(WireHello, card) == 60 && CARD == 64);
    assert!(offset_of!(WireHello, queue) == 124 && size_of::<WireQueue>() == 12);
    assert!(offset_of!(WireHello, proof) == SIGNED);
};

/// Describes the sender's end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) asks: bool,
    /// Why the sender refuses a connection.
    pub(crate) refusal: Option<Refusal>,
    /// The queue pairs that the sender created for the receiver; empty in a refusal.
    pub(crate) queues: SmallVec<[Queue; 1]>,
    /// The first packet number (PSN) of each queue pair.
    pub(crate) first_packet: u32,
    /// The receiver's first queue pair that the sender is connected to; 0 if none. No user's queue pair has number 0.
    pub(crate) knows: u32,
    /// The address at which the sender expects credits.
    pub(crate) credits: u64,
    pub(crate) credits_key: u32,
    pub(crate) address: Address,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The process is about to end, or has closed the link.
    Closed,
    /// The process could not create its end, but goes on. Other transports may reach it.
    Unable,
}

impl Refusal {
    fn flag(self) -> u8 {
        match self {
            Refusal::Closed => CLOSED,
            Refusal::Unable => UNABLE,
        }
    }
}

/// A queue pair and its receive buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) number: u32,
    /// Bytes of a buffer.
    pub(crate) size: u32,
    /// The number of messages that may wait there.
    pub(crate) window: u32,
}

impl Hello {
    /// Returns the number of the first queue pair, which names the connection.
    pub(crate) fn number(&self) -> u32 {
        self.queues.first().map_or(0, |queue| queue.number)
    }

    /// # Errors
    /// The process has no name, or its secret is unavailable.
    pub(crate) fn encode(&self, identity: &Identity, to: Rank) -> Result<[u8; HELLO], String> {
        let mut wire = WireHello {
            magic: MAGIC,
            version: U16::new(VERSION),
            flags: if self.asks { ASKS } else { 0 } | self.refusal.map_or(0, Refusal::flag),
            queues: self.queues.len() as u8,
            from: U64::new(identity.job().own_name()),
            to: U64::new(identity.job().name_of(to).ok_or("it has no name")?),
            job: identity.digest(),
            first_packet: U32::new(self.first_packet),
            knows: U32::new(self.knows),
            credits_key: U32::new(self.credits_key),
            credits: U64::new(self.credits),
            card: self.address.encode(),
            queue: [WireQueue::default(); MOST_QUEUES],
            proof: [0; 32],
        };
        for (wire, queue) in wire.queue.iter_mut().zip(&self.queues) {
            *wire = WireQueue {
                number: U32::new(queue.number),
                size: U32::new(queue.size),
                window: U32::new(queue.window),
            };
        }
        wire.proof = identity.prove(to, &[&wire.as_bytes()[..SIGNED]]).ok_or("its secret is unavailable")?;
        let mut bytes = [0; HELLO];
        bytes.copy_from_slice(wire.as_bytes());
        Ok(bytes)
    }

    /// Decodes a datagram from a process of this job or from a foreign process.
    ///
    /// # Errors
    /// What is wrong with it. The caller must ignore it.
    pub(crate) fn decode(identity: &Identity, bytes: &[u8]) -> Result<(Rank, Hello), String> {
        let wire = WireHello::read_from_bytes(bytes).map_err(|_| format!("it has {} bytes", bytes.len()))?;
        // Foreign processes are recognized by their names.
        let ours = wire.job == identity.digest() || identity.job().foreign_processes != 0;
        if wire.magic != MAGIC || wire.version.get() != VERSION || !ours {
            return Err("wrong magic number, version or job".to_owned());
        }
        let (name, own) = (wire.from.get(), identity.job().own_name());
        if wire.to.get() != own || name == own {
            return Err(format!("it is addressed from process {name:#x} to process {:#x}", wire.to));
        }
        if !identity.is_proof(name, &[&bytes[..SIGNED]], &wire.proof) {
            return Err("its sender does not know the job's secret".to_owned());
        }
        let from = identity.job().rank_of(name).ok_or_else(|| format!("unknown process {name:#x} sent it"))?;
        let refusal = match wire.flags & !ASKS {
            0 => None,
            CLOSED => Some(Refusal::Closed),
            UNABLE => Some(Refusal::Unable),
            flags => return Err(format!("it has unknown flags {flags:#x}")),
        };
        let queues = wire.queues()?;
        if refusal.is_some() != queues.is_empty() || wire.first_packet.get() > BITS_24 || wire.knows.get() > BITS_24 {
            return Err("its numbers contradict each other".to_owned());
        }
        let address = wire.card.check()?;
        if let Some(last) = queues.last() {
            address.is_kept_by(last.size)?;
        }
        let hello = Hello {
            asks: wire.flags & ASKS != 0,
            refusal,
            queues,
            first_packet: wire.first_packet.get(),
            knows: wire.knows.get(),
            credits: wire.credits.get(),
            credits_key: wire.credits_key.get(),
            address,
        };
        Ok((from, hello))
    }
}

impl WireHello {
    /// # Errors
    /// What is wrong with them.
    fn queues(&self) -> Result<SmallVec<[Queue; 1]>, String> {
        let count = usize::from(self.queues);
        let Some((offered, others)) = self.queue.split_at_checked(count) else {
            return Err(format!("it offers {count} queue pairs"));
        };
        if others.iter().any(|queue| queue.as_bytes() != WireQueue::default().as_bytes()) {
            return Err("it has more queue pairs than it offers".to_owned());
        }
        let mut queues: SmallVec<[Queue; 1]> = SmallVec::new();
        for queue in offered {
            let queue = Queue { number: queue.number.get(), size: queue.size.get(), window: queue.window.get() };
            let grows = queues.last().is_none_or(|before| before.size < queue.size);
            if !(1..=BITS_24).contains(&queue.number) || queue.window == 0 || queue.size == 0 || !grows {
                return Err(format!("it offers {queue:?}"));
            }
            queues.push(queue);
        }
        Ok(queues)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cableway_btl::{Job, Names};
    use proptest::prelude::*;

    use super::*;
    use crate::card::tests::address;

    pub(in super::super) fn identity(rank: Rank) -> Identity {
        Identity::new(&Job::new("a job".into(), [7; 32], rank, 4, 1))
    }

    prop_compose! {
        fn hello()(asks in any::<bool>(), closed in any::<bool>(), first_packet in 0..=BITS_24, knows in 0..=BITS_24, credits in any::<u64>(),
                   credits_key in any::<u32>(), address in address(),
                   sizes in proptest::collection::btree_set(384..u32::MAX, 0..=MOST_QUEUES),
                   number in 1..BITS_24 - 8, window in 1..u32::MAX) -> Hello {
            let queues: SmallVec<[Queue; 1]> =
                (number..).zip(sizes).map(|(number, size)| Queue { number, size, window }).collect();
            let why = if closed { Refusal::Closed } else { Refusal::Unable };
            let max_message = queues.last().map_or(address.max_message, |last| last.size.min(address.max_message));
            let address = Address { max_message, ..address };
            Hello { asks, refusal: queues.is_empty().then_some(why), queues, first_packet, knows, credits, credits_key, address }
        }
    }

    proptest! {
        #[test]
        fn a_datagram_survives_encoding_and_detects_changes(hello in hello(), at in 0..HELLO, flip in 1u8..) {
            let mut bytes = hello.encode(&identity(2), 1).unwrap();
            prop_assert_eq!(Hello::decode(&identity(1), &bytes), Ok((2, hello)));
            prop_assert!(Hello::decode(&identity(3), &bytes).is_err(), "it was to another");
            bytes[at] ^= flip;
            prop_assert!(Hello::decode(&identity(1), &bytes).is_err());
            prop_assert!(Hello::decode(&identity(1), &bytes[..at]).is_err());
        }
    }

    #[test]
    fn buffers_hold_what_the_card_promises() {
        let mut hello = some_hello();
        hello.queues.insert(0, Queue { number: 16, size: 64, window: 8 });
        assert!(Hello::decode(&identity(1), &hello.encode(&identity(0), 1).unwrap()).is_ok());
        hello.address.max_message += 1;
        let reason = Hello::decode(&identity(1), &hello.encode(&identity(0), 1).unwrap()).unwrap_err();
        assert!(reason.contains("4097") && reason.contains("4096"), "{reason}");
    }

    #[test]
    fn foreign_processes_are_rejected() {
        let hello = some_hello();
        let bytes = hello.encode(&identity(0), 1).unwrap();
        let other = Identity::new(&Job::new("a job".into(), [8; 32], 1, 4, 1));
        assert!(Hello::decode(&other, &bytes).unwrap_err().contains("secret"));
        let outside = Identity::new(&Job::new("a job".into(), [7; 32], 9, 4, 1));
        assert!(Hello::decode(&identity(1), &hello.encode(&outside, 1).unwrap()).unwrap_err().contains("0x9"));
    }

    /// A host's process names: this process belongs to a job of two processes, whose number is in the upper half of a
    /// name.
    pub(in super::super) struct TwoJobs {
        own: u64,
        others: u64,
        /// The secrets that this process and the processes of the other job have published.
        secrets: [[u8; 32]; 2],
        /// The number of lookups of names and requests for secrets.
        pub(in super::super) met: AtomicUsize,
    }

    impl Names for TwoJobs {
        fn name(&self, peer: Rank) -> Option<u64> {
            let (job, rank) = if peer < 2 { (self.own, peer) } else { (self.others, peer - 2) };
            (peer < 4).then_some(job << 32 | u64::from(rank))
        }

        fn rank(&self, name: u64) -> Option<Rank> {
            self.met.fetch_add(1, Ordering::Relaxed);
            (0..4).find(|&rank| self.name(rank) == Some(name))
        }

        fn is_member(&self, name: u64) -> bool {
            name >> 32 == self.own
        }

        fn job_secret(&self) -> Option<[u8; 32]> {
            Some([self.own as u8; 32])
        }

        fn own_secret(&self) -> [u8; 32] {
            self.secrets[0]
        }

        fn secret_of(&self, _peer: Rank) -> Option<[u8; 32]> {
            self.met.fetch_add(1, Ordering::Relaxed);
            Some(self.secrets[1])
        }
    }

    /// Rank 1 of job `own`, which may meet those of job `others`; and its names.
    pub(in super::super) fn of_two_jobs(own: u64, others: u64, secrets: [u8; 2]) -> (Identity, Arc<TwoJobs>) {
        let secrets = secrets.map(|secret| [secret; 32]);
        let names = Arc::new(TwoJobs { own, others, secrets, met: AtomicUsize::new(0) });
        let mut job = Job::of_host(format!("job {own}"), names.clone(), 1, 2, 2);
        job.foreign_processes = 2;
        (Identity::new(&job), names)
    }

    #[test]
    fn processes_of_two_jobs_meet_by_their_names() {
        let ((here, met), (there, _)) = (of_two_jobs(5, 6, [50, 60]), of_two_jobs(6, 5, [60, 50]));
        let hello = some_hello();
        // Rank 1 of each is rank 3 to the other.
        assert_eq!(Hello::decode(&there, &hello.encode(&here, 3).unwrap()), Ok((3, hello.clone())));
        assert_eq!(Hello::decode(&here, &hello.encode(&there, 3).unwrap()), Ok((3, hello.clone())));
        assert!(hello.encode(&here, 4).is_err(), "nobody has that number");
        // A process that does not know this one's published secret is not looked up, whatever name it claims.
        let before = met.met.load(Ordering::Relaxed);
        let (liar, _) = of_two_jobs(6, 5, [60, 51]);
        assert!(Hello::decode(&here, &hello.encode(&liar, 3).unwrap()).unwrap_err().contains("secret"));
        assert_eq!(met.met.load(Ordering::Relaxed), before);
        let (elsewhere, _) = of_two_jobs(7, 5, [60, 50]);
        assert!(Hello::decode(&here, &hello.encode(&elsewhere, 3).unwrap()).unwrap_err().contains("unknown process"));
    }

    fn some_hello() -> Hello {
        let address = Address {
            mtu: 5,
            kind: crate::gid::Kind::RoceV2,
            lid: 0,
            reads: 1,
            queues: 1,
            gid: [1; 16],
            datagrams: 2,
            datagram_key: 3,
            max_message: 4096,
            process: cableway_btl::process::Process::default(),
            listener: None,
            pkey: 0,
            network: 0,
        };
        Hello {
            asks: true,
            refusal: None,
            queues: smallvec::smallvec![Queue { number: 17, size: 4096, window: 8 }],
            first_packet: 1,
            knows: 0,
            credits: 0,
            credits_key: 0,
            address,
        }
    }
}
