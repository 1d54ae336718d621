//! The messages by which the two sides of a prepared operation agree, and tell each other that they end.
//!
//! They travel on the communicator of the operation. Their tags lie below those of collective operations:
//!
//! | tag | message | way |
//! |---|---|---|
//! | `FIRST` | [`Offer`] | receiver to sender |
//! | `FIRST + 8192 * 1 + number` | [`Answer`] | sender to receiver |
//! | `FIRST + 8192 * 2 + number` | data that a thread moves | sender to receiver |
//! | `FIRST + 8192 * 3 + number` | [`Farewell`] | sender to receiver |
//! | `FIRST + 8192 * 4 + number` | [`Farewell`] | receiver to sender |
//!
//! The receiver numbers its operations.

use cableway_btl::process::Process;
use cableway_common_cuda::{ExportKind, Exported};
use zerocopy::byteorder::little_endian::{I32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::plan::Side;
use crate::wire::Malformed;

/// Numbers of operations.
pub(super) const NUMBERS: u32 = 1 << 13;
/// The tag of offers. Above that of notices.
pub(super) const OFFER: i32 = i32::MIN + 16;

const _: () = assert!(OFFER > crate::status::NOTICE && 5 * NUMBERS + 16 < 1 << 16);

/// Returns the tag of answers to the receiver's operation of this number.
pub(super) fn answer_tag(number: u32) -> i32 {
    OFFER + (NUMBERS + number) as i32
}

/// Returns the tag of data that does not move by the streams alone.
pub(super) fn data_tag(number: u32) -> i32 {
    OFFER + (2 * NUMBERS + number) as i32
}

/// Returns the tag of the farewell from a side.
pub(super) fn farewell_tag(from: Side, number: u32) -> i32 {
    match from {
        Side::Send => OFFER + (3 * NUMBERS + number) as i32,
        Side::Receive => OFFER + (4 * NUMBERS + number) as i32,
    }
}

/// Why the streams alone cannot move the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::stream) enum Obstacle {
    SameProcess = 1,
    CopyOnly = 2,
    NotOnDevice = 3,
    Blocks = 4,
    NotExported = 5,
    OtherNode = 6,
    NoWords = 7,
    Busy = 8,
    NotMapped = 9,
    TooLong = 10,
}

impl Obstacle {
    const ALL: [Obstacle; 10] = [
        Obstacle::SameProcess,
        Obstacle::CopyOnly,
        Obstacle::NotOnDevice,
        Obstacle::Blocks,
        Obstacle::NotExported,
        Obstacle::OtherNode,
        Obstacle::NoWords,
        Obstacle::Busy,
        Obstacle::NotMapped,
        Obstacle::TooLong,
    ];

    /// Returns the reason for users.
    pub(in crate::stream) fn reason(self) -> &'static str {
        match self {
            Obstacle::SameProcess => "both ends are in one process",
            Obstacle::CopyOnly => "device_protocols=copy is set",
            Obstacle::NotOnDevice => "a buffer is not in device memory",
            Obstacle::Blocks => "a buffer is not one run of bytes",
            Obstacle::NotExported => "no other process can map the receiver's buffer by a handle",
            Obstacle::OtherNode => "the processes are on different nodes, or do not see each other in /proc",
            Obstacle::NoWords => "the words for signals cannot be shared, or all of them are in use",
            Obstacle::Busy => {
                "a stream had work, so nothing could be mapped: prepare operations before streams have work"
            }
            Obstacle::NotMapped => "the sender cannot map the receiver's buffer",
            Obstacle::TooLong => "the sender's buffer is longer than the receiver's",
        }
    }

    /// Decodes a reason; 0 is none.
    fn decode(code: u8) -> Result<Option<Obstacle>, Malformed> {
        match Obstacle::ALL.into_iter().find(|obstacle| *obstacle as u8 == code) {
            None if code != 0 => Err(Malformed::Prepared("an unknown reason")),
            found => Ok(found),
        }
    }

    fn encode(obstacle: Option<Obstacle>) -> u8 {
        obstacle.map_or(0, |obstacle| obstacle as u8)
    }
}

