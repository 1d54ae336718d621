//! Messages about memory that a caller accesses directly: headers of active messages.
//!
//! ```text
//! expose    | name: 24 |                                                                      24 bytes
//! exposed   | slot: u32 | generation: u32 | code: u8 | z: 7 | len: u64 | read: 8 | write: 8 | 40 bytes
//!           the read handle and the write handle follow as data
//!   read, write: | transport: u32 | ordinal: u8 | handle's length: u8 | z: 2 |
//! revoke    | slot: u32 | generation: u32 |                                                    8 bytes
//! released  | slot: u32 | generation: u32 |                                                    8 bytes
//! ```
//!
//! The caller asks (expose), the owner answers (exposed). The owner revokes, the caller answers (released). A handle's
//! length is 0 where that access is not possible.

use cableway_btl::RemoteHandle;
use smallvec::SmallVec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::exposures::{Granted, Ticket};
use super::key::Name;
use crate::wire::{BtlTag, Exposed, Malformed, layouts};

/// The ids of the active messages, after those of [`super::wire`].
pub(super) const EXPOSE: u32 = 3;
pub(super) const EXPOSED: u32 = 4;
pub(super) const REVOKE: u32 = 5;
pub(super) const RELEASED: u32 = 6;

layouts! {
    /// See the module.
    TicketLayout { slot: U32, generation: U32 }
    /// See the module.
    ViaLayout { btl: U32, ordinal: u8, handle_len: u8, zero: [u8; 2] }
    /// See the module.
    ExposedLayout { ticket: TicketLayout, code: u8, zero: [u8; 7], len: U64, read: ViaLayout, write: ViaLayout }
}

pub(super) const TICKET_LEN: usize = size_of::<TicketLayout>();
pub(super) const EXPOSED_LEN: usize = size_of::<ExposedLayout>();

const _: () = {
    assert!(size_of::<Name>() == 24 && TICKET_LEN == 8 && EXPOSED_LEN == 40);
    assert!(std::mem::offset_of!(ExposedLayout, code) == 8);
    assert!(std::mem::offset_of!(ExposedLayout, len) == 16);
    assert!(std::mem::offset_of!(ExposedLayout, read) == 24);
    assert!(std::mem::offset_of!(ExposedLayout, write) == 32);
    assert!(std::mem::offset_of!(ViaLayout, handle_len) == 5);
};

const IS_EXPOSED: u8 = 0;
const NEVER: u8 = 1;
const REFUSED: u8 = 2;

/// How a caller reaches memory: for its gets, and for its puts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    pub(super) read: Option<Exposed>,
    pub(super) write: Option<Exposed>,
}

/// The handles after an answer.
pub(super) type Handles = SmallVec<[u8; 256]>;

/// Parses a request to expose memory.
pub(super) fn parse_expose(header: &[u8]) -> Result<Name, Malformed> {
    Name::read_from_bytes(header).map_err(|_| Malformed::OneSided("a request to expose memory of another length"))
}

impl Ticket {
    /// Parses a revocation or a release.
    pub(super) fn parse(header: &[u8]) -> Result<Ticket, Malformed> {
        let layout = TicketLayout::read_from_bytes(header);
        layout.map(Ticket::from).map_err(|_| Malformed::OneSided("a revocation or release of another length"))
    }

    pub(super) fn to_bytes(self) -> [u8; TICKET_LEN] {
        zerocopy::transmute!(TicketLayout::from(self))
    }
}

impl From<TicketLayout> for Ticket {
    fn from(layout: TicketLayout) -> Self {
        Ticket { slot: layout.slot.get(), generation: layout.generation.get() }
    }
}

impl From<Ticket> for TicketLayout {
    fn from(Ticket { slot, generation }: Ticket) -> Self {
        TicketLayout { slot: U32::new(slot), generation: U32::new(generation) }
    }
}

/// Encodes an answer: its header, and the handles that follow.
pub(super) fn encode_exposed(ticket: Ticket, granted: &Granted<Ways>) -> ([u8; EXPOSED_LEN], Handles) {
    let mut handles = Handles::new();
    let (code, len, ways) = match granted {
        Granted::Exposed { exposed, len } => (IS_EXPOSED, *len, *exposed),
        Granted::Never => (NEVER, 0, Ways::default()),
        Granted::Refused => (REFUSED, 0, Ways::default()),
    };
    let mut via = |exposed: &Option<Exposed>| {
        let Some(Exposed { btl, ordinal, handle, .. }) = exposed else {
            return ViaLayout { btl: U32::ZERO, ordinal: 0, handle_len: 0, zero: [0; 2] };
        };
        handles.extend_from_slice(handle.as_bytes());
        let handle_len = handle.as_bytes().len() as u8;
        ViaLayout { btl: U32::new(btl.0), ordinal: *ordinal, handle_len, zero: [0; 2] }
    };
    let (read, write) = (via(&ways.read), via(&ways.write));
    let layout = ExposedLayout { ticket: ticket.into(), code, zero: [0; 7], len: U64::new(len), read, write };
    (zerocopy::transmute!(layout), handles)
}

