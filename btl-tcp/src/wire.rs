//! Frames: the format of a connection's bytes after its handshake. Little-endian.
//!
//! ```text
//!  0        4     5      6          8
//!  +--------+-----+------+----------+---------------------------- - -
//!  | length | kind| flags| reserved | `length` bytes: the kind's own fields, then data
//!  +--------+-----+------+----------+---------------------------- - -
//! ```
//!
//! The handshake agrees on the format's version, [`VERSION`].

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of handshake and frames; both ends must have the same.
pub(crate) const VERSION: u16 = 3;

/// A message of `pml`: data only.
pub(crate) const MESSAGE: u8 = 1;
/// A piece of a `put`: [`Fields`], then data.
pub(crate) const PUT: u8 = 2;
/// All pieces of a `put` are stored. It contains the first of [`Fields`].
pub(crate) const PUT_DONE: u8 = 3;
/// A goodbye: nothing follows.
pub(crate) const GOODBYE: u8 = 4;

/// Flag of [`PUT`]: the last piece, whose sender awaits [`PUT_DONE`].
pub(crate) const CONFIRM: u8 = 1;

/// The most data in one [`PUT`] frame. A sender may use less.
pub(crate) const MAX_PUT: usize = 1 << 20;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    /// The number of bytes after this header.
    pub(crate) length: U32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Must be zero. Another value means that the two ends are out of step.
    pub(crate) reserved: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Fields {
    /// Identifies a `put` for [`PUT_DONE`]. Used there and with [`CONFIRM`].
    pub(crate) confirmation: U64,
    /// Identifies the registration at the receiver.
    pub(crate) key: U64,
    /// The offset of the data in the registration.
    pub(crate) offset: U64,
}

/// The largest number of bytes before data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) header: FrameHeader,
    pub(crate) fields: Fields,
}

pub(crate) const HEADER: usize = size_of::<FrameHeader>();
pub(crate) const PUT_FIELDS: usize = size_of::<Fields>();
pub(crate) const PUT_DONE_FIELDS: usize = size_of::<U64>();

const _: () = {
    use memoffset::offset_of;
    assert!(HEADER == 8 && PUT_FIELDS == 24 && size_of::<Head>() == HEADER + PUT_FIELDS);
    assert!(offset_of!(FrameHeader, length) == 0);
    assert!(offset_of!(FrameHeader, kind) == 4);
    assert!(offset_of!(FrameHeader, flags) == 5);
    assert!(offset_of!(FrameHeader, reserved) == 6);
    assert!(offset_of!(Head, fields) == HEADER);
    assert!(offset_of!(Fields, confirmation) == 0);
    assert!(offset_of!(Fields, key) == 8);
    assert!(offset_of!(Fields, offset) == 16);
};

impl FrameHeader {
    fn new(kind: u8, flags: u8, length: usize) -> Self {
        debug_assert!(u32::try_from(length).is_ok(), "limits keep a frame's length within 32 bits");
        FrameHeader { length: U32::new(length as u32), kind, flags, reserved: U16::ZERO }
    }
}

/// The header of a message of `length` bytes.
#[inline]
pub(crate) fn message(length: usize) -> [u8; HEADER] {
    zerocopy::transmute!(FrameHeader::new(MESSAGE, 0, length))
}

/// Returns the header of a piece of a `put`, including its fields. `confirmation` is for the last piece, if a
/// confirmation is expected.
pub(crate) fn put(key: u64, offset: u64, length: usize, confirmation: Option<u64>) -> [u8; HEADER + PUT_FIELDS] {
    zerocopy::transmute!(Head {
        header: FrameHeader::new(PUT, if confirmation.is_some() { CONFIRM } else { 0 }, PUT_FIELDS + length),
        fields: Fields {
            confirmation: U64::new(confirmation.unwrap_or_default()),
            key: U64::new(key),
            offset: U64::new(offset),
        },
    })
}

/// A whole [`PUT_DONE`] frame.
pub(crate) fn put_done(confirmation: u64) -> [u8; HEADER + PUT_DONE_FIELDS] {
    let header: [u8; HEADER] = zerocopy::transmute!(FrameHeader::new(PUT_DONE, 0, PUT_DONE_FIELDS));
    let mut bytes = [0; HEADER + PUT_DONE_FIELDS];
    bytes[..HEADER].copy_from_slice(&header);
    bytes[HEADER..].copy_from_slice(&confirmation.to_le_bytes());
    bytes
}

/// A whole [`GOODBYE`] frame.
pub(crate) fn goodbye() -> [u8; HEADER] {
    zerocopy::transmute!(FrameHeader::new(GOODBYE, 0, 0))
}
