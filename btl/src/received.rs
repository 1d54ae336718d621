//! A message that a BTL delivers.

use std::marker::PhantomData;

/// Bytes to which a peer may still write. They can be copied, but never be read in place.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    address: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// `len` bytes at `address` stay readable for `'a`. Another process may change them at any time.
    #[inline]
    pub unsafe fn new(address: *const u8, len: usize) -> Self {
        SharedBytes { address, len, life: PhantomData }
    }

    /// Wraps bytes of private memory.
    #[inline]
    pub fn from_private(bytes: &'a [u8]) -> Self {
        SharedBytes { address: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies as many of the first bytes into `out` as exist and fit. Returns their number.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let count = self.len.min(out.len());
        // SAFETY: the source is readable for `'a`. The destination is private, so the two do not overlap. A changing
        // source yields arbitrary bytes, which every caller must expect.
        unsafe { self.address.copy_to_nonoverlapping(out.as_mut_ptr(), count) }
        count
    }

    /// Appends all bytes to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        let end = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: as in `copy_to`; there is room for as many bytes, which are then initialised.
        unsafe {
            self.address.copy_to_nonoverlapping(end, self.len);
            out.set_len(out.len() + self.len);
        }
    }

    /// Copies the first `N` words of eight bytes, little-endian, if there are that many. Reads each word once and as a
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
            // SAFETY: within the range, which is readable for `'a`. Volatile, because others may write there.
            let Word(bytes) = unsafe { self.address.cast::<Word>().add(index).read_volatile() };
            *word = u64::from_le(bytes);
        }
        Some(out)
    }

    /// Returns the bytes after the first `count`, or none if there are fewer.
    #[inline]
    pub fn skip(&self, count: usize) -> SharedBytes<'a> {
        let count = count.min(self.len);
        // SAFETY: within the range.
        SharedBytes { address: unsafe { self.address.add(count) }, len: self.len - count, life: PhantomData }
    }

    /// Returns the first byte's address for opaque copies by a convertor or a device. Never dereference it otherwise.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.address
    }
}

/// The BTL's side of [`Received::retain`].
pub trait Retain {
    /// Keeps the message's memory. Dropping the box returns it, from any thread.
    fn retain(&self) -> Box<dyn Send>;
}

/// One message within an upcall.
pub struct Received<'a> {
    bytes: SharedBytes<'a>,
    retain: Option<&'a dyn Retain>,
}

impl<'a> Received<'a> {
    /// Implements `retain` if the BTL can keep the message in memory registered with the driver.
    #[inline]
    pub fn new(bytes: SharedBytes<'a>, retain: Option<&'a dyn Retain>) -> Self {
        Received { bytes, retain }
    }

    /// Returns the whole message, header first.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'a> {
        self.bytes
    }

    /// Keeps the message beyond the upcall, so that a device can copy from it. Returns `None` if the BTL cannot keep
    /// it, or keeps the maximum already. Copy it at once then.
    pub fn retain(&self) -> Option<Retained> {
        let keeper = self.retain?.retain();
        Some(Retained { address: self.bytes.address, len: self.bytes.len, _keeper: keeper })
    }
}

/// A message kept beyond its upcall. Dropping it returns the memory to the BTL.
pub struct Retained {
    address: *const u8,
    len: usize,
    _keeper: Box<dyn Send>,
}

// SAFETY: only `SharedBytes` accesses the bytes, and its promise holds on any thread.
unsafe impl Send for Retained {}

impl Retained {
    /// Returns the whole message, header first.
    pub fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the keeper keeps the range readable as long as `self` lives.
        unsafe { SharedBytes::new(self.address, self.len) }
    }
}
