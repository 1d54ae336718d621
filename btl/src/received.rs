//! A message as a BTL hands it up.

use std::marker::PhantomData;

/// Bytes that a peer may still be writing to: they can be copied, never looked at in place.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    address: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// `len` bytes at `address` stay readable for `'a`. They may be changed by another process at any time.
    #[inline]
    pub unsafe fn new(address: *const u8, len: usize) -> Self {
        SharedBytes { address, len, life: PhantomData }
    }

    /// Wraps bytes of private memory.
    #[inline]
    pub fn from_private(bytes: &'a [u8]) -> Self {
        SharedBytes { address: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes into `out`, as many as there are or fit; returns how many.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let count = self.len.min(out.len());
        // SAFETY: the source is readable for `'a`; the destination is private, so the two cannot overlap. A torn or
        // changing source yields arbitrary bytes, which every caller must expect.
        unsafe { self.address.copy_to_nonoverlapping(out.as_mut_ptr(), count) }
        count
    }

    /// A copy of the first `N` words of eight bytes, little-endian, if there are that many. Each is read once and as a
    /// whole.
    #[inline]
    pub fn first_words<const N: usize>(&self) -> Option<[u64; N]> {
        /// A word at any address.
        #[repr(C, packed)]
        #[derive(Clone, Copy)]
        struct Word(u64);
        if self.len < N * size_of::<Word>() {
            return None;
        }
        let mut out = [0; N];
        for (index, word) in out.iter_mut().enumerate() {
            // SAFETY: within the range, which is readable for `'a`; volatile, because others may write there.
            let Word(bytes) = unsafe { self.address.cast::<Word>().add(index).read_volatile() };
            *word = u64::from_le(bytes);
        }
        Some(out)
    }

    /// Returns the bytes after the first `count`; none if there are fewer.
    #[inline]
    pub fn skip(&self, count: usize) -> SharedBytes<'a> {
        let count = count.min(self.len);
        // SAFETY: stays within the range.
        SharedBytes { address: unsafe { self.address.add(count) }, len: self.len - count, life: PhantomData }
    }

    /// The first byte's address, for opaque copies (a convertor's, a device's). Never to be dereferenced otherwise.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.address
    }
}

/// The BTL's side of [`Received::retain`].
pub trait Retain {
    /// Keeps the message's memory; dropping the box gives it back, from any thread.
    fn retain(&self) -> Box<dyn Send>;
}

/// One message within an upcall.
pub struct Received<'a> {
    bytes: SharedBytes<'a>,
    retain: Option<&'a dyn Retain>,
}

impl<'a> Received<'a> {
    /// `retain` where the BTL can leave the message in place beyond the upcall, in memory registered with the driver.
    #[inline]
    pub fn new(bytes: SharedBytes<'a>, retain: Option<&'a dyn Retain>) -> Self {
        Received { bytes, retain }
    }

    /// All of the message, header first.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'a> {
        self.bytes
    }

    /// Keeps the message beyond the upcall, so that a device can copy from it. None: copy it now, for the BTL cannot
    /// leave it in place, or has left as much as it may.
    pub fn retain(&self) -> Option<Retained> {
        let keeper = self.retain?.retain();
        Some(Retained { address: self.bytes.address, len: self.bytes.len, _keeper: keeper })
    }
}

/// A message kept beyond its upcall. Dropping it gives the memory back to the BTL.
pub struct Retained {
    address: *const u8,
    len: usize,
    _keeper: Box<dyn Send>,
}

// SAFETY: the bytes are only reached through `SharedBytes`, whose promise holds on any thread.
unsafe impl Send for Retained {}

impl Retained {
    /// All of the message, header first.
    pub fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the keeper keeps the range readable as long as `self` lives.
        unsafe { SharedBytes::new(self.address, self.len) }
    }
}
