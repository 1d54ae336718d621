//! Reductions by kernels: every result is the host's, bit for bit, and no other byte changes.

mod common;
#[path = "common/reference.rs"]
mod reference;

use cableway_common_cuda::{
    BufferKind, DeviceBuffer, DeviceIndex, Devices, Element, Location, Order, ReduceOperation, Reduction,
};
use common::{app, devices, devices_with, isolated, isolated_each, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);
/// More elements than a thread block has threads.
const BASE: usize = 600;

/// Returns pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Where the buffers of a reduction lie: the number of sources, the source that is the destination, too, and by how
/// many alignments each buffer is off a multiple of 16.
#[derive(Clone, Copy, Debug)]
struct Layout {
    sources: usize,
    in_place: Option<usize>,
    off: [usize; 6],
}

const LAYOUTS: [Layout; 6] = [
    Layout { sources: 2, in_place: None, off: [0; 6] },
    Layout { sources: 3, in_place: None, off: [1; 6] },
    Layout { sources: 4, in_place: None, off: [1, 0, 2, 3, 1, 0] },
    Layout { sources: 2, in_place: Some(0), off: [3; 6] },
    Layout { sources: 3, in_place: Some(2), off: [0, 1, 0, 1, 0, 1] },
    Layout { sources: 5, in_place: Some(1), off: [0; 6] },
];

/// A reduction in one buffer, filled at random.
struct Case {
    operation: ReduceOperation,
    element: Element,
    count: usize,
    layout: Layout,
    bytes: Vec<u8>,
    sources: Vec<usize>,
    destination: usize,
}

impl Case {
    fn new(operation: ReduceOperation, element: Element, count: usize, layout: Layout, numbers: &mut Numbers) -> Case {
        let region = ((count + 4) * element.size()).next_multiple_of(16) + 64;
        let place = |index: usize| index * region + layout.off[index] * element.alignment();
        let mut bytes = pattern(region * (layout.sources + 1), numbers.below(1000));
        let sources: Vec<usize> = (1..=layout.sources).map(place).collect();
        for at in sources.iter().flat_map(|at| (*at..).step_by(element.size()).take(count)) {
            reference::arbitrary(element, &mut bytes[at..at + element.size()], |limit| numbers.below(limit));
        }
        let destination = layout.in_place.map_or(place(0), |index| sources[index]);
        Case { operation, element, count, layout, bytes, sources, destination }
    }

    /// Returns the result of the host, element by element.
    fn expected(&self) -> impl Iterator<Item = Vec<u8>> {
        let size = self.element.size();
        (0..self.count * size).step_by(size).map(move |at| {
            let mut elements = self.sources.iter().map(|source| self.bytes[source + at..][..size].to_vec());
            let first = elements.next().unwrap();
            elements.fold(first, |a, b| reference::fold(self.operation, self.element, &a, &b))
        })
    }

    /// Checks the bytes after the reduction.
    fn check(mut self, got: &[u8]) {
        let (size, expected) = (self.element.size(), self.expected().collect::<Vec<_>>());
        let Case { operation, element, count, layout, destination, .. } = self;
        let case = || format!("{operation:?} of {count} {element:?}, {layout:?}");
        for (index, expected) in expected.iter().enumerate() {
            let at = destination + index * size;
            let element_got = &got[at..at + size];
            if !reference::same(operation, element, expected, element_got) {
                let of = |source: &usize| format!("{:02x?} ", &self.bytes[source + index * size..][..size]);
                let of: String = self.sources.iter().map(of).collect();
                panic!("{}: element {index} is {element_got:02x?}, not {expected:02x?}; of {of}", case());
            }
            for (offset, len) in element.parts() {
                self.bytes[at + offset..at + offset + len].copy_from_slice(&element_got[*offset..offset + len]);
            }
        }
        assert!(self.bytes == got, "{}: a byte changed that is none of the result's", case());
    }

