//! The convertor on device memory: right bytes, untouched gaps, few driver calls.
//!
//! The driver is the one in `CABLEWAY_CUDA_LIBDIR`, else the simulated one. With `CABLEWAY_TEST_REAL_DRIVER=1` it is
//! the one that the loader finds. Calls are counted on the simulated one.
#![cfg(feature = "cuda")]

mod driver;
mod reference;

use std::collections::HashSet;
use std::sync::OnceLock;

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, Location, MemoryClass, Order};
use cableway_datatype::{ArrayOrder, Convertor, Datatype, Layout, Predefined};
use driver::Driver;
use proptest::prelude::*;
use reference::spec;

/// Returns the kinds of device memory that the driver supports.
fn kinds(devices: &Devices) -> &'static [BufferKind] {
    static KINDS: OnceLock<Vec<BufferKind>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let all = [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm, BufferKind::Managed];
        let made = |kind: &BufferKind| match DeviceBuffer::new(devices, DeviceIndex(0), *kind, 1) {
            Ok(_) => true,
            Err(error) => {
                eprintln!("skipped {kind:?} memory: {error}");
                false
            }
        };
        all.into_iter().filter(made).collect()
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A message on a device: the buffer with all of its bytes, and the message's address 0.
struct Message {
    buffer: DeviceBuffer,
    low: i64,
}

impl Message {
    /// `content` begins with the lowest byte of the message.
    fn new(devices: &Devices, device: u32, kind: BufferKind, low: i64, content: &[u8]) -> Message {
        let mut buffer = DeviceBuffer::new(devices, DeviceIndex(device), kind, content.len()).unwrap();
        buffer.copy_from_host(0, content).unwrap();
        Message { buffer, low }
    }

    fn base(&self) -> *mut u8 {
        self.buffer.as_device_ptr().wrapping_offset(-self.low as isize)
    }

    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.buffer.len()];
        self.buffer.copy_to_host(0, &mut content).unwrap();
        content
    }
}

/// Creates a convertor for all of `message`, classified as the library does it.
///
/// # Safety
/// As for `Convertor::for_receive`.
unsafe fn convertor(message: &Message, layout: &Layout, count: u64, devices: &Devices) -> Convertor {
    let location = layout.classify(message.base(), count, devices);
    assert!(location.on_device() && layout.in_one_allocation(message.base(), count, &location, devices));
    // SAFETY: the caller's promise, and the location is right.
    unsafe { Convertor::for_receive(layout, message.base(), count, location, devices) }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn packs_and_unpacks_any_fragments(
        spec in spec(),
        count in 1..4_i64,
        kind in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let driver = Driver::lock();
        let devices = &driver.devices;
        let kinds = kinds(devices);
        let kind = kinds[kind.index(kinds.len())];
        let offsets = spec.map().bytes(count);
        prop_assume!(!offsets.is_empty() && offsets.len() < 4000);
        let low = offsets.iter().copied().min().unwrap_or(0);
        let high = offsets.iter().copied().max().unwrap_or(0) + 1;
        let place = |offset: &i64| (offset - low) as usize;
        let layout = spec.build()?.commit();
        let mut points: Vec<usize> = cuts.iter().map(|cut| cut.index(offsets.len())).collect();
        points.extend([0, offsets.len()]);
        points.sort_unstable();

        let content = pattern((high - low) as usize);
        let message = Message::new(devices, 0, kind, low, &content);
        // SAFETY: the buffer holds the message, and only the convertor touches it while it lives.
        let mut send = unsafe { convertor(&message, &layout, count as u64, devices) };
        let mut packed = vec![0; offsets.len()];
        for pair in points.windows(2) {
            prop_assert_eq!(send.pack_slice(&mut packed[pair[0]..pair[1]])?, pair[1] - pair[0]);
        }
        prop_assert_eq!(&packed, &offsets.iter().map(|offset| content[place(offset)]).collect::<Vec<u8>>());

        if offsets.iter().collect::<HashSet<_>>().len() != offsets.len() {
            return Ok(());
        }
        let mut expected = vec![0xEE; content.len()];
        let message = Message::new(devices, 0, kind, low, &expected);
        // SAFETY: as above.
        let mut receive = unsafe { convertor(&message, &layout, count as u64, devices) };
        for pair in points.windows(2).rev() {
            receive.set_position(pair[0] as u64);
            prop_assert_eq!(receive.unpack_slice(&packed[pair[0]..pair[1]])?, pair[1] - pair[0]);
        }
        for (offset, byte) in offsets.iter().zip(&packed) {
            expected[place(offset)] = *byte;
        }
        prop_assert_eq!(message.content(), expected);
    }
}

