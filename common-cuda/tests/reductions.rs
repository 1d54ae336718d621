//! Reductions by kernels: every result is the host's, bit for bit, and no other byte changes.

mod common;
#[path = "common/reference.rs"]
mod reference;

use cableway_common_cuda::{
    BufferKind, DeviceBuffer, DeviceIndex, Devices, Element, Location, Order, ReduceOperation, Reduction,
};
use common::{app, devices, pattern};

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

/// Where the buffers of a reduction lie: the number of sources; the destinations, of which 1 is the first source, and 0 and
/// those above the last source are buffers of their own; whether the last buffer keeps the first source's elements; by how
/// many alignments each buffer is off a multiple of 16.
#[derive(Clone, Copy, Debug)]
struct Layout {
    sources: usize,
    to: &'static [usize],
    keeps: bool,
    off: [usize; 6],
}

const LAYOUTS: [Layout; 11] = [
    Layout { sources: 2, to: &[0], keeps: false, off: [0; 6] },
    Layout { sources: 3, to: &[0], keeps: false, off: [1; 6] },
    Layout { sources: 4, to: &[0], keeps: false, off: [1, 0, 2, 3, 1, 0] },
    Layout { sources: 2, to: &[1], keeps: false, off: [3; 6] },
    Layout { sources: 3, to: &[3], keeps: false, off: [0, 1, 0, 1, 0, 1] },
    Layout { sources: 5, to: &[2], keeps: false, off: [0; 6] },
    // Several destinations: in place everywhere, and beside the sources.
    Layout { sources: 3, to: &[1, 3, 2], keeps: true, off: [1; 6] },
    Layout { sources: 2, to: &[0, 2, 3], keeps: false, off: [0; 6] },
    Layout { sources: 2, to: &[0, 4], keeps: false, off: [0, 0, 0, 0, 1, 0] },
    // What fetches before it accumulates.
    Layout { sources: 2, to: &[1], keeps: true, off: [0; 6] },
    Layout { sources: 2, to: &[1], keeps: true, off: [2, 2, 2, 2, 2, 3] },
];

/// A reduction in one buffer, filled at random.
struct Case {
    operation: ReduceOperation,
    element: Element,
    count: usize,
    layout: Layout,
    bytes: Vec<u8>,
    sources: Vec<usize>,
    destinations: Vec<usize>,
    kept: Option<usize>,
}

impl Case {
    fn new(operation: ReduceOperation, element: Element, count: usize, layout: Layout, numbers: &mut Numbers) -> Case {
        let region = ((count + 4) * element.size()).next_multiple_of(16) + 64;
        let place = |index: usize| index * region + layout.off[index] * element.alignment();
        let mut bytes = pattern(region * layout.off.len(), numbers.below(1000));
        let sources: Vec<usize> = (1..=layout.sources).map(place).collect();
        for at in sources.iter().flat_map(|at| (*at..).step_by(element.size()).take(count)) {
            reference::arbitrary(element, &mut bytes[at..at + element.size()], |limit| numbers.below(limit));
        }
        let destinations = layout.to.iter().map(|&index| place(index)).collect();
        let kept = layout.keeps.then(|| place(5));
        Case { operation, element, count, layout, bytes, sources, destinations, kept }
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
    fn check(self, got: &[u8]) {
        let (size, expected) = (self.element.size(), self.expected().collect::<Vec<_>>());
        let Case { operation, element, count, layout, .. } = self;
        let case = || format!("{operation:?} of {count} {element:?}, {layout:?}");
        let mut after = self.bytes.clone();
        for destination in &self.destinations {
            for (index, expected) in expected.iter().enumerate() {
                let at = destination + index * size;
                let element_got = &got[at..at + size];
                if !reference::same(operation, element, expected, element_got) {
                    let of = |source: &usize| format!("{:02x?} ", &self.bytes[source + index * size..][..size]);
                    let of: String = self.sources.iter().map(of).collect();
                    panic!("{}: element {index} is {element_got:02x?}, not {expected:02x?}; of {of}", case());
                }
                for (offset, len) in element.parts() {
                    after[at + offset..at + offset + len].copy_from_slice(&element_got[*offset..offset + len]);
                }
            }
        }
        for (kept, index) in self.kept.iter().flat_map(|kept| (0..count).map(move |index| (kept, index))) {
            for (offset, len) in element.parts() {
                let (to, from) = (kept + index * size + offset, self.sources[0] + index * size + offset);
                after[to..to + len].copy_from_slice(&self.bytes[from..from + len]);
            }
        }
        assert!(after == got, "{}: a byte changed that is none of the result's", case());
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
        let destinations: Vec<_> = self.destinations.iter().map(|at| base.wrapping_add(*at)).collect();
        let (count, kept) = (count as u64, self.kept.map(|at| base.wrapping_add(at)));
        let reduction = Reduction { operation, element, count, destinations: &destinations, sources: &sources, kept };
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
    let count = if app().simulated() { 40_000 } else { 1_200_001 };
    let mut buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 6 * (count + 64) * 8).unwrap();
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
        let reduction = Reduction { operation, element, count, destinations: &[at(index)], sources, kept: None };
        // SAFETY: four destinations, which no source overlaps, in a buffer that outlives the runs.
        unsafe { devices.reduce(&buffer.location(), Order::AfterDefaultStream, &reduction) }.unwrap().unwrap()
    };
    let mut runs: Vec<_> = (0..4).map(begin).collect();
    // The last one is dropped unfinished, in another thread: that waits for it.
    let last = runs.pop();
    std::thread::scope(|scope| scope.spawn(|| drop(last)).join()).unwrap();
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

#[test]
fn threads_reduce_at_a_time() {
    let devices = devices();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let devices = &devices;
            scope.spawn(move || {
                let mut buffer = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, 1 << 16).unwrap();
                let mut numbers = Numbers(100 + thread);
                for round in 0..100 {
                    let operation = ReduceOperation::ALL[round % 10];
                    let layout = LAYOUTS[round % LAYOUTS.len()];
                    Case::new(operation, Element::I16, 1000, layout, &mut numbers).run(devices, &mut buffer);
                }
            });
        }
    });
}
