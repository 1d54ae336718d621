//! The packets that two processes exchange over their socket. Each is one `SOCK_SEQPACKET` record, little-endian.
//!
//! ```text
//! every packet    4 magic "CWsp"   2 version   2 kind
//! HELLO, REPLY    32 secret   8 from   8 to   4 index   32 geometry   8 cookie address   8 cookie   84 node   + memfd
//! READY           1 whether single copy from the other side works
//! GOODBYE         nothing
//! DEVICE          16 geometry                                                             + memfd
//! DEVICE_READY    1 whether it was taken
//! REFUSE          1 reason
//! ASK             24 device memory: buffer id, base, length, as in its handle
//! GIVE            24 that device memory   1 what is given
//!                   if given: 1 pieces   8 bytes of each                                   + as many descriptors
//! GONE            8 buffer id of device memory that was freed
//! ```

use cableway_common_cuda::{DescriptorRequest, MOST_PIECES};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::node::Node;
use crate::segment::{DeviceGeometry, Geometry};

const MAGIC: [u8; 4] = *b"CWsp";
const VERSION: u16 = 4;
/// The longest packet, plus one byte to detect longer ones.
pub(crate) const RECEIVE_BUFFER: usize = 1024;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Prefix {
    magic: [u8; 4],
    version: U16,
    kind: U16,
}

/// The introduction of a process.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    /// The receiver's secret.
    pub(crate) secret: [u8; 32],
    /// The sender's name: within a job, its rank.
    pub(crate) from: U64,
    /// The receiver's name.
    pub(crate) to: U64,
    /// The listener's number as a producer in the speaker's FIFO.
    pub(crate) index: U32,
    /// The geometry of the speaker's segment, whose memfd is attached.
    pub(crate) geometry: Geometry,
    /// The address of the cookie in the speaker's memory.
    pub(crate) cookie_address: U64,
    /// A random number that identifies the speaker's memory.
    pub(crate) cookie: U64,
    /// The node and namespaces of the speaker.
    pub(crate) node: Node,
}
const _: () = assert!(size_of::<Hello>() == 32 + 20 + 32 + 16 + 84 && size_of::<Hello>() + 8 < RECEIVE_BUFFER);

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hello(process {} to {})", self.from, self.to)
    }
}

/// The reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// Both sides connected at once. The connection of the refusing side stays.
    Collision = 1,
    /// The refusing side has no room for more peers.
    Full = 2,
    /// The refusing side could not map the segment.
    Segment = 3,
}

/// Device memory that is passed by descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct WireDescriptorRequest {
    buffer_id: U64,
    base: U64,
    len: U64,
}
const _: () = assert!(size_of::<WireDescriptorRequest>() == 24);
const _: () = assert!(size_of::<Prefix>() + size_of::<WireDescriptorRequest>() + 2 + 8 * MOST_PIECES < RECEIVE_BUFFER);

impl From<&DescriptorRequest> for WireDescriptorRequest {
    fn from(wanted: &DescriptorRequest) -> Self {
        let DescriptorRequest { buffer_id, base, len } = *wanted;
        WireDescriptorRequest { buffer_id: buffer_id.into(), base: base.into(), len: len.into() }
    }
}

impl From<&WireDescriptorRequest> for DescriptorRequest {
    fn from(wanted: &WireDescriptorRequest) -> Self {
        DescriptorRequest { buffer_id: wanted.buffer_id.get(), base: wanted.base.get(), len: wanted.len.get() }
    }
}

/// The answer to a request for device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WireAnswer {
    /// Descriptors of pieces with these lengths in bytes.
    Pieces(Vec<u64>),
    /// Unavailable: the memory was freed, or is unknown.
    Gone,
    /// The driver gives no descriptors.
    Refused,
}

impl WireAnswer {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            WireAnswer::Pieces(lens) => {
                [1, lens.len() as u8].into_iter().chain(lens.iter().flat_map(|len| len.to_le_bytes())).collect()
            }
            WireAnswer::Gone => vec![2],
            WireAnswer::Refused => vec![3],
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [1, count, lens @ ..] => {
                let lens = <[U64]>::ref_from_bytes(lens).ok()?;
                let right = (1..=MOST_PIECES).contains(&lens.len()) && lens.len() == usize::from(*count);
                right.then(|| WireAnswer::Pieces(lens.iter().map(|len| len.get()).collect()))
            }
            [2] => Some(WireAnswer::Gone),
            [3] => Some(WireAnswer::Refused),
            _ => None,
        }
    }
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// The first packet, from the side that connected.
    Hello(Hello),
    /// The answer to `Hello`.
    Reply(Hello),
    /// The sender has mapped the receiver's segment.
    Ready { single_copy: bool },
    /// The sender's goodbye.
    Goodbye,
    /// The sender's device segment.
    Device(DeviceGeometry),
    /// The answer to `Device`.
    DeviceReady { taken: bool },
    /// Refuses a connection, instead of `Reply`.
    Refuse(Refusal),
    /// Requests descriptors of the receiver's device memory.
    DescriptorRequest(WireDescriptorRequest),
    /// The answer to a descriptor request.
    DescriptorAnswer(WireDescriptorRequest, WireAnswer),
    /// Notifies the receiver of freed device memory of the sender.
    Gone { buffer_id: u64 },
}

