//! Messages beyond 4 GiB. Their buffers are reserved, not committed: only touched pages exist.

use std::ptr;

use cableway_common_cuda::{Devices, Location};
use cableway_datatype::{Convertor, Datatype, Error, Predefined};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const GIB: usize = 1 << 30;

/// Zeroed memory that is allocated when it is touched.
struct Reserved {
    address: *mut u8,
    len: usize,
}

impl Reserved {
    fn new(len: usize) -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let address = match mapped {
            Ok(address) => address.cast(),
            Err(error) => panic!("no room for {len} bytes of addresses: {error}"),
        };
        Reserved { address, len }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        if let Err(error) = unsafe { munmap(self.address.cast(), self.len) } {
            eprintln!("munmap: {error}");
        }
    }
}

#[test]
fn five_gib_of_bytes_are_packed() -> Result<(), Error> {
    let memory = Reserved::new(5 * GIB + 64);
    let count = 5 * GIB as u64 + 3;
    let layout = Predefined::Byte.datatype().commit();
    assert_eq!(layout.packed_size(count)?, count);
    assert_eq!(layout.contiguous_span(count), Some((0, count)));
    // SAFETY: the mapping holds the message, and only the convertor touches it while it is used.
    let mut receive =
        unsafe { Convertor::for_receive(&layout, memory.address, count, Location::HOST, &Devices::none()) };
    receive.set_position(count - 5);
    assert_eq!(receive.unpack_slice(b"tails")?, 5);
    assert_eq!(receive.remaining(), 0);
    // SAFETY: as above; the receiving convertor is not used any more.
    let mut send = unsafe { Convertor::for_send(&layout, memory.address, count, Location::HOST, &Devices::none()) };
    send.set_position(count - 7);
    let mut tail = [1; 100];
    assert_eq!(send.pack_slice(&mut tail)?, 7);
    assert_eq!(&tail[..7], b"\0\0tails");
    Ok(())
}

#[test]
fn five_gib_of_strided_ints_are_packed() -> Result<(), Error> {
    // Four of every eight bytes: 5 GiB packed, a buffer of 10 GiB.
    let memory = Reserved::new(10 * GIB);
    let ints = (5 * GIB / 4) as i64;
    let whole = Datatype::vector(ints, 1, 2, &Predefined::Int.datatype())?;
    assert_eq!(whole.size(), 5 * GIB as u64);
    let row = Datatype::vector(ints >> 10, 1, 2, &Predefined::Int.datatype())?;
    let row = Datatype::resized(&row, 0, (ints >> 10) * 8)?;
    for (layout, count) in [(whole.commit(), 1), (row.commit(), 1 << 10)] {
        let position = 4 * GIB as u64 + 4 * 12_345 + 2;
        // SAFETY: the mapping holds the message, and only the convertor touches it while it is used.
        let mut receive =
            unsafe { Convertor::for_receive(&layout, memory.address, count, Location::HOST, &Devices::none()) };
        assert_eq!(receive.packed_size(), 5 * GIB as u64);
        receive.set_position(position);
        receive.unpack_slice(b"abcdefgh")?;
        // SAFETY: within the mapping, which the convertor is not touching now.
        let landed = unsafe { memory.address.add(8 * GIB + 8 * 12_345).cast::<[u8; 24]>().read() };
        assert_eq!(&landed, b"\0\0ab\0\0\0\0cdef\0\0\0\0gh\0\0\0\0\0\0");
        let mut packed = [0; 8];
        // SAFETY: as above; the receiving convertor is not used any more.
        let mut send = unsafe { Convertor::for_send(&layout, memory.address, count, Location::HOST, &Devices::none()) };
        send.set_position(position);
        send.pack_slice(&mut packed)?;
        assert_eq!(&packed, b"abcdefgh");
        let mut pieces = Vec::new();
        send.set_position(position);
        assert_eq!(send.iovec(2, u64::MAX, &mut pieces), 6);
        assert_eq!(pieces[1].address, memory.address.wrapping_add(8 * GIB + 8 * 12_346));
    }
    Ok(())
}

#[test]
fn sizes_beyond_the_address_space_are_detected() -> Result<(), Error> {
    let layout = Datatype::contiguous(1 << 40, &Predefined::Int.datatype())?.commit();
    assert!(matches!(layout.packed_size(u64::MAX), Err(Error::MessageTooLarge { .. })));
    assert_eq!(layout.contiguous_span(u64::MAX), None);
    assert_eq!(layout.span(u64::MAX), None);
    assert_eq!(layout.blocks(u64::MAX).next(), None);
    let far = Datatype::resized(&Predefined::Int.datatype(), 0, i64::MAX / 2)?.commit();
    assert_eq!(far.blocks(3).count(), 0);
    assert_eq!(far.blocks(2).count(), 2);
    Ok(())
}
