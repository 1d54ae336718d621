//! The convertor on device memory with kernels that pack and unpack: right bytes, untouched gaps, one launch for each
//! fragment.
//!
//! The driver is the one in `CABLEWAY_CUDA_LIBDIR`, else the simulated one. With `CABLEWAY_TEST_REAL_DRIVER=1` it is
//! the one that the loader finds. Calls are counted on the simulated one.
#![cfg(feature = "cuda")]

mod driver;
mod reference;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, HostMemory, HostPool};
use cableway_datatype::{Convertor, Datatype, Layout, Predefined};
use driver::Driver;
use proptest::prelude::*;
use reference::spec;

/// Kernels do everything that they can.
const ALWAYS: &[&str] = &["device_pack_latency=0us"];
/// No job is revoked, however slow the machine is.
const PATIENTLY: &[&str] = &["device_kernel_patience=20s"];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A buffer on the device with all bytes of a message. The first byte is `low` bytes from the message's address 0.
struct Message {
    buffer: DeviceBuffer,
    low: i64,
    skipped: usize,
}

impl Message {
    /// The message begins `skipped` bytes into an allocation of one kind or another.
    fn new(devices: &Devices, low: i64, content: &[u8], skipped: usize) -> Message {
        const KINDS: [BufferKind; 3] = [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm];
        let (len, wanted) = (skipped + content.len(), KINDS[skipped % KINDS.len()]);
        let made = DeviceBuffer::new(devices, DeviceIndex(0), wanted, len);
        // Not every driver supports every kind.
        let mut buffer = made.or_else(|_| DeviceBuffer::new(devices, DeviceIndex(0), KINDS[0], len)).unwrap();
        buffer.copy_from_host(skipped, content).unwrap();
        // The program's copy may still be in the default stream.
        while !devices.ask_default_stream(&buffer.location()).unwrap() {
            std::thread::yield_now();
        }
        Message { buffer, low, skipped }
    }

    fn base(&self) -> *mut u8 {
        self.buffer.as_device_ptr().wrapping_add(self.skipped).wrapping_offset(-self.low as isize)
    }

    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.buffer.len() - self.skipped];
        self.buffer.copy_to_host(self.skipped, &mut content).unwrap();
        content
    }

    fn convertor(&self, layout: &Layout, count: u64, devices: &Devices) -> Convertor {
        let location = layout.classify(self.base(), count, devices);
        // SAFETY: the buffer holds the message, and each test has but one convertor at a time.
        unsafe { Convertor::for_receive(layout, self.base(), count, location, devices) }
    }
}

/// Host memory that kernels can access.
struct Packed {
    memory: HostMemory,
    len: usize,
}

impl Packed {
    fn new(devices: &Devices, len: usize) -> Packed {
        let packed = Packed { memory: HostPool::new(devices, 0).take(len.max(1)).unwrap(), len };
        packed.bytes().fill(0);
        packed
    }

    #[expect(clippy::mut_from_ref, reason = "each test looks at it from one place at a time")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: as much memory as was taken, which nobody else has.
        unsafe { std::slice::from_raw_parts_mut(self.memory.address(), self.len) }
    }
}

