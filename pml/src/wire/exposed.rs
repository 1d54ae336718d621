//! Registered memory that a header names.

use cableway_btl::RemoteHandle;
use cableway_common_cuda::Strided;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::blocks::BlocksLayout;
use super::header::{HeaderBuffer, flag};
use super::ids::BtlTag;
use super::reader::{Malformed, Reader};

/// Registered memory, and the link that reaches it: number `ordinal` of the transport with this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exposed {
    pub(crate) btl: BtlTag,
    pub(crate) ordinal: u8,
    pub(crate) handle: RemoteHandle,
    /// The blocks in the memory that hold the data, or `None` if all of it does.
    pub(crate) blocks: Option<Strided>,
}

/// The fields of a header with registered memory. The handle and the blocks follow the header.
pub(crate) struct ExposedFields {
    pub(crate) btl: U32,
    pub(crate) ordinal: u8,
    pub(crate) handle_len: u8,
    /// Set if blocks follow: the number of bytes that they must hold. They hold more if the message is longer than the
    /// receiver's buffer.
    pub(crate) blocks: Option<u64>,
}

impl Exposed {
    /// The most bytes that follow a header.
    pub(crate) const MAX: usize = RemoteHandle::MAX + size_of::<BlocksLayout>();
    /// The flag that says that blocks follow the handle.
    pub(crate) const FLAG_BLOCKS: u8 = 2;

    pub(crate) fn flags(&self) -> u8 {
        flag(self.blocks.is_some(), Self::FLAG_BLOCKS)
    }

    pub(crate) fn handle_len(&self) -> u8 {
        self.handle.as_bytes().len() as u8
    }

    /// Appends the handle and the blocks to a header.
    pub(crate) fn append_to(&self, out: &mut HeaderBuffer) {
        out.push(self.handle.as_bytes());
        if let Some(blocks) = &self.blocks {
            out.push(BlocksLayout::new(blocks).as_bytes());
        }
    }

    /// Parses the end of a message, which follows a header of `at` bytes.
    pub(crate) fn parse(reader: &Reader<'_>, at: usize, fields: &ExposedFields) -> Result<Self, Malformed> {
        let &ExposedFields { btl, ordinal, handle_len, blocks } = fields;
        let mut end = at + usize::from(handle_len);
        let handle = reader.bytes.get(at..end).and_then(RemoteHandle::new).ok_or(Malformed::Handle(handle_len))?;
        let blocks = match blocks {
            None => None,
            Some(len) => {
                let rest = reader.bytes.get(end..).ok_or(reader.short())?;
                let (layout, _) = BlocksLayout::read_from_prefix(rest).map_err(|_| reader.short())?;
                end += size_of::<BlocksLayout>();
                let blocks = layout.blocks().filter(|blocks| blocks.size().is_some_and(|size| size >= len));
                Some(blocks.ok_or(Malformed::Blocks { len })?)
            }
        };
        reader.no_payload(end)?;
        Ok(Exposed { btl: BtlTag(btl.get()), ordinal, handle, blocks })
    }
}
