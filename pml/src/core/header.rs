//! Headers of the core: credit, and the report after a link failed.

use memoffset::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::wire::{BtlTag, Header, HeaderBuffer, Malformed, Reader, kind, layouts};

/// Receiver to sender: the cost of all eager messages consumed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreditHeader {
    pub(crate) consumed: u64,
}

/// Sent over another link: the link of this transport failed after it had delivered `received` messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    pub(crate) btl: BtlTag,
    pub(crate) received: u64,
}

layouts! {
    CreditLayout { kind: u8, flags: u8, zero: [u8; 6], consumed: U64 }
    ResumeLayout { kind: u8, flags: u8, zero: U16, btl: U32, received: U64 }
}

const _: () = {
    assert!(size_of::<CreditLayout>() == 16 && offset_of!(CreditLayout, consumed) == 8);
    assert!(size_of::<ResumeLayout>() == 16 && offset_of!(ResumeLayout, btl) == 4);
    assert!(offset_of!(ResumeLayout, received) == 8);
};

impl Header for CreditHeader {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let layout: CreditLayout = reader.read_all()?;
        reader.unused(layout.flags, &layout.zero)?;
        Ok(CreditHeader { consumed: layout.consumed.get() })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let consumed = self.consumed.into();
        out.push(CreditLayout { kind: kind::CREDIT, flags: 0, zero: [0; 6], consumed }.as_bytes());
    }
}

impl Header for Resume {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let layout: ResumeLayout = reader.read_all()?;
        reader.unused(layout.flags, &layout.zero)?;
        Ok(Resume { btl: BtlTag(layout.btl.get()), received: layout.received.get() })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let (btl, received) = (self.btl.0.into(), self.received.into());
        out.push(ResumeLayout { kind: kind::RESUME, flags: 0, zero: 0.into(), btl, received }.as_bytes());
    }
}