/// Waits until kernels are loaded. Returns whether they are.
fn await_kernels(devices: &Devices) -> bool {
    let buffer = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, 1).unwrap();
    let begun = Instant::now();
    while !devices.kernels(&buffer.location()) {
        // Only a hang takes so long.
        if begun.elapsed() > Duration::from_secs(120) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Packs the bytes at the offsets, divided at these points, and unpacks them, last fragment first. `aside` is the
/// distance of the message and of the packed bytes from an aligned address.
fn moves_right_bytes(
    devices: &Devices,
    layout: &Layout,
    count: u64,
    (offsets, points): (&[i64], &[usize]),
    aside: (usize, usize),
) -> Result<(), TestCaseError> {
    let low = offsets.iter().copied().min().unwrap_or(0);
    let high = offsets.iter().copied().max().unwrap_or(0) + 1;
    let place = |offset: &i64| (offset - low) as usize;
    let content = pattern((high - low) as usize);
    let message = Message::new(devices, low, &content, aside.0);
    let mut send = message.convertor(layout, count, devices);
    let room = Packed::new(devices, offsets.len() + aside.1 + 1);
    let packed = &mut room.bytes()[aside.1..];
    for pair in points.windows(2) {
        prop_assert_eq!(send.pack_slice(&mut packed[pair[0]..pair[1]])?, pair[1] - pair[0]);
    }
    let expected: Vec<u8> = offsets.iter().map(|offset| content[place(offset)]).collect();
    prop_assert_eq!(&packed[..offsets.len()], &expected);
    prop_assert_eq!(packed[offsets.len()], 0, "beyond the end");
    prop_assert_eq!(&message.content(), &content, "packing only reads");

    if offsets.iter().collect::<HashSet<_>>().len() != offsets.len() {
        return Ok(());
    }
    let mut expected = vec![0xEE; content.len()];
    let message = Message::new(devices, low, &expected, aside.0);
    let mut receive = message.convertor(layout, count, devices);
    for pair in points.windows(2).rev() {
        receive.set_position(pair[0] as u64);
        prop_assert_eq!(receive.unpack_slice(&packed[pair[0]..pair[1]])?, pair[1] - pair[0]);
    }
    for (offset, byte) in offsets.iter().zip(&*packed) {
        expected[place(offset)] = *byte;
    }
    prop_assert_eq!(message.content(), expected);
    Ok(())
}

/// Returns blocks of any lengths at any distances and alignment, without overlaps.
fn irregular() -> impl Strategy<Value = Vec<(i64, i64)>> {
    let lengths =
        prop_oneof![Just(vec![1]), Just(vec![0, 1, 3]), Just(vec![8]), Just(vec![16, 32]), Just(vec![4, 700, 0])];
    let blocks =
        lengths.prop_flat_map(|lengths| prop::collection::vec((prop::sample::select(lengths), 0..40_i64), 1..300));
    (blocks, prop::sample::select(vec![1, 4, 8, 16]), -20..20_i64, any::<bool>()).prop_map(
        |(blocks, align, first, backwards)| {
            let mut at = first * 8;
            let mut placed = Vec::new();
            for (len, gap) in blocks {
                at += gap / align * align;
                placed.push((len, at));
                at += len;
            }
            if backwards {
                placed.reverse();
            }
            placed
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn kernels_move_any_type(
        spec in spec(),
        count in 1..4_i64,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        aside in (0..17_usize, 0..17_usize),
    ) {
        let driver = Driver::lock_with(ALWAYS);
        prop_assert!(await_kernels(&driver.devices));
        let offsets = spec.map().bytes(count);
        prop_assume!(!offsets.is_empty() && offsets.len() < 4000);
        let layout = spec.build()?.commit();
        let points = points(offsets.len(), &cuts);
        moves_right_bytes(&driver.devices, &layout, count as u64, (&offsets, &points), aside)?;
    }

    #[test]
    fn kernels_move_irregular_blocks(
        blocks in irregular(),
        (count, extent) in (1..5_u64, 0..9_i64),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        aside in (0..17_usize, 0..17_usize),
    ) {
        let driver = Driver::lock_with(ALWAYS);
        prop_assert!(await_kernels(&driver.devices));
        let (lengths, places): (Vec<i64>, Vec<i64>) = blocks.iter().copied().unzip();
        let bytes = Predefined::Byte.datatype();
        let indexed = Datatype::hindexed(&lengths, &places, &bytes)?;
        let extent = indexed.true_extent() + extent * 3;
        let layout = Datatype::resized(&indexed, 0, extent)?.commit();
        let element = |i: i64| blocks.iter().flat_map(move |&(len, at)| (0..len).map(move |byte| i * extent + at + byte));
        let offsets: Vec<i64> = (0..count as i64).flat_map(element).collect();
        prop_assume!(!offsets.is_empty());
        let points = points(offsets.len(), &cuts);
        moves_right_bytes(&driver.devices, &layout, count, (&offsets, &points), aside)?;
    }
}

fn points(len: usize, cuts: &[prop::sample::Index]) -> Vec<usize> {
    let mut points: Vec<usize> = cuts.iter().map(|cut| cut.index(len)).collect();
    points.extend([0, len]);
    points.sort_unstable();
    points
}

/// Returns a pseudo-random number, the same in each run.
fn irregular_number(i: i64) -> i64 {
    i.wrapping_mul(2_654_435_761) >> 7 & 0xffff
}

/// Returns blocks of `len` bytes at irregular distances.
fn scattered(blocks: i64, len: i64) -> Datatype {
    let places: Vec<i64> = (0..blocks).map(|i| i * (len + 24) + irregular_number(i) % 3 * 8).collect();
    Datatype::hindexed_block(len, &places, &Predefined::Byte.datatype()).unwrap()
}

/// Returns the copies, 2-D copies and launches to pack, and to unpack, a message in fragments. Compares the bytes.
fn calls(driver: &Driver, datatype: &Datatype, count: u64, fragment: usize) -> Option<[(i64, i64, i64); 2]> {
    let layout = datatype.commit();
    let (low, span) = layout.span(count).unwrap();
    let content = pattern(span as usize);
    let message = Message::new(&driver.devices, low, &content, 0);
    let bytes = layout.blocks(count).flat_map(|block| block.offset..block.offset + block.len as i64);
    let expected: Vec<u8> = bytes.map(|offset| content[(offset - low) as usize]).collect();
    let room = Packed::new(&driver.devices, expected.len());
    let counted = || Some((driver.copies()?.0, driver.copies()?.1, driver.launches()?));
    let mut convertor = message.convertor(&layout, count, &driver.devices);
    let before = counted();
    for packed in room.bytes().chunks_mut(fragment) {
        convertor.pack_slice(packed).unwrap();
    }
    let between = counted();
    assert!(room.bytes() == expected, "packed bytes");
    convertor.set_position(0);
    for packed in room.bytes().chunks(fragment) {
        convertor.unpack_slice(packed).unwrap();
    }
    let after = counted();
    assert!(message.content() == content, "unpacked bytes");
    let difference = |(a, b): ((i64, i64, i64), (i64, i64, i64))| (b.0 - a.0, b.1 - a.1, b.2 - a.2);
    Some([difference(before.zip(between)?), difference(between.zip(after)?)])
}

#[test]
fn a_fragment_takes_one_launch_for_any_number_of_blocks() {
    // Without the copy of the list, which is made once and not for each fragment.
    let driver = Driver::lock_with(&[PATIENTLY, &["device_list_memory=0"]].concat());
    assert!(await_kernels(&driver.devices));
    let assert_calls = |datatype: &Datatype, count, fragment, expected| {
        let found = calls(&driver, datatype, count, fragment);
        assert!(found.is_none_or(|found| found == [expected; 2]), "{found:?}, not {expected:?} calls");
    };
    // Irregular: blocks of 8 bytes each, of many lengths, and many small elements.
    assert_calls(&scattered(100_000, 8), 1, 1 << 18, (0, 0, 4));
    assert_calls(&scattered(3000, 64), 1, 1 << 20, (0, 0, 1));
    let (lengths, places): (Vec<i64>, Vec<i64>) =
        (0..20_000).map(|i| (i % 60, i * 64 + irregular_number(i) % 5)).unzip();
    let uneven = Datatype::hindexed(&lengths, &places, &Predefined::Byte.datatype()).unwrap();
    assert_calls(&uneven, 1, 1 << 17, (0, 0, 5));
    assert_calls(&scattered(10, 8), 500, 1 << 20, (0, 0, 1));
    // Regular: short rows by a kernel, long ones by copy engines.
    let double = Predefined::Double.datatype();
    assert_calls(&Datatype::vector(50_000, 1, 3, &double).unwrap(), 1, 1 << 18, (0, 0, 2));
    assert_calls(&Datatype::vector(100, 1000, 2000, &double).unwrap(), 1, 1 << 20, (0, 1, 0));
    assert_calls(&Datatype::vector(50, 1, 3, &double).unwrap(), 1, 1 << 20, (0, 1, 0));
    // A kernel does not help with a message in one run.
    assert_calls(&Datatype::contiguous(100_000, &double).unwrap(), 1, 1 << 20, (1, 0, 0));
}

#[test]
fn a_message_of_planes_is_packed_by_one_launch() {
    let driver = Driver::lock_with(PATIENTLY);
    assert!(await_kernels(&driver.devices));
    let order = cableway_datatype::ArrayOrder::C;
    let block =
        Datatype::subarray(&[40, 30, 50], &[20, 10, 3], &[1; 3], order, &Predefined::Double.datatype()).unwrap();
    let found = calls(&driver, &block, 1, 1 << 20);
    assert!(found.is_none_or(|found| found == [(0, 0, 1); 2]), "{found:?}");
    let found = calls(&driver, &block, 3, 1 << 20);
    assert!(found.is_none_or(|found| found == [(0, 0, 1); 2]), "{found:?}");
}

#[test]
fn memory_out_of_reach_of_kernels_is_packed_by_copy_engines() {
    let driver = Driver::lock_with(PATIENTLY);
    assert!(await_kernels(&driver.devices));
    let layout = scattered(2000, 8).commit();
    let content = pattern(layout.true_extent() as usize);
    let message = Message::new(&driver.devices, 0, &content, 0);
    let before = driver.launches();
    let mut packed = vec![0; 16_000];
    message.convertor(&layout, 1, &driver.devices).pack_slice(&mut packed).unwrap();
    assert_eq!(driver.launches(), before);
    // Partly registered memory.
    let room = Packed::new(&driver.devices, 16_000);
    message.convertor(&layout, 1, &driver.devices).pack_slice(room.bytes()).unwrap();
    assert_eq!(driver.launches(), before.map(|before| before + 1));
    assert!(room.bytes() == packed);
}

/// Overlapping blocks may be sent, but not received.
#[test]
fn bytes_may_be_packed_twice() {
    let driver = Driver::lock_with(PATIENTLY);
    assert!(await_kernels(&driver.devices));
    let places: Vec<i64> = (0..5000).map(|i| irregular_number(i) % 900 * 4).collect();
    let layout = Datatype::hindexed_block(8, &places, &Predefined::Byte.datatype()).unwrap().commit();
    let content = pattern(4000);
    let message = Message::new(&driver.devices, 0, &content, 0);
    let room = Packed::new(&driver.devices, 40_000);
    message.convertor(&layout, 1, &driver.devices).pack_slice(room.bytes()).unwrap();
    let expected: Vec<u8> = places.iter().flat_map(|&at| content[at as usize..][..8].iter().copied()).collect();
    assert!(room.bytes() == expected);
}

/// Thread blocks start late, so jobs are revoked, some of them half done. Copy engines then copy block by block.
#[test]
fn copy_engines_replace_a_revoked_kernel() {
    let name = "copy_engines_replace_a_revoked_kernel";
    driver::isolated(name, ("SIM_CUDA_KERNEL_DELAY_US", "1000"), || {
        let driver = Driver::lock_with(&["device_kernel_patience=200us", "device_pack_latency=0us"]);
        assert!(await_kernels(&driver.devices));
        let (mut launched, mut copied) = (0, 0);
        for _ in 0..30 {
            assert!(await_kernels(&driver.devices));
            for calls in calls(&driver, &scattered(700, 8), 2, 4000).unwrap() {
                (copied, launched) = (copied + calls.0, launched + calls.2);
            }
        }
        assert!(launched > 10 && copied > 700, "{launched} launches and {copied} copies");
    });
}

#[test]
fn a_parameter_disables_kernels() {
    let driver = Driver::lock_with(&["device_kernels=no", "device_pack_latency=0us"]);
    assert!(
        !driver
            .devices
            .kernels(&DeviceBuffer::new(&driver.devices, DeviceIndex(0), BufferKind::Device, 1).unwrap().location())
    );
    for calls in calls(&driver, &scattered(300, 8), 2, 1 << 20).into_iter().flatten() {
        assert!(calls.2 == 0 && calls.0 + calls.1 > 0, "{calls:?}");
    }
}