/// Returns the driver calls (contiguous copies, 2-D copies) to pack, and then to unpack, the bytes `range` of `count`
/// elements; `None` on a real driver. Compares the bytes.
fn calls(driver: &Driver, datatype: &Datatype, count: u64, range: std::ops::Range<u64>) -> [Option<(i64, i64)>; 2] {
    let layout = datatype.commit();
    let (low, span) = layout.span(count).unwrap();
    let content = pattern(span as usize);
    let message = Message::new(&driver.devices, 0, BufferKind::Device, low, &content);
    // SAFETY: the buffer holds the message, and only the convertor touches it while it lives.
    let mut convertor = unsafe { convertor(&message, &layout, count, &driver.devices) };
    let bytes = layout.blocks(count).flat_map(|block| block.offset..block.offset + block.len as i64);
    let expected: Vec<u8> = bytes
        .skip(range.start as usize)
        .take((range.end - range.start) as usize)
        .map(|offset| content[(offset - low) as usize])
        .collect();
    let mut packed = vec![0; expected.len()];
    let before = driver.copies();
    convertor.set_position(range.start);
    convertor.pack_slice(&mut packed).unwrap();
    let between = driver.copies();
    assert_eq!(packed, expected);
    convertor.set_position(range.start);
    convertor.unpack_slice(&packed).unwrap();
    let after = driver.copies();
    assert_eq!(message.content(), content);
    let difference = |(a, b): ((i64, i64), (i64, i64))| (b.0 - a.0, b.1 - a.1);
    [before.zip(between).map(difference), between.zip(after).map(difference)]
}

fn assert_calls(found: [Option<(i64, i64)>; 2], expected: (i64, i64)) {
    assert!(found.iter().flatten().all(|found| *found == expected), "{found:?} calls, not {expected:?}");
}

#[test]
fn regular_types_take_few_driver_calls() {
    let driver = Driver::lock();
    let int = Predefined::Int.datatype();
    let rows = calls(&driver, &Datatype::vector(2, 1, 2, &int).unwrap(), 1, 0..8);
    if rows[0] == Some((2, 0)) {
        eprintln!("skipped: the driver reports no maximal pitch, so rows are copied one by one");
        return;
    }
    let whole = |datatype: &Datatype, count| calls(&driver, datatype, count, 0..datatype.size() * count);
    assert_calls(whole(&Datatype::contiguous(1000, &int).unwrap(), 3), (1, 0));
    let vector = Datatype::vector(1000, 3, 8, &int).unwrap();
    assert_calls(whole(&vector, 1), (0, 1));
    assert_calls(calls(&driver, &vector, 1, 5..11_999), (2, 1));
    let pair = Datatype::resized(&Datatype::vector(2, 1, 2, &int).unwrap(), 0, 64).unwrap();
    assert_calls(whole(&pair, 1000), (0, 2));
    let structure = Datatype::structure(&[1, 1], &[0, 12], &[int.clone(), Predefined::Char.datatype()]).unwrap();
    assert_calls(whole(&structure, 1000), (0, 2));
    let block = Datatype::subarray(&[50, 40, 30], &[20, 3, 10], &[1; 3], ArrayOrder::C, &int).unwrap();
    assert_calls(whole(&block, 1), (0, 3));
}

#[test]
fn close_irregular_blocks_are_copied_together() {
    let driver = Driver::lock();
    let mut displacements: Vec<i64> = (0..50).map(|i| i * i).collect();
    displacements.swap(3, 40);
    let near = Datatype::indexed_block(1, &displacements, &Predefined::Double.datatype()).unwrap();
    let [pack, unpack] = calls(&driver, &near, 1, 0..near.size());
    assert!(pack.is_none_or(|found| found == (1, 0)), "{pack:?}");
    // The receiver must not write the gaps between the blocks.
    assert!(unpack.is_none_or(|found| found.0 >= 48 && found.1 == 0), "{unpack:?}");

    let far = Datatype::hindexed_block(8, &[0, 9 << 20, 4 << 20], &Predefined::Byte.datatype()).unwrap();
    assert_calls(calls(&driver, &far, 1, 0..24), (3, 0));
    // More than the scratch memory holds at a time.
    let many: Vec<i64> = (0..1500).map(|i: i64| i * 20_000 + i * i % 7777).collect();
    let many = Datatype::hindexed_block(8, &many, &Predefined::Byte.datatype()).unwrap();
    let [pack, _] = calls(&driver, &many, 1, 0..many.size());
    assert!(pack.is_none_or(|found| found.0 < 20 && found.1 == 0), "{pack:?}");
}

