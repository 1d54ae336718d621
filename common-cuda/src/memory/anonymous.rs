//! Mapped memory that is registered with a driver.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;

/// Maps zeroed memory of this size. Release it by `munmap`.
///
/// Forked children do not inherit it. Before Linux 5.12, when this process writes to a page that a child maps, too, it
/// gets a copy of the page, but devices continue to use the old one.
pub(super) fn map(len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    kept_from_children(address, len)
}

/// Maps so many bytes of a file, shared with the other processes that map it. Release it by `munmap`. Forked children do
/// not inherit the mapping.
pub(super) fn map_file(file: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
    kept_from_children(address, len)
}

/// Handles the answer of mmap(2).
fn kept_from_children(address: *mut libc::c_void, len: usize) -> io::Result<NonNull<u8>> {
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping of above. No code of a child uses it (`cableway_base::fork`).
    if unsafe { libc::madvise(address, len, libc::MADV_DONTFORK) } != 0 {
        log::debug!("{len} bytes are shared with forked children: {}", io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_do_not_inherit_the_memory() {
        let len = 1 << 16;
        let address = map(len, 0).unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = |line: &str| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(from)?..number(to)?).contains(&(address.as_ptr() as usize)))
        };
        let ours = smaps.lines().skip_while(|line| begins(line) != Some(true));
        let flags = ours.into_iter().find_map(|line| line.strip_prefix("VmFlags:")).expect("the mapping has flags");
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
        // SAFETY: the mapping of above, which nobody uses.
        unsafe { libc::munmap(address.as_ptr().cast(), len) };
    }
}
