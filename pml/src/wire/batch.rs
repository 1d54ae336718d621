//! Messages of several headers of one kind: the answers of one poll of a peer's messages, or the PUTs of one launch.
//!
//! Each entry of `Puts` has its own handle, and handles of one allocation differ little. So an entry holds only the
//! words of its handle that differ from the previous handle.

use std::mem::size_of;

use cableway_btl::{MIN_MESSAGE, RemoteHandle};
use memoffset::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::header::layouts;
use super::ids::{BtlTag, Id};
use super::kind;
use super::reader::{Malformed, Reader, reserved};

layouts! {
    PutsHeader { kind: u8, flags: u8, ordinal: u8, handle_len: u8, btl: U32, count: U32, zero: U32 }
    /// The differing words of the handle follow.
    PutEntry { sender: U64, receiver: U64, len: U64, differs: U32, zero: U32 }
    ListHeader { kind: u8, flags: u8, count: U16, zero: U32 }
    PutFinEntry { receiver: U64, len: U64 }
}

const _: () = {
    assert!(size_of::<PutsHeader>() == 16 && offset_of!(PutsHeader, btl) == 4 && offset_of!(PutsHeader, count) == 8);
    assert!(size_of::<PutEntry>() == 32 && offset_of!(PutEntry, len) == 16 && offset_of!(PutEntry, differs) == 24);
    assert!(size_of::<ListHeader>() == 8 && offset_of!(ListHeader, count) == 2);
    assert!(size_of::<PutFinEntry>() == 16 && offset_of!(PutFinEntry, len) == 8);
    assert!(size_of::<PutsHeader>() + RemoteHandle::MAX + size_of::<PutEntry>() + RemoteHandle::MAX <= MIN_MESSAGE);
};

/// A message that is being built.
struct Batch {
    bytes: [u8; MIN_MESSAGE],
    len: usize,
    count: u16,
}

impl Batch {
    const EMPTY: Batch = Batch { bytes: [0; MIN_MESSAGE], len: 0, count: 0 };

    /// Writes the number of entries to the header's field at `at`, and returns the message. The next entry starts a new
    /// message. Returns `None` without entries.
    fn take(&mut self, at: usize) -> Option<&[u8]> {
        let (len, count) = (std::mem::take(&mut self.len), std::mem::take(&mut self.count));
        // The field is little-endian. The upper bytes of a longer one stay zero.
        self.bytes[at..at + size_of::<U16>()].copy_from_slice(U16::from(count).as_bytes());
        (count != 0).then(|| &self.bytes[..len])
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn fits(&self, len: usize) -> bool {
        self.len + len <= MIN_MESSAGE
    }
}

/// Requests to PUT whole messages, each into one run of memory.
pub(crate) struct Puts {
    batch: Batch,
    via: (BtlTag, u8),
    /// The handle of the last entry.
    handle: Option<RemoteHandle>,
}

impl Puts {
    pub(crate) const EMPTY: Puts = Puts { batch: Batch::EMPTY, via: (BtlTag(0), 0), handle: None };

    /// Adds a request for the link `(btl, ordinal)`. Returns false, without any effect, if it does not fit the requests
    /// in the message.
    #[inline]
    pub(crate) fn add(
        &mut self,
        &WholePut { sender, receiver, len, handle }: &WholePut<'_>,
        (btl, ordinal): (BtlTag, u8),
    ) -> bool {
        let differs = match &self.handle {
            _ if self.batch.count == 0 => {
                let handle_len = handle.as_bytes().len() as u8;
                let (kind, count, zero) = (kind::PUTS, 0.into(), 0.into());
                let header = PutsHeader { kind, flags: 0, ordinal, handle_len, btl: btl.0.into(), count, zero };
                self.batch.push(header.as_bytes());
                self.batch.push(handle.as_bytes());
                self.via = (btl, ordinal);
                0
            }
            Some(before) if self.via == (btl, ordinal) => match handle.differs(before) {
                Some(differs) => differs,
                None => return false,
            },
            _ => return false,
        };
        let words = differs.count_ones() as usize * RemoteHandle::WORD;
        if !self.batch.fits(size_of::<PutEntry>() + words) {
            return false;
        }
        let (sender, receiver) = (sender.0.into(), receiver.0.into());
        let entry = PutEntry { sender, receiver, len: len.into(), differs: differs.into(), zero: 0.into() };
        self.batch.push(entry.as_bytes());
        for index in bits(differs) {
            self.batch.push(&handle.word(index));
        }
        self.batch.count += 1;
        self.handle = Some(*handle);
        true
    }

    /// Returns the message, if there is one, and starts a new one.
    pub(crate) fn take(&mut self) -> Option<&[u8]> {
        self.batch.take(offset_of!(PutsHeader, count))
    }
}

/// A list of FINs of one kind, all without an error.
pub(crate) struct List {
    kind: u8,
    batch: Batch,
}

impl List {
    pub(crate) const PUT_FIN: List = List { kind: kind::PUT_FINS, batch: Batch::EMPTY };
    pub(crate) const FIN: List = List { kind: kind::FINS, batch: Batch::EMPTY };

    #[inline]
    fn add(&mut self, entry: &[u8]) -> bool {
        if self.batch.count == 0 {
            let header = ListHeader { kind: self.kind, flags: 0, count: 0.into(), zero: 0.into() };
            self.batch.push(header.as_bytes());
        }
        if !self.batch.fits(entry.len()) {
            return false;
        }
        self.batch.push(entry);
        self.batch.count += 1;
        true
    }

