//! Registered memory that a header names.

use cableway_btl::RemoteHandle;
use cableway_common_cuda::Strided;
use memoffset::offset_of;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::header::{HeaderBuffer, flag, layouts};
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

layouts! {
    /// Follows a handle if the data is in blocks at regular distances, with counts and strides of three dimensions.
    BlocksLayout { offset: I64, block: U64, counts: [U64; 3], strides: [I64; 3] }
}

const _: () = {
    assert!(size_of::<BlocksLayout>() == 64 && offset_of!(BlocksLayout, counts) == 16);
    assert!(offset_of!(BlocksLayout, strides) == 40);
};

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
        let Some(Strided { offset, block, dimensions }) = self.blocks else { return };
        let (counts, strides) = (dimensions.map(|of| of.0.into()), dimensions.map(|of| of.1.into()));
        out.push(BlocksLayout { offset: offset.into(), block: block.into(), counts, strides }.as_bytes());
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
                Some(layout.strided(len)?)
            }
        };
        reader.no_payload(end)?;
        Ok(Exposed { btl: BtlTag(btl.get()), ordinal, handle, blocks })
    }
}

impl BlocksLayout {
    fn strided(&self, len: u64) -> Result<Strided, Malformed> {
        let mut dimensions = [(1, 0); 3];
        for (dimension, (count, stride)) in dimensions.iter_mut().zip(self.counts.into_iter().zip(self.strides)) {
            *dimension = (count.get(), stride.get());
        }
        let strided = Strided { offset: self.offset.get(), block: self.block.get(), dimensions };
        let size = strided.size().filter(|_| strided.span().is_some_and(|(low, _)| low >= 0));
        size.filter(|size| *size >= len).map(|_| strided).ok_or(Malformed::Blocks { len })
    }
}