#[test]
fn started_packs_and_unpacks_complete() {
    let driver = Driver::lock();
    let devices = &driver.devices;
    let layout = Datatype::vector(4000, 1, 2, &Predefined::Int.datatype()).unwrap().commit();
    let content = pattern(layout.true_extent() as usize);
    for &kind in kinds(devices) {
        let message = Message::new(devices, 0, kind, 0, &content);
        // SAFETY: the buffer holds the message, and only the convertor touches it while it lives.
        let mut convertor = unsafe { convertor(&message, &layout, 1, devices) };
        let mut packed = vec![0; 16_000];
        let (first, rest) = packed.split_at_mut(6001);
        // SAFETY: the two halves stay until the completions are done, below.
        let (one, two) = unsafe {
            let one = convertor.start_pack(first.as_mut_ptr(), first.len(), Order::AfterDefaultStream).unwrap();
            (one, convertor.start_pack(rest.as_mut_ptr(), rest.len() + 77, Order::None).unwrap())
        };
        assert_eq!((one.0, two.0, convertor.remaining()), (6001, 9999, 0));
        let (mut one, two) = (one.1, two.1);
        while !one.poll().unwrap() {}
        two.wait().unwrap();
        assert!(packed.chunks(4).enumerate().all(|(i, int)| int == &content[8 * i..8 * i + 4]), "{kind:?}");

        let other = Message::new(devices, 0, kind, 0, &vec![7; content.len()]);
        // SAFETY: as above.
        let mut receive = unsafe { self::convertor(&other, &layout, 1, devices) };
        // SAFETY: `packed` stays until the completion is done.
        let (taken, completion) =
            unsafe { receive.start_unpack(packed.as_ptr(), packed.len(), Order::AfterDefaultStream) }.unwrap();
        assert_eq!(taken, 16_000);
        completion.wait().unwrap();
        let landed = other.content();
        let right = |(i, byte): (usize, &u8)| if i % 8 < 4 { *byte == content[i] } else { *byte == 7 };
        assert!(landed.iter().enumerate().all(right), "{kind:?}");
    }
}

#[test]
fn classification_covers_the_true_extent() {
    let driver = Driver::lock();
    let devices = &driver.devices;
    let message = Message::new(devices, 0, BufferKind::Device, 0, &pattern(64));
    let host = [0_u8; 64];
    // The data is on the device, but the passed address is in host memory.
    let distance = (message.base().addr() as i64).wrapping_sub(host.as_ptr().addr() as i64);
    let far = Datatype::hindexed(&[64], &[distance], &Predefined::Byte.datatype()).unwrap().commit();
    assert_eq!(far.classify(host.as_ptr(), 1, devices).class, MemoryClass::Device);
    // And vice versa: the passed address is on the device, but the data in host memory.
    let back = Datatype::hindexed(&[64], &[-distance], &Predefined::Byte.datatype()).unwrap().commit();
    assert_eq!(back.classify(message.base(), 1, devices), Location::HOST);

    // An empty message causes no query.
    let asked = driver.queries();
    let empty = Datatype::contiguous(0, &Predefined::Int.datatype()).unwrap().commit();
    assert_eq!(empty.classify(message.base(), 5, devices), Location::HOST);
    assert_eq!(far.classify(host.as_ptr(), 0, devices), Location::HOST);
    assert_eq!(driver.queries(), asked);
}

#[test]
fn blocks_in_several_allocations_are_classified_one_by_one() {
    let driver = Driver::lock();
    let devices = &driver.devices;
    let last = devices.facts().unwrap().devices.len() as u32 - 1;
    let content = pattern(4000);
    let on_device = [
        Message::new(devices, 0, BufferKind::Device, 0, &content[..1000]),
        Message::new(devices, last, BufferKind::Device, 0, &content[1000..2000]),
    ];
    let mut host = [content[2000..3000].to_vec(), content[3000..].to_vec()];
    let addresses = [
        host[0].as_mut_ptr().expose_provenance() as i64,
        on_device[0].base().addr() as i64,
        on_device[1].base().addr() as i64,
        host[1].as_mut_ptr().expose_provenance() as i64,
    ];
    // Every second pair of bytes of the first allocation, and all bytes of the others.
    let pairs = Datatype::vector(250, 2, 4, &Predefined::Byte.datatype()).unwrap();
    let all = Datatype::contiguous(1000, &Predefined::Byte.datatype()).unwrap();
    let datatype = Datatype::structure(
        &[1, 1, 1, 1, 1],
        &[addresses[0], addresses[1], addresses[2], addresses[3], addresses[1] + 2],
        &[all.clone(), pairs.clone(), all.clone(), all, pairs],
    );
    let layout = datatype.unwrap().commit();
    let location = layout.classify(std::ptr::null(), 1, devices);
    assert!(!layout.in_one_allocation(std::ptr::null(), 1, &location, devices));

    let of_pairs = |part: usize| content[..1000].chunks(2).skip(part).step_by(2).flatten().copied();
    let mut expected = content[2000..3000].to_vec();
    expected.extend(of_pairs(0));
    expected.extend(&content[1000..2000]);
    expected.extend(&content[3000..]);
    expected.extend(of_pairs(1));

    // SAFETY: all four pieces live, and nobody touches them, as long as the convertor is used.
    let mut convertor = unsafe { Convertor::for_send(&layout, std::ptr::null(), 1, location, devices) };
    assert!(convertor.is_mixed() && convertor.location().on_device() && convertor.contiguous().is_none());
    let mut packed = vec![0; 4000];
    for fragment in packed.chunks_mut(777) {
        assert_eq!(convertor.pack_slice(fragment).unwrap(), fragment.len());
    }
    assert_eq!(packed, expected);

    let reversed: Vec<u8> = packed.iter().map(|byte| !byte).collect();
    // SAFETY: as above.
    let mut convertor = unsafe { Convertor::for_receive(&layout, std::ptr::null_mut(), 1, location, devices) };
    for fragment in reversed.chunks(1001) {
        convertor.unpack_slice(fragment).unwrap();
    }
    let landed = [on_device[0].content(), on_device[1].content(), host[0].clone(), host[1].clone()].concat();
    assert_eq!(landed, content.iter().map(|byte| !byte).collect::<Vec<u8>>());
}