    /// Adds a FIN for a PUT. Returns false, without any effect, if the list is full.
    #[inline]
    pub(crate) fn add_put_fin(&mut self, receiver: Id, len: u64) -> bool {
        self.add(PutFinEntry { receiver: receiver.0.into(), len: len.into() }.as_bytes())
    }

    /// Adds a FIN for a sender. Returns false, without any effect, if the list is full.
    #[inline]
    pub(crate) fn add_fin(&mut self, sender: Id) -> bool {
        self.add(U64::from(sender.0).as_bytes())
    }

    /// Returns the message, if there is one, and starts a new one.
    pub(crate) fn take(&mut self) -> Option<&[u8]> {
        self.batch.take(offset_of!(ListHeader, count))
    }
}

/// Returns the set bits, from the lowest.
fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(bit)
    })
}

/// Returns whether a message that begins with this byte has several headers.
#[inline]
pub(crate) fn is_batch(kind: u8) -> bool {
    matches!(kind, kind::PUTS | kind::PUT_FINS | kind::FINS)
}

/// A checked message of several headers.
#[derive(Debug)]
pub(crate) enum Several<'b> {
    Puts(PutsReader<'b>),
    PutFins(PutFins<'b>),
    Fins(Fins<'b>),
}

/// Parses a message of several headers from a private copy.
pub(crate) fn parse_batch(bytes: &[u8]) -> Result<Several<'_>, Malformed> {
    let reader = Reader::new(bytes, bytes.len())?;
    let kind = reader.kind;
    if kind == kind::PUTS {
        let header: PutsHeader = reader.read()?;
        reader.unused(header.flags, &header.zero)?;
        let rest = &bytes[size_of::<PutsHeader>()..];
        let handle = rest.get(..usize::from(header.handle_len)).and_then(RemoteHandle::new);
        let handle = handle.ok_or(Malformed::Handle(header.handle_len))?;
        let rest = &rest[usize::from(header.handle_len)..];
        let via = (BtlTag(header.btl.get()), header.ordinal);
        return Ok(Several::Puts(PutsReader { via, handle, left: header.count.get(), rest }));
    }
    let header: ListHeader = reader.read()?;
    reader.unused(header.flags, &header.zero)?;
    let rest = &bytes[size_of::<ListHeader>()..];
    let count = usize::from(header.count.get());
    let payload = |size: usize| Malformed::Payload { kind, payload: rest.len(), expected: (count * size) as u64 };
    match kind {
        kind::PUT_FINS => {
            let size = size_of::<PutFinEntry>();
            let entries = <[PutFinEntry]>::ref_from_bytes_with_elems(rest, count).map_err(|_| payload(size))?;
            Ok(Several::PutFins(PutFins(entries)))
        }
        kind::FINS => {
            let size = size_of::<U64>();
            let entries = <[U64]>::ref_from_bytes_with_elems(rest, count).map_err(|_| payload(size))?;
            Ok(Several::Fins(Fins(entries)))
        }
        unknown => Err(Malformed::Kind(unknown)),
    }
}

/// The receivers and lengths of finished PUTs.
#[derive(Debug)]
pub(crate) struct PutFins<'b>(&'b [PutFinEntry]);

impl PutFins<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, u64)> + '_ {
        self.0.iter().map(|entry| (Id(entry.receiver.get()), entry.len.get()))
    }
}

/// The senders whose messages are complete.
#[derive(Debug)]
pub(crate) struct Fins<'b>(&'b [U64]);

impl Fins<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Id> + '_ {
        self.0.iter().map(|sender| Id(sender.get()))
    }
}

/// A request to PUT a whole message into one run of memory.
pub(crate) struct WholePut<'h> {
    pub(crate) sender: Id,
    pub(crate) receiver: Id,
    pub(crate) len: u64,
    pub(crate) handle: &'h RemoteHandle,
}

/// Requests to PUT. Each is checked when it is read.
#[derive(Debug)]
pub(crate) struct PutsReader<'b> {
    via: (BtlTag, u8),
    /// The handle of the last request.
    handle: RemoteHandle,
    left: u32,
    rest: &'b [u8],
}

impl PutsReader<'_> {
    /// Returns the link that all requests name.
    pub(crate) fn via(&self) -> (BtlTag, u8) {
        self.via
    }

    /// Reads the next request.
    #[inline]
    pub(crate) fn next_put(&mut self) -> Option<Result<WholePut<'_>, Malformed>> {
        if self.left == 0 {
            let more = self.rest.len();
            let excess = Malformed::Payload { kind: kind::PUTS, payload: more, expected: 0 };
            self.rest = &[];
            return (more != 0).then_some(Err(excess));
        }
        self.left -= 1;
        Some(self.read())
    }

    #[inline]
    fn read(&mut self) -> Result<WholePut<'_>, Malformed> {
        let short = Malformed::Short { kind: kind::PUTS, len: self.rest.len() };
        let Ok((entry, mut rest)) = PutEntry::read_from_prefix(self.rest) else { return Err(short) };
        reserved(kind::PUTS, &entry.zero)?;
        for index in bits(entry.differs.get()) {
            let Some((word, more)) = rest.split_first_chunk() else { return Err(short) };
            rest = more;
            if !self.handle.set_word(index, *word) {
                return Err(Malformed::Handle(self.handle.as_bytes().len() as u8));
            }
        }
        self.rest = rest;
        let PutEntry { sender, receiver, len, .. } = entry;
        Ok(WholePut { sender: Id(sender.get()), receiver: Id(receiver.get()), len: len.get(), handle: &self.handle })
    }
}

#[cfg(test)]
mod tests;