/// Parses an answer and the handles after it.
pub(super) fn parse_exposed(header: &[u8], handles: &[u8]) -> Result<(Ticket, Granted<Ways>), Malformed> {
    let wrong = Malformed::OneSided;
    let layout = ExposedLayout::read_from_bytes(header).map_err(|_| wrong("an exposure of another length"))?;
    let ExposedLayout { ticket, code, zero, len, read, write } = layout;
    let ticket = Ticket::from(ticket);
    let bare = len == U64::ZERO && [read, write].iter().all(|via| via.as_bytes() == [0; 8]) && handles.is_empty();
    let granted = match code {
        _ if zero != [0; 7] => return Err(wrong("an exposure with reserved bytes that are not zero")),
        NEVER if bare => Granted::Never,
        REFUSED if bare => Granted::Refused,
        IS_EXPOSED => {
            let (read, rest) = parse_via(read, handles)?;
            let (write, rest) = parse_via(write, rest)?;
            if !rest.is_empty() || (read.is_none() && write.is_none()) {
                return Err(wrong("an exposure with other handles than it says"));
            }
            Granted::Exposed { exposed: Ways { read, write }, len: len.get() }
        }
        _ => return Err(wrong("an exposure of an unknown kind")),
    };
    Ok((ticket, granted))
}

fn parse_via(via: ViaLayout, bytes: &[u8]) -> Result<(Option<Exposed>, &[u8]), Malformed> {
    let ViaLayout { btl, ordinal, handle_len, zero } = via;
    if zero != [0; 2] || (handle_len == 0 && (btl, ordinal) != (U32::ZERO, 0)) {
        return Err(Malformed::OneSided("an exposure by an unknown way"));
    }
    if handle_len == 0 {
        return Ok((None, bytes));
    }
    let (handle, rest) = bytes.split_at_checked(handle_len.into()).ok_or(Malformed::Handle(handle_len))?;
    let handle = RemoteHandle::new(handle).ok_or(Malformed::Handle(handle_len))?;
    Ok((Some(Exposed { btl: BtlTag(btl.get()), ordinal, handle, blocks: None }), rest))
}

/// Parses the messages of this module, and writes them again. For fuzzers. An exposure's handles follow its header.
pub(super) fn recode(bytes: &[u8]) {
    if let Ok(ticket) = Ticket::parse(bytes) {
        assert_eq!(&ticket.to_bytes()[..], bytes);
    }
    if let Some((header, handles)) = bytes.split_at_checked(EXPOSED_LEN)
        && let Ok((ticket, granted)) = parse_exposed(header, handles)
    {
        let (header, handles) = encode_exposed(ticket, &granted);
        assert_eq!([&header[..], &handles[..]].concat(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn way() -> impl Strategy<Value = Exposed> {
        (any::<u32>(), any::<u8>(), prop::collection::vec(any::<u8>(), 1..=RemoteHandle::MAX)).prop_map(
            |(btl, ordinal, handle)| Exposed {
                btl: BtlTag(btl),
                ordinal,
                handle: RemoteHandle::new(&handle).unwrap(),
                blocks: None,
            },
        )
    }

    fn granted() -> impl Strategy<Value = Granted<Ways>> {
        let ways = (prop::option::of(way()), prop::option::of(way())).prop_map(|(read, write)| Ways { read, write });
        let some = ways.prop_filter("neither", |ways| ways.read.is_some() || ways.write.is_some());
        prop_oneof![
            Just(Granted::Never),
            Just(Granted::Refused),
            (some, any::<u64>()).prop_map(|(exposed, len)| Granted::Exposed { exposed, len }),
        ]
    }

    proptest! {
        #[test]
        fn exposures_are_read_as_they_were_written(
            slot in any::<u32>(), generation in any::<u32>(), granted in granted(), at in 0..EXPOSED_LEN,
            byte in any::<u8>(),
        ) {
            let ticket = Ticket { slot, generation };
            let (mut header, handles) = encode_exposed(ticket, &granted);
            prop_assert_eq!(parse_exposed(&header, &handles).unwrap(), (ticket, granted));
            prop_assert!(parse_exposed(&header[1..], &handles).is_err());
            prop_assert!(parse_exposed(&header, &[&handles[..], &[1]].concat()).is_err());
            if let Some((_, short)) = handles.split_last() {
                prop_assert!(parse_exposed(&header, short).is_err());
            }
            // A changed answer is refused, or nothing of it is lost.
            header[at] = byte;
            if let Ok((ticket, granted)) = parse_exposed(&header, &handles) {
                prop_assert_eq!(encode_exposed(ticket, &granted), (header, handles));
            }
        }

        #[test]
        fn tickets_are_read_as_they_were_written(slot in any::<u32>(), generation in any::<u32>()) {
            let ticket = Ticket { slot, generation };
            let bytes = ticket.to_bytes();
            prop_assert_eq!(Ticket::parse(&bytes).unwrap(), ticket);
            prop_assert!(Ticket::parse(&bytes[1..]).is_err());
        }
    }
}
