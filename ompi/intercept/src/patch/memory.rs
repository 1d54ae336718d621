//! Words in memory that may be protected.

use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The protection of this process's memory.
///
/// It comes from the kernel, not from the objects' headers. A tool may have made a page writable and rely on that.
pub(super) struct Memory {
    mappings: Vec<Mapping>,
    page: usize,
}

struct Mapping {
    addresses: Range<usize>,
    protection: c_int,
}

impl Memory {
    /// Reads the protection of everything that is mapped now.
    pub(super) fn read() -> io::Result<Self> {
        let text = std::fs::read("/proc/self/maps")?;
        let mappings = text.split(|&byte| byte == b'\n').filter_map(mapping).collect();
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).ok().filter(|page| page.is_power_of_two());
        Ok(Memory { mappings, page: page.ok_or_else(io::Error::last_os_error)? })
    }

    /// Replaces the value of a word, and restores the page's protection. False if the word had another value.
    ///
    /// # Errors
    /// The kernel refuses to make the page writable, or to protect it again.
    pub(super) fn exchange(&self, word: &AtomicUsize, from: usize, to: usize) -> io::Result<bool> {
        if word.load(Ordering::Acquire) != from {
            return Ok(false);
        }
        let address = word.as_ptr().expose_provenance();
        let protection = self.protection(address).ok_or(io::ErrorKind::NotFound)?;
        let writable = protection & libc::PROT_WRITE != 0;
        // Other threads may read the page, or run code on it, meanwhile.
        if !writable {
            self.protect(address, protection | libc::PROT_WRITE)?;
        }
        let exchanged = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !writable {
            self.protect(address, protection)?;
        }
        Ok(exchanged)
    }

    fn protection(&self, address: usize) -> Option<c_int> {
        let after = self.mappings.partition_point(|mapping| mapping.addresses.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        mapping.addresses.contains(&address).then_some(mapping.protection)
    }

    fn protect(&self, address: usize, protection: c_int) -> io::Result<()> {
        let start = std::ptr::with_exposed_provenance_mut(address & !(self.page - 1));
        // SAFETY: the page belongs to a mapped object, and keeps the rights that it has in `mappings`.
        match unsafe { libc::mprotect(start, self.page, protection) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Reads one line of /proc/self/maps: `START-END rwxp ...`
fn mapping(line: &[u8]) -> Option<Mapping> {
    let text = std::str::from_utf8(line.get(..line.iter().position(|&byte| byte == b' ')? + 5)?).ok()?;
    let (addresses, rights) = text.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let right = |letter, right| if rights.contains(letter) { right } else { 0 };
    Some(Mapping {
        addresses: address(start)?..address(end)?,
        protection: right('r', libc::PROT_READ) | right('w', libc::PROT_WRITE) | right('x', libc::PROT_EXEC),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = b"7f00-7f80 r-xp 00029000 fe:00 5 /a b\xff";
        let mapping = mapping(line).unwrap();
        assert_eq!((mapping.addresses, mapping.protection), (0x7f00..0x7f80, libc::PROT_READ | libc::PROT_EXEC));
        assert!(super::mapping(b"").is_none() && super::mapping(b"7f00-7f80").is_none());
    }
}
