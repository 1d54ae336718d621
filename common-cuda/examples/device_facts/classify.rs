//! The cost of classification, and what identifiers distinguish.

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex};

use crate::{Bench, cost, fact};

pub(crate) fn run(bench: &Bench) {
    let devices = &bench.devices;
    let address = |pointer: *const u8| std::hint::black_box(pointer);
    for kind in BufferKind::ALL {
        match DeviceBuffer::new(devices, DeviceIndex(0), kind, 1 << 20) {
            Ok(buffer) => {
                fact(&format!("{kind:?} memory is"), format_args!("{:?}", buffer.location()));
                cost(&format!("classify {kind:?}"), 10_000, || {
                    std::hint::black_box(devices.classify(address(buffer.as_device_ptr()), 64));
                });
                let first = buffer.location();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let there = bench.app.current() == 0;
                        fact(
                            &format!("{kind:?}: same answer in a thread without context ({there})"),
                            buffer.location() == first,
                        );
                    });
                });
            }
            Err(error) => fact(&format!("{kind:?} memory"), error),
        }
    }
    host_costs(bench);
    identifiers(bench);
    ranges(bench);
}

fn host_costs(bench: &Bench) {
    let devices = &bench.devices;
    let (stack, heap, large) = ([0_u8; 64], vec![0_u8; 64], vec![0_u8; 8 << 20]);
    for (name, pointer) in [("stack", stack.as_ptr()), ("small heap", heap.as_ptr()), ("mapped", large.as_ptr())] {
        cost(&format!("classify host memory, {name}"), 10_000, || {
            std::hint::black_box(devices.classify(std::hint::black_box(pointer), 64));
        });
    }
}

/// Reports whether ids distinguish new allocations from old ones at the same address.
fn identifiers(bench: &Bench) {
    for kind in [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm, BufferKind::Managed] {
        let mut seen = std::collections::HashMap::new();
        let (mut reused, mut same) = (0, 0);
        for _ in 0..200 {
            let Ok(buffer) = DeviceBuffer::new(&bench.devices, DeviceIndex(0), kind, 4 << 20) else { return };
            let id = buffer.location().buffer_id;
            if let Some(old) = seen.insert(buffer.as_device_ptr() as usize, id) {
                reused += 1;
                same += usize::from(old == id);
            }
        }
        fact(
            &format!("{kind:?}: of 200 allocations, at an old address / with the old id there"),
            format_args!("{reused} / {same}"),
        );
    }
    let two: Vec<_> = (0..2)
        .filter_map(|_| DeviceBuffer::new(&bench.devices, DeviceIndex(0), BufferKind::Pool, 1 << 16).ok())
        .collect();
    if let [first, second] = &two[..] {
        let ids = (first.location().buffer_id, second.location().buffer_id);
        fact("two live allocations of one pool have different ids", ids.0 != ids.1);
    }
}

fn ranges(bench: &Bench) {
    for kind in BufferKind::ALL {
        let Ok(buffer) = DeviceBuffer::new(&bench.devices, DeviceIndex(0), kind, 100_000) else { continue };
        let (mut base, mut len) = (0, 0);
        let answer = bench.app.cuMemGetAddressRange(&raw mut base, &raw mut len, buffer.as_device_ptr() as u64 + 5);
        let same = base == buffer.as_device_ptr() as u64;
        fact(
            &format!("{kind:?}: address range of 100000 bytes, from byte 5 on"),
            format_args!("{answer:?}, begins with it: {same}, {len} bytes"),
        );
    }
}