impl Packet {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (given, gone);
        let (kind, body): (u16, &[u8]) = match self {
            Packet::Hello(hello) => (1, hello.as_bytes()),
            Packet::Reply(hello) => (2, hello.as_bytes()),
            Packet::Ready { single_copy } => (3, single_copy.as_bytes()),
            Packet::Goodbye => (4, &[]),
            Packet::Device(geometry) => (5, geometry.as_bytes()),
            Packet::DeviceReady { taken } => (6, taken.as_bytes()),
            Packet::Refuse(reason) => (7, &[*reason as u8]),
            Packet::DescriptorRequest(wanted) => (8, wanted.as_bytes()),
            Packet::DescriptorAnswer(wanted, gift) => {
                given = [wanted.as_bytes(), &gift.to_bytes()].concat();
                (9, &given)
            }
            Packet::Gone { buffer_id } => {
                gone = buffer_id.to_le_bytes();
                (10, &gone)
            }
        };
        let prefix = Prefix { magic: MAGIC, version: VERSION.into(), kind: kind.into() };
        [prefix.as_bytes(), body].concat()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (prefix, body) = Prefix::read_from_prefix(bytes).map_err(|_| "a packet is too short")?;
        if prefix.magic != MAGIC {
            return Err("a packet has the wrong magic number");
        }
        if prefix.version.get() != VERSION {
            return Err("a packet is of another version");
        }
        let length = "a packet has the wrong length";
        let hello = || Hello::read_from_bytes(body).map_err(|_| length);
        let byte = || <[u8; 1]>::read_from_bytes(body).map_err(|_| length);
        let flag = || match byte()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err("a flag in a packet is neither 0 nor 1"),
        };
        match prefix.kind.get() {
            1 => Ok(Packet::Hello(hello()?)),
            2 => Ok(Packet::Reply(hello()?)),
            3 => Ok(Packet::Ready { single_copy: flag()? }),
            4 if body.is_empty() => Ok(Packet::Goodbye),
            4 => Err(length),
            5 => Ok(Packet::Device(DeviceGeometry::read_from_bytes(body).map_err(|_| length)?)),
            6 => Ok(Packet::DeviceReady { taken: flag()? }),
            7 => match byte()? {
                [1] => Ok(Packet::Refuse(Refusal::Collision)),
                [2] => Ok(Packet::Refuse(Refusal::Full)),
                [3] => Ok(Packet::Refuse(Refusal::Segment)),
                _ => Err("a refusal has no known reason"),
            },
            8 => Ok(Packet::DescriptorRequest(WireDescriptorRequest::read_from_bytes(body).map_err(|_| length)?)),
            9 => {
                let (wanted, gift) = WireDescriptorRequest::read_from_prefix(body).map_err(|_| length)?;
                let gift = WireAnswer::parse(gift).ok_or("a packet gives unknown device memory")?;
                Ok(Packet::DescriptorAnswer(wanted, gift))
            }
            10 => {
                let buffer_id = U64::read_from_bytes(body).map_err(|_| length)?.get();
                Ok(Packet::Gone { buffer_id })
            }
            _ => Err("a packet is of an unknown kind"),
        }
    }
}

/// Compares two secrets in constant time.
pub(crate) fn same_secret(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets() -> Vec<Packet> {
        let geometry = Geometry {
            fifo_cells: 64.into(),
            fifo_quota: 32.into(),
            boxes: 1.into(),
            box_slots: 16.into(),
            eager_count: 1.into(),
            eager_size: 64.into(),
            large_count: 1.into(),
            large_size: 64.into(),
        };
        let device = DeviceGeometry {
            small_count: 1.into(),
            small_size: 64.into(),
            chunk_count: 1.into(),
            chunk_size: 64.into(),
        };
        let hello = Hello {
            secret: [7; 32],
            from: 1.into(),
            to: 2.into(),
            index: 3.into(),
            geometry,
            cookie_address: 4.into(),
            cookie: 5.into(),
            node: Node::of_this_process().unwrap(),
        };
        let wanted = WireDescriptorRequest { buffer_id: 1.into(), base: 2.into(), len: 3.into() };
        vec![
            Packet::Hello(hello.clone()),
            Packet::Reply(hello),
            Packet::Ready { single_copy: true },
            Packet::Goodbye,
            Packet::Device(device),
            Packet::DeviceReady { taken: false },
            Packet::Refuse(Refusal::Full),
            Packet::DescriptorRequest(wanted),
            Packet::DescriptorAnswer(wanted, WireAnswer::Refused),
            Packet::DescriptorAnswer(wanted, WireAnswer::Pieces((1..=MOST_PIECES as u64).collect())),
            Packet::Gone { buffer_id: 9 },
        ]
    }

    #[test]
    fn decoding_reverses_encoding_and_refuses_other_bytes() {
        for packet in packets() {
            let bytes = packet.to_bytes();
            assert!(bytes.len() < RECEIVE_BUFFER);
            assert_eq!(Packet::parse(&bytes), Ok(packet.clone()));
            for len in 0..bytes.len() {
                assert!(Packet::parse(&bytes[..len]).is_err(), "{packet:?} cut to {len}");
            }
            assert!(Packet::parse(&[&bytes[..], &[0]].concat()).is_err(), "{packet:?} with a byte more");
            for at in [0, 4, 7] {
                let mut spoilt = bytes.clone();
                spoilt[at] ^= 0x80;
                assert!(Packet::parse(&spoilt).is_err(), "{packet:?} with byte {at} spoilt");
            }
        }
    }

    #[test]
    fn secrets() {
        assert!(same_secret(&[1; 32], &[1; 32]));
        let mut other = [1; 32];
        other[31] = 2;
        assert!(!same_secret(&[1; 32], &other));
    }
}