    /// Reduces in the buffer.
    fn run(self, devices: &Devices, buffer: &mut DeviceBuffer) {
        let at = buffer.location();
        self.run_at(devices, &at, buffer);
    }

    /// Does it in the context of `at`, which can access the buffer.
    fn run_at(self, devices: &Devices, at: &Location, buffer: &mut DeviceBuffer) {
        let base = buffer.as_device_ptr();
        buffer.copy_from_host(0, &self.bytes).unwrap();
        let sources: Vec<_> = self.sources.iter().map(|source| base.wrapping_add(*source).cast_const()).collect();
        let Case { operation, element, count, .. } = self;
        let destination = base.wrapping_add(self.destination);
        let reduction = Reduction { operation, element, count: count as u64, destination, sources: &sources };
        // SAFETY: all lies in the buffer, which outlives the run.
        let run = unsafe { devices.reduce(at, Order::AfterDefaultStream, &reduction) }.unwrap();
        run.expect("kernels reduce").wait().unwrap();
        let mut got = vec![0; self.bytes.len()];
        buffer.copy_to_host(0, &mut got).unwrap();
        self.check(&got);
    }
}

/// Reduces every element with every operation that applies.
fn reduce_all(operations: &[ReduceOperation]) {
    let devices = devices();
    let mut buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 1 << 20).unwrap();
    let mut numbers = Numbers(1);
    for &operation in operations {
        for element in Element::ALL {
            let applies = operation.applies_to(element);
            assert_eq!(devices.can_reduce(&buffer.location(), operation, element), applies);
            for count in [0, 1, 2, 3, BASE - 1, BASE, BASE + 1, BASE + 3] {
                for layout in LAYOUTS.into_iter().filter(|_| applies) {
                    Case::new(operation, element, count, layout, &mut numbers).run(&devices, &mut buffer);
                }
            }
        }
    }
}

#[test]
fn sums_and_products_are_the_hosts() {
    reduce_all(&[ReduceOperation::Sum, ReduceOperation::Product]);
}

#[test]
fn minima_and_maxima_are_the_hosts() {
    use ReduceOperation::{Max, MaxLoc, Min, MinLoc};
    reduce_all(&[Min, Max, MinLoc, MaxLoc]);
}

#[test]
fn bits_and_truths_are_the_hosts() {
    use ReduceOperation::{BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, LogicalXor};
    reduce_all(&[LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor]);
}

/// So many elements that each thread of a device folds several vectors, and as many single elements.
#[test]
fn large_buffers_are_reduced() {
    let devices = devices();
    let mut numbers = Numbers(2);
    let count = if app().simulated() { 40_000 } else { 3_000_001 };
    let mut buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 5 * (count + 64) * 8).unwrap();
    for layout in &LAYOUTS[..3] {
        for element in [Element::F32, Element::TwoInt, Element::U16] {
            let operation = match element {
                Element::TwoInt => ReduceOperation::MaxLoc,
                _ => ReduceOperation::Sum,
            };
            Case::new(operation, element, count, *layout, &mut numbers).run(&devices, &mut buffer);
        }
    }
}

/// Kernels read and write other memory that they can access, too.
#[test]
fn memory_of_every_kind_is_reduced() {
    let devices = devices();
    let mut numbers = Numbers(4);
    let device = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 64).unwrap();
    let kinds = [BufferKind::Pinned, BufferKind::Managed, BufferKind::Pool, BufferKind::VmmPrivate];
    for kind in kinds {
        let mut buffer = match DeviceBuffer::new(&devices, DEVICE, kind, 1 << 16) {
            Ok(buffer) => buffer,
            Err(error) => {
                eprintln!("skipped {kind:?}: {error}");
                continue;
            }
        };
        for layout in LAYOUTS {
            let case = Case::new(ReduceOperation::Max, Element::F64, 700, layout, &mut numbers);
            case.run_at(&devices, &device.location(), &mut buffer);
        }
    }
}

