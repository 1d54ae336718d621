//! Devices and forked children.
//!
//! When the last user of the open device ends, the kernel destroys a process's queue pairs, and so peers detect its
//! death. A child that executes no other program is such a user: it inherits descriptors, and the device's pages that
//! the library has mapped. So children give up both.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Once;

use cableway_base::fork::{Registered, in_child};
use rdma_mummy_sys::ibv_context;

/// Keeps an open device from children during its life.
pub(super) fn unshare(context: NonNull<ibv_context>) -> [Registered; 2] {
    static ONCE: Once = Once::new();
    // SAFETY: it makes system calls only.
    ONCE.call_once(|| unsafe { in_child(unmap_devices) });
    // SAFETY: the device is open.
    let (commands, events) = unsafe { (context.as_ref().cmd_fd, context.as_ref().async_fd) };
    // SAFETY: the library closes both with the device, which the caller closes last.
    [commands, events].map(|descriptor| unsafe { Registered::descriptor(BorrowedFd::borrow_raw(descriptor)) })
}

/// The files of devices.
const DEVICE: &[u8] = b" /dev/infiniband/uverbs";

/// Replaces the devices' pages by inaccessible ones. Libraries do not report where their pages are.
fn unmap_devices() {
    let mut line = Line::default();
    // SAFETY: system calls, on a descriptor and memory of this frame; what is mapped over is a copy of the parent's, which
    // nothing in a child uses.
    unsafe {
        let maps = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if maps < 0 {
            return;
        }
        let mut bytes = [0_u8; 4096];
        while let count @ 1.. = libc::read(maps, bytes.as_mut_ptr().cast(), bytes.len()) {
            for &byte in &bytes[..count as usize] {
                if let Some((start, end)) = line.take(byte) {
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
                    libc::mmap(start as *mut libc::c_void, end - start, libc::PROT_NONE, flags, -1 as c_int, 0);
                }
            }
        }
        libc::close(maps);
    }
}

/// A partial line of `/proc/self/maps`; of a longer one, the beginning.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line { bytes: [0; 256], len: 0 }
    }
}

impl Line {
    /// Adds a byte. At the end of a line it returns the range if the line is about a device mapping.
    fn take(&mut self, byte: u8) -> Option<(usize, usize)> {
        if byte != b'\n' {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
            return None;
        }
        let line = &self.bytes[..std::mem::take(&mut self.len)];
        device_mapping(line)
    }
}

fn device_mapping(line: &[u8]) -> Option<(usize, usize)> {
    line.windows(DEVICE.len()).find(|window| *window == DEVICE)?;
    let (start, rest) = hexadecimal(line);
    let (end, _) = hexadecimal(rest.strip_prefix(b"-")?);
    (start < end).then_some((start, end))
}

/// Returns the number at the beginning of a text, and the rest.
fn hexadecimal(text: &[u8]) -> (usize, &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = text.split_at(digits);
    let value = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as usize;
    (digits.iter().fold(0, |number, &digit| number << 4 | value(digit)), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_devices_are_found_among_others() {
        let maps = b"7f10a000-7f10b000 rw-s 00001000 00:06 512    /dev/infiniband/uverbs0\n\
                     7f10b000-7f10c000 r--p 00000000 fd:00 77     /usr/lib/x86_64-linux-gnu/libibverbs.so.1\n\
                     7f10c000-7f10e000 rw-p 00000000 00:00 0\n\
                     7f10e000-7f110000 -w-s 00003000 00:06 512    /dev/infiniband/uverbs12\n";
        let mut line = Line::default();
        let found: Vec<_> = maps.iter().filter_map(|&byte| line.take(byte)).collect();
        assert_eq!(found, [(0x7f10_a000, 0x7f10_b000), (0x7f10_e000, 0x7f11_0000)]);
    }

    #[test]
    fn long_lines_and_garbage_are_survived() {
        let mut line = Line::default();
        let long = std::iter::repeat_n(b'f', 5000).chain(*b" /dev/infiniband/uverbs0\n");
        assert_eq!(long.filter_map(|byte| line.take(byte)).count(), 0);
        assert_eq!(device_mapping(b"/dev/infiniband/uverbs0"), None);
        assert_eq!(device_mapping(b"2-1 x /dev/infiniband/uverbs0"), None);
        unmap_devices();
    }
}
