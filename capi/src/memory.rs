//! Memory of messages, as functions describe it: an address, and a number of elements of a datatype.

use std::ffi::c_void;

use cableway::{Parts, RawBuffer};

use crate::arguments;
use crate::code::{Code, Failure};
use crate::datatype::Datatype;
use crate::handle::Handle;

/// The address that stands for `CABLEWAY_IN_PLACE`.
pub(crate) fn is_in_place(address: *const c_void) -> bool {
    address.addr() == usize::MAX
}

/// Memory as a function's arguments describe it. Without a datatype the count is of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) address: *const c_void,
    pub(crate) count: usize,
    pub(crate) datatype: *const Handle<Datatype>,
}

impl Memory {
    pub(crate) fn new(address: *const c_void, count: usize, datatype: *const Handle<Datatype>) -> Memory {
        Memory { address, count, datatype }
    }

    /// Returns so many times as many elements: a part for each rank.
    pub(crate) fn of_ranks(self, ranks: u32) -> Result<Memory, Failure> {
        let count = self.count.checked_mul(ranks as usize);
        let count = count.ok_or_else(|| Failure::argument(format!("{} elements for each rank", self.count)))?;
        Ok(Memory { count, ..self })
    }

    /// Returns the memory as a buffer.
    ///
    /// # Safety
    /// The program keeps the memory and the datatype for as long as `'a`. It accesses the memory meanwhile only as
    /// [`RawBuffer::new`] permits.
    #[inline]
    pub(crate) unsafe fn buffer<'a>(self) -> Result<RawBuffer<'a>, Failure> {
        let Memory { address, count, datatype } = self;
        if address.is_null() && count > 0 {
            return Err(arguments::null("the buffer"));
        }
        if datatype.is_null() {
            if count > isize::MAX as usize {
                return Err(Failure::argument(format!("a buffer cannot have {count} bytes")));
            }
            // SAFETY: the caller's promise.
            return Ok(unsafe { RawBuffer::new(address.cast_mut(), count as u64) });
        }
        // SAFETY: the caller's promise.
        let layout = unsafe { Handle::get(datatype)? }.layout();
        if count > 0 && layout.size() > 0 && layout.span(count as u64).is_none() {
            let text = format!("{count} elements of {} bytes are more than memory can hold", layout.size());
            return Err(Failure::new(Code::ErrDatatype, text));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { RawBuffer::typed(address.cast_mut(), count as u64, layout) })
    }
}

/// Memory with a part for each rank, as a function's arguments describe it.
#[derive(Clone, Copy)]
pub(crate) struct Divided {
    pub(crate) address: *const c_void,
    pub(crate) counts: *const usize,
    /// Null: the parts follow each other.
    pub(crate) displacements: *const usize,
    pub(crate) datatype: *const Handle<Datatype>,
}

impl Divided {
    /// Returns the memory up to the end of the last part, and the parts.
    ///
    /// # Safety
    /// The same as that of [`Memory::buffer`], and the arrays have an entry for each rank and stay for as long as `'a`.
    pub(crate) unsafe fn parts<'a>(self, ranks: u32) -> Result<(RawBuffer<'a>, Parts<'a>), Failure> {
        let Divided { address, counts, displacements, datatype } = self;
        // SAFETY: the caller's promise.
        let counts = unsafe { arguments::array(counts, ranks as usize, "the array of counts")? };
        let displacements = match displacements.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { arguments::array(displacements, ranks as usize, "the array of displacements")? }),
        };
        let end = end(counts, displacements);
        let count = end.ok_or_else(|| Failure::argument("the parts of the ranks are more than memory can hold"))?;
        // SAFETY: the caller's promise.
        let buffer = unsafe { Memory { address, count, datatype }.buffer()? };
        Ok((buffer, displacements.map_or(Parts::new(counts), |displacements| Parts::at(counts, displacements))))
    }
}

/// Memory with a part for each rank.
#[derive(Clone, Copy)]
pub(crate) enum Parted {
    /// Of one length, that of this memory.
    Evenly(Memory),
    /// Of any lengths.
    Unevenly(Divided),
}

impl Parted {
    /// Describes parts of one length.
    pub(crate) fn even(address: *const c_void, count: usize, datatype: *const Handle<Datatype>) -> Parted {
        Parted::Evenly(Memory { address, count, datatype })
    }

    /// Describes parts of any lengths. Null displacements mean that they follow each other.
    pub(crate) fn uneven(
        address: *const c_void,
        counts: *const usize,
        displacements: *const usize,
        datatype: *const Handle<Datatype>,
    ) -> Parted {
        Parted::Unevenly(Divided { address, counts, displacements, datatype })
    }

    pub(crate) fn is_in_place(&self) -> bool {
        match self {
            Parted::Evenly(part) => is_in_place(part.address),
            Parted::Unevenly(parts) => is_in_place(parts.address),
        }
    }

    /// Returns the memory, and the parts if they are not of one length.
    ///
    /// # Safety
    /// The same as that of [`Divided::parts`].
    pub(crate) unsafe fn open<'a>(self, ranks: u32) -> Result<(RawBuffer<'a>, Option<Parts<'a>>), Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Parted::Evenly(part) => Ok((part.of_ranks(ranks)?.buffer()?, None)),
                Parted::Unevenly(parts) => parts.parts(ranks).map(|(buffer, parts)| (buffer, Some(parts))),
            }
        }
    }
}

/// Returns the number of elements up to the end of the last part. A part without elements has no end.
fn end(counts: &[usize], displacements: Option<&[usize]>) -> Option<usize> {
    let Some(displacements) = displacements else {
        return counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
    };
    let mut ends = displacements.iter().zip(counts).map(|(&first, &count)| first.checked_add(count));
    ends.try_fold(0, |last, end| Some(last.max(end?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_part_is_found() {
        assert_eq!(end(&[3, 0, 4], None), Some(7));
        assert_eq!(end(&[3, 0, 4], Some(&[9, 20, 0])), Some(20));
        assert_eq!(end(&[usize::MAX, 1], None), None);
        assert_eq!(end(&[1, 2], Some(&[0, usize::MAX])), None);
    }

    #[test]
    fn impossible_memory_is_refused() {
        let memory = |address: *const c_void, count| Memory { address, count, datatype: std::ptr::null() };
        let some = [0_u8; 4];
        // SAFETY: descriptions only; nothing is accessed.
        unsafe {
            assert!(memory(std::ptr::null(), 0).buffer().is_ok());
            assert_eq!(memory(std::ptr::null(), 1).buffer().unwrap_err().code, Code::ErrArgument);
            assert!(memory(some.as_ptr().cast(), 4).buffer().is_ok());
            assert_eq!(memory(some.as_ptr().cast(), usize::MAX).buffer().unwrap_err().code, Code::ErrArgument);
        }
        assert!(memory(some.as_ptr().cast(), usize::MAX / 2).of_ranks(3).is_err());
    }
}