/// As many sources as possible, and reductions of which several are under way.
#[test]
fn several_reductions_run_at_a_time() {
    let devices = devices();
    let len = 64 << 10;
    let mut buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 20 * len).unwrap();
    let bytes = pattern(20 * len, 3);
    buffer.copy_from_host(0, &bytes).unwrap();
    let at = |index: usize| buffer.as_device_ptr().wrapping_add(index * len);
    let sources: Vec<_> = (4..20).map(|index| at(index).cast_const()).collect();
    let begin = |index: usize| {
        let (operation, element) = (ReduceOperation::Sum, Element::U32);
        let count = len as u64 / 4;
        let sources = &sources[..16 - index];
        let reduction = Reduction { operation, element, count, destination: at(index), sources };
        // SAFETY: four destinations, which no source overlaps, in a buffer that outlives the runs.
        unsafe { devices.reduce(&buffer.location(), Order::AfterDefaultStream, &reduction) }.unwrap().unwrap()
    };
    let mut runs: Vec<_> = (0..4).map(begin).collect();
    // The last one is dropped unfinished: that waits for it.
    drop(runs.pop());
    for mut run in runs {
        while !run.poll().unwrap() {
            std::thread::yield_now();
        }
    }
    let mut got = vec![0; 20 * len];
    buffer.copy_to_host(0, &mut got).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    for index in 0..4 {
        for offset in (0..len).step_by(4) {
            let sum = (4..20 - index).fold(0_u32, |sum, source| sum.wrapping_add(word(&bytes, source * len + offset)));
            assert_eq!(word(&got, index * len + offset), sum);
        }
    }
    assert!(got[4 * len..] == bytes[4 * len..]);
}

/// The sources are written by work in the default stream that has not begun when the reduction is asked for.
#[test]
fn a_reduction_follows_the_default_stream() {
    isolated("a_reduction_follows_the_default_stream", &[("SIM_CUDA_DELAY_US", "3000")], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let (len, element) = (8 << 20, Element::I32);
        let address = app.malloc(3 * len);
        let place = |index: usize| std::ptr::with_exposed_provenance_mut::<u8>(address as usize + index * len);
        let at = devices.classify(place(0), len);
        assert!(devices.can_reduce(&at, ReduceOperation::Sum, element));
        for round in 1..=5_u8 {
            for index in 0..3 {
                app.cuMemsetD8Async(address + (index * len) as u64, index as u8 * 16 + round, len, 1).unwrap();
            }
            let sources = [place(1).cast_const(), place(2).cast_const()];
            let (operation, count) = (ReduceOperation::Sum, len as u64 / 4);
            let reduction = Reduction { operation, element, count, destination: place(0), sources: &sources };
            // SAFETY: three parts of an allocation that stays.
            let run = unsafe { devices.reduce(&at, Order::AfterDefaultStream, &reduction) }.unwrap();
            run.unwrap().wait().unwrap();
            assert!(app.download(address, len).iter().all(|byte| *byte == 48 + 2 * round), "round {round}");
        }
    });
}

fn sum_of_two(address: *mut u8, sources: &[*const u8], count: u64) -> Reduction<'_> {
    let (operation, element) = (ReduceOperation::Sum, Element::I32);
    Reduction { operation, element, count, destination: address, sources }
}

#[test]
fn a_destroyed_context_ends_a_reduction_with_an_error() {
    isolated("a_destroyed_context_ends_a_reduction_with_an_error", &[("SIM_CUDA_DELAY_US", "20000")], || {
        let (app, devices) = (app(), devices());
        let mut failed = 0;
        for round in 0..10 {
            let context = app.create_context(0);
            let len = 64 << 20 >> (round % 4);
            let address: *mut u8 = std::ptr::with_exposed_provenance_mut(app.malloc(2 * len) as usize);
            let at = devices.classify(address, len);
            let sources = [address.cast_const(), address.wrapping_add(len).cast_const()];
            let reduction = sum_of_two(address, &sources, len as u64 / 4);
            // SAFETY: the context, with the memory, is destroyed on purpose.
            let run = unsafe { devices.reduce(&at, Order::None, &reduction) }.unwrap().unwrap();
            app.cuCtxDestroy(context).unwrap();
            failed += u32::from(run.wait().is_err());
            // SAFETY: as above.
            assert!(unsafe { devices.reduce(&at, Order::None, &reduction) }.is_err());
            assert!(!devices.can_reduce(&at, ReduceOperation::Sum, Element::I32));
        }
        // A real driver may let the kernel end first.
        assert!(failed != 0 || !app.simulated(), "every reduction ended before its context");
    });
}