/// Where the receiver's words and buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) process: Process,
    /// The receiver's descriptor of its words.
    pub(super) descriptor: u32,
    /// In the words themselves, too: by now the descriptor may be of another file.
    pub(super) cookie: [u64; 2],
    /// The line of the operation's words.
    pub(super) line: u32,
    pub(super) exported: Exported,
    /// The buffer's offset in the exported memory. It and the length lie within.
    pub(super) offset: u64,
}

/// The receiver's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) tag: i32,
    pub(super) number: u32,
    /// The length of the receiver's buffer in bytes.
    pub(super) len: u64,
    pub(super) place: Result<Place, Obstacle>,
}

/// The sender's answer: whether the streams alone move the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer(pub(super) Result<(), Obstacle>);

/// The last message of a side: it posts no more, and its stream has passed the operation or will do nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Farewell {
    /// How often the side has posted outside of graphs, or [`UNKNOWN`](Self::UNKNOWN).
    pub(super) posts: u64,
}

impl Farewell {
    /// The stream ended before it had passed all posts: nobody knows how many it had passed.
    pub(super) const UNKNOWN: u64 = u64::MAX;
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OfferLayout {
    tag: I32,
    number: U32,
    len: U64,
    process: Process,
    descriptor: U32,
    cookie: [U64; 2],
    line: U32,
    obstacle: u8,
    kind: u8,
    reserved: [u8; 6],
    device: [u8; 16],
    base: U64,
    allocated: U64,
    buffer_id: U64,
    offset: U64,
    handle: [u8; 64],
}

pub(super) const OFFER_LEN: usize = size_of::<OfferLayout>();
pub(super) const ANSWER_LEN: usize = 8;
pub(super) const FAREWELL_LEN: usize = 8;

const _: () = assert!(OFFER_LEN == 188);

impl Offer {
    pub(super) fn to_bytes(self) -> [u8; OFFER_LEN] {
        let Offer { tag, number, len, place } = self;
        let (tag, number, len) = (I32::new(tag), U32::new(number), U64::new(len));
        let layout = match place {
            Ok(Place { process, descriptor, cookie, line, exported, offset }) => OfferLayout {
                tag,
                number,
                len,
                process,
                descriptor: U32::new(descriptor),
                cookie: cookie.map(U64::new),
                line: U32::new(line),
                obstacle: 0,
                kind: exported.kind as u8,
                reserved: [0; 6],
                device: exported.device,
                base: U64::new(exported.base),
                allocated: U64::new(exported.len),
                buffer_id: U64::new(exported.buffer_id),
                offset: U64::new(offset),
                handle: exported.handle,
            },
            Err(obstacle) => {
                let mut layout = <OfferLayout as zerocopy::FromZeros>::new_zeroed();
                (layout.tag, layout.number, layout.len) = (tag, number, len);
                layout.obstacle = Obstacle::encode(Some(obstacle));
                layout
            }
        };
        zerocopy::transmute!(layout)
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Offer, Malformed> {
        let layout =
            OfferLayout::read_from_bytes(bytes).map_err(|_| Malformed::Prepared("an offer of another length"))?;
        let (tag, number, len) = (layout.tag.get(), layout.number.get(), layout.len.get());
        if layout.reserved != [0; 6] {
            return Err(Malformed::Prepared("reserved bytes that are not zero"));
        }
        if number >= NUMBERS || tag < 0 {
            return Err(Malformed::Prepared("a number or tag out of range"));
        }
        if let Some(obstacle) = Obstacle::decode(layout.obstacle)? {
            return Ok(Offer { tag, number, len, place: Err(obstacle) });
        }
        let kind = ExportKind::from_number(layout.kind).ok_or(Malformed::Prepared("memory of an unknown kind"))?;
        let (base, allocated, offset) = (layout.base.get(), layout.allocated.get(), layout.offset.get());
        if offset.checked_add(len).is_none_or(|end| end > allocated) || base.checked_add(allocated).is_none() {
            return Err(Malformed::Prepared("a buffer outside of its memory"));
        }
        let exported = Exported {
            kind,
            device: layout.device,
            base,
            len: allocated,
            buffer_id: layout.buffer_id.get(),
            handle: layout.handle,
            pool: 0,
        };
        let place = Place {
            process: layout.process,
            descriptor: layout.descriptor.get(),
            cookie: layout.cookie.map(U64::get),
            line: layout.line.get(),
            exported,
            offset,
        };
        Ok(Offer { tag, number, len, place: Ok(place) })
    }
}

impl Answer {
    pub(super) fn to_bytes(self) -> [u8; ANSWER_LEN] {
        [Obstacle::encode(self.0.err()), 0, 0, 0, 0, 0, 0, 0]
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Answer, Malformed> {
        let [code, 0, 0, 0, 0, 0, 0, 0] = bytes else { return Err(Malformed::Prepared("an answer of another form")) };
        Ok(Answer(Obstacle::decode(*code)?.map_or(Ok(()), Err)))
    }
}

impl Farewell {
    pub(super) fn to_bytes(self) -> [u8; FAREWELL_LEN] {
        self.posts.to_le_bytes()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Farewell, Malformed> {
        let bytes = bytes.try_into().map_err(|_| Malformed::Prepared("a farewell of another length"))?;
        Ok(Farewell { posts: u64::from_le_bytes(bytes) })
    }
}

/// Parses the messages, and writes them again. For fuzzers.
pub(crate) fn recode(bytes: &[u8]) {
    if let Ok(offer) = Offer::parse(bytes) {
        assert_eq!(Offer::parse(&offer.to_bytes()), Ok(offer));
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(answer.to_bytes(), bytes);
    }
    if let Ok(farewell) = Farewell::parse(bytes) {
        assert_eq!(farewell.to_bytes(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let exported = Exported {
            kind: ExportKind::Legacy,
            device: [7; 16],
            base: 0x7000_0000,
            len: 1 << 20,
            buffer_id: 99,
            handle: [3; 64],
            pool: 0,
        };
        let place = Place { process: Process::own(), descriptor: 5, cookie: [1, 2], line: 17, exported, offset: 4096 };
        Offer { tag: 3, number: 8191, len: 1000, place: Ok(place) }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let refused = Offer { place: Err(Obstacle::OtherNode), ..offer() };
        for offer in [offer(), refused] {
            assert_eq!(Offer::parse(&offer.to_bytes()), Ok(offer));
        }
        for answer in [Ok(()), Err(Obstacle::Busy)] {
            assert_eq!(Answer::parse(&Answer(answer).to_bytes()), Ok(Answer(answer)));
        }
        assert_eq!(Farewell::parse(&Farewell { posts: 1 << 40 }.to_bytes()), Ok(Farewell { posts: 1 << 40 }));
        for (at, obstacle) in Obstacle::ALL.into_iter().enumerate() {
            assert_eq!(obstacle as usize, at + 1);
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        let bytes = offer().to_bytes();
        assert!(Offer::parse(&bytes[1..]).is_err() && Offer::parse(&[]).is_err());
        let changed = |change: fn(&mut Offer)| {
            let mut offer = offer();
            change(&mut offer);
            Offer::parse(&offer.to_bytes())
        };
        assert!(changed(|offer| offer.number = NUMBERS).is_err());
        assert!(changed(|offer| offer.tag = -1).is_err());
        assert!(changed(|offer| offer.len = 1 << 20).is_err());
        assert!(changed(|offer| offer.len = u64::MAX).is_err());
        assert!(changed(|offer| offer.place.as_mut().unwrap().offset = u64::MAX).is_err());
        assert!(changed(|offer| offer.place.as_mut().unwrap().exported.base = u64::MAX).is_err());
        let mut unknown = bytes;
        unknown[std::mem::offset_of!(OfferLayout, kind)] = 9;
        assert!(Offer::parse(&unknown).is_err());
        let mut reserved = bytes;
        reserved[std::mem::offset_of!(OfferLayout, reserved) + 5] = 1;
        assert!(Offer::parse(&reserved).is_err());
        assert!(
            Answer::parse(&[11, 0, 0, 0, 0, 0, 0, 0]).is_err() && Answer::parse(&[0, 1, 0, 0, 0, 0, 0, 0]).is_err()
        );
        assert!(Farewell::parse(&[0; 7]).is_err());
    }

    #[test]
    fn tags_of_different_messages_differ() {
        let mut all = vec![OFFER];
        for number in [0, 1, NUMBERS - 1] {
            all.extend([answer_tag(number), data_tag(number)]);
            all.extend([Side::Send, Side::Receive].map(|side| farewell_tag(side, number)));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        // Collective operations begin at 2^16.
        assert!(all.iter().all(|tag| *tag > crate::status::NOTICE && *tag < i32::MIN + (1 << 16)));
    }
}
