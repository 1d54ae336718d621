//! The buffer that is attached for buffered sends.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::error::Error;

/// Memory of the host into which buffered sends copy messages that cannot leave at once.
pub struct AttachedBuffer {
    memory: *mut u8,
    size: usize,
    /// Start and end of each message in it.
    used: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: the memory is accessed only through ranges that `used` assigns to one message each.
unsafe impl Send for AttachedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AttachedBuffer {}

impl AttachedBuffer {
    /// Space that each message needs beside its packed bytes (`MPI_BSEND_OVERHEAD`), for alignment.
    pub const OVERHEAD: usize = 64;

    /// # Safety
    /// `size` bytes of host memory at `memory` stay valid, and exclusive to this value, until it is dropped. Messages
    /// in it keep a reference. To take the memory back, wait for [`is_empty`](Self::is_empty) (`MPI_Buffer_detach`).
    pub unsafe fn new(memory: *mut u8, size: usize) -> Self {
        AttachedBuffer { memory, size, used: Mutex::default() }
    }

    /// Returns whether every message in it has left.
    pub fn is_empty(&self) -> bool {
        self.used.lock().is_empty()
    }

    /// Returns the address and size of the memory.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.memory, self.size)
    }

    /// Reserves space for a message of `len` bytes: the first gap that is large enough.
    pub(super) fn take(&self, len: u64) -> Result<usize, Error> {
        let needed = len.saturating_add(Self::OVERHEAD as u64);
        let mut used = self.used.lock();
        let mut at = 0;
        for (&from, &to) in &*used {
            if needed <= (from - at) as u64 {
                break;
            }
            at = to;
        }
        // The gap, or the space behind the last message.
        let end = used.range(at..).next().map_or(self.size, |(&from, _)| from);
        if needed > (end - at) as u64 {
            return Err(Error::NoBufferSpace { size: self.size, needed });
        }
        used.insert(at, at + needed as usize);
        Ok(at)
    }

    pub(super) fn give_back(&self, at: usize) {
        self.used.lock().remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_space_is_reused() {
        let mut memory = [0u8; 1000];
        // SAFETY: the memory outlives the buffer.
        let buffer = unsafe { AttachedBuffer::new(memory.as_mut_ptr(), memory.len()) };
        let need = |payload: usize| payload + AttachedBuffer::OVERHEAD;
        let first = buffer.take(200).unwrap();
        let second = buffer.take(300).unwrap();
        let third = buffer.take(200).unwrap();
        assert_eq!((first, second, third), (0, need(200), need(200) + need(300)));
        assert!(matches!(buffer.take(300), Err(Error::NoBufferSpace { size: 1000, .. })));
        buffer.give_back(second);
        assert_eq!(buffer.take(301).ok(), None, "the gap is a byte too small");
        assert_eq!(buffer.take(300).unwrap(), second);
        for at in [first, second, third] {
            buffer.give_back(at);
        }
        assert!(buffer.is_empty());
        assert!(buffer.take(u64::MAX).is_err());
    }
}