#[test]
fn what_no_kernel_can_do_is_left_to_the_host() {
    let devices = devices();
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 4096).unwrap();
    let (at, first) = (buffer.location(), buffer.as_device_ptr());
    let second = first.wrapping_add(1024);
    // SAFETY: parts of a buffer that outlives each run.
    let reduce = |reduction: &Reduction<'_>| unsafe { devices.reduce(&at, Order::None, reduction) };
    let odd = [first.cast_const(), second.wrapping_add(2).cast_const()];
    assert!(reduce(&sum_of_two(first, &odd, 10)).unwrap().is_none(), "an element is not aligned");
    let both = [first.cast_const(), second.cast_const()];
    let floats = Reduction { element: Element::F32, operation: ReduceOperation::BitOr, ..sum_of_two(first, &both, 10) };
    assert!(reduce(&floats).unwrap().is_none(), "the operation does not apply");
    assert!(reduce(&sum_of_two(first, &both[..1], 10)).is_err(), "one source");
    assert!(reduce(&sum_of_two(first, &[first.cast_const(); 17], 10)).is_err(), "too many sources");

    let without = devices_with(&["device_kernels=no"]);
    assert!(!without.can_reduce(&at, ReduceOperation::Sum, Element::I32));
    // SAFETY: as above.
    assert!(unsafe { without.reduce(&at, Order::None, &sum_of_two(first, &both, 10)) }.unwrap().is_none());
    assert!(!devices.can_reduce(&Location::HOST, ReduceOperation::Sum, Element::I32));
}

/// A driver that refuses to load or to launch kernels leaves reductions to the host.
#[test]
fn a_driver_that_refuses_kernels_leaves_reductions_to_the_host() {
    let test = "a_driver_that_refuses_kernels_leaves_reductions_to_the_host";
    if !common::on_simulated_driver(test) {
        return;
    }
    const CASES: [&[(&str, &str)]; 6] = [
        &[("SIM_CUDA_FAIL", "cuModuleLoadData:218")],
        &[("SIM_CUDA_FAIL", "cuModuleGetFunction:500")],
        &[("SIM_CUDA_FAIL", "cuMemHostGetDevicePointer:1")],
        &[("SIM_CUDA_MISSING", "cuLaunchKernel")],
        &[("SIM_CUDA_MISSING", "cuCtxGetStreamPriorityRange")],
        &[("SIM_CUDA_FAIL", "cuLaunchKernel:719")],
    ];
    isolated_each(test, &CASES, |case| {
        let devices = devices();
        let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 4096).unwrap();
        let (at, first) = (buffer.location(), buffer.as_device_ptr());
        let sources = [first.cast_const(), first.wrapping_add(2048).cast_const()];
        // A function that the library lacks is noticed at the first launch.
        let loads = devices.can_reduce(&at, ReduceOperation::Sum, Element::I32);
        assert_eq!(loads, case == 3 || case == 5);
        for _ in 0..2 {
            // SAFETY: parts of a buffer that outlives the run.
            let run = unsafe { devices.reduce(&at, Order::None, &sum_of_two(first, &sources, 10)) };
            assert!(run.unwrap().is_none());
            assert!(!devices.can_reduce(&at, ReduceOperation::Sum, Element::I32));
        }
    });
}