#[test]
fn displacements_may_lead_into_another_allocation() {
    let driver = Driver::lock();
    let devices = &driver.devices;
    let content = pattern(3000);
    let messages = [0, 1, 2].map(|i| Message::new(devices, 0, BufferKind::Device, 0, &content[i * 1000..][..1000]));
    let mut order = [0, 1, 2];
    order.sort_by_key(|&i| messages[i].base());
    // From the middle allocation to lower and higher addresses.
    let base = messages[order[1]].base();
    let displacements = order.map(|i| messages[i].base().addr() as i64 - base.addr() as i64);
    let layout = Datatype::hindexed_block(1000, &displacements, &Predefined::Byte.datatype()).unwrap().commit();
    let location = layout.classify(base, 1, devices);
    // SAFETY: all buffers live, and nobody touches them, as long as the convertor is used.
    let mut convertor = unsafe { Convertor::for_send(&layout, base, 1, location, devices) };
    assert!(convertor.is_mixed());
    let mut packed = vec![0; 3000];
    convertor.pack_slice(&mut packed).unwrap();
    assert_eq!(packed, order.map(|i| &content[i * 1000..][..1000]).concat());
}

#[test]
fn absolute_addresses_in_one_allocation_are_accepted() {
    let driver = Driver::lock();
    let devices = &driver.devices;
    let vector = Datatype::vector(100, 1, 3, &Predefined::Int.datatype()).unwrap();
    let content = pattern(vector.true_extent() as usize);
    let message = Message::new(devices, 0, BufferKind::Device, 0, &content);
    let convertor = |old: &Datatype, address: *const u8| {
        let address = address.expose_provenance() as i64;
        let layout = Datatype::hindexed_block(1, &[address], old).unwrap().commit();
        let location = layout.classify(std::ptr::null(), 1, devices);
        // SAFETY: both buffers outlive the convertors, and nobody touches them meanwhile.
        unsafe { Convertor::for_send(&layout, std::ptr::null(), 1, location, devices) }
    };
    let on_device = convertor(&vector, message.base());
    assert!(!on_device.is_mixed() && *on_device.location() == message.buffer.location());
    let on_host = convertor(&vector, content.as_ptr());
    assert!(!on_host.is_mixed() && *on_host.location() == Location::HOST);
    let all = Datatype::contiguous(64, &Predefined::Byte.datatype()).unwrap();
    assert_eq!(convertor(&all, message.base()).contiguous(), Some(message.base()));
    assert_eq!(convertor(&all, content.as_ptr()).contiguous(), Some(content.as_ptr().cast_mut()));
}

#[test]
fn a_refused_copy_is_an_error_and_moves_nothing() {
    let name = "a_refused_copy_is_an_error_and_moves_nothing";
    driver::with_fault(name, "cuEventRecord:700", |driver| {
        let layout = Datatype::vector(100, 1, 3, &Predefined::Int.datatype()).unwrap().commit();
        let content = pattern(layout.true_extent() as usize);
        let message = Message::new(&driver.devices, 0, BufferKind::Device, 0, &content);
        // SAFETY: the buffer holds the message, and only the convertor touches it while it lives.
        let mut convertor = unsafe { convertor(&message, &layout, 1, &driver.devices) };
        let mut packed = [0; 400];
        let error = convertor.pack_slice(&mut packed).unwrap_err();
        assert!(error.to_string().contains("cuEventRecord"), "{error}");
        assert_eq!(convertor.position(), 0);
    });
}
