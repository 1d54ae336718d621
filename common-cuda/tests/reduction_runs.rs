//! Reductions under way: their order, their end, and what is left to the host.

mod common;

use cableway_common_cuda::{
    BufferKind, DeviceBuffer, DeviceIndex, Element, Location, Order, ReduceOperation, Reduction,
};
use common::{app, devices, devices_with, isolated, isolated_each};

const DEVICE: DeviceIndex = DeviceIndex(0);

fn sum_of_two<'a>(destinations: &'a [*mut u8], sources: &'a [*const u8], count: u64) -> Reduction<'a> {
    let (operation, element) = (ReduceOperation::Sum, Element::I32);
    Reduction { operation, element, count, destinations, sources, kept: None }
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
            let reduction =
                Reduction { operation, element, count, destinations: &[place(0)], sources: &sources, kept: None };
            // SAFETY: three parts of an allocation that stays.
            let run = unsafe { devices.reduce(&at, Order::AfterDefaultStream, &reduction) }.unwrap();
            run.unwrap().wait().unwrap();
            assert!(app.download(address, len).iter().all(|byte| *byte == 48 + 2 * round), "round {round}");
        }
    });
}

/// A context has words for so many jobs. The next one is left to the host, until one is over.
#[test]
fn too_many_reductions_leave_the_next_to_the_host() {
    const MOST: usize = 128;
    let devices = devices();
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, (MOST + 3) * 64).unwrap();
    let at = |index: usize| buffer.as_device_ptr().wrapping_add(index * 64);
    let sources = [at(MOST + 1).cast_const(), at(MOST + 2).cast_const()];
    // SAFETY: destinations that no source overlaps, in a buffer that outlives the runs.
    let begin = |index: usize| unsafe {
        devices.reduce(&buffer.location(), Order::None, &sum_of_two(&[at(index)], &sources, 16)).unwrap()
    };
    for _ in 0..3 {
        let mut runs: Vec<_> = (0..MOST).map(|index| begin(index).unwrap()).collect();
        assert!(begin(MOST).is_none());
        runs.pop().unwrap().wait().unwrap();
        assert!(begin(MOST).is_some());
    }
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
            let to = [address];
            let reduction = sum_of_two(&to, &sources, len as u64 / 4);
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
    assert!(reduce(&sum_of_two(&[first], &odd, 10)).unwrap().is_none(), "an element is not aligned");
    let both = [first.cast_const(), second.cast_const()];
    let to = [first];
    let floats = Reduction { element: Element::F32, operation: ReduceOperation::BitOr, ..sum_of_two(&to, &both, 10) };
    assert!(reduce(&floats).unwrap().is_none(), "the operation does not apply");
    assert!(reduce(&sum_of_two(&[first], &both[..1], 10)).is_err(), "one source");
    assert!(reduce(&sum_of_two(&[first], &[first.cast_const(); 17], 10)).is_err(), "too many sources");
    assert!(reduce(&sum_of_two(&[], &both, 10)).is_err(), "no destination");
    assert!(reduce(&sum_of_two(&[first; 17], &both, 10)).is_err(), "too many destinations");

    let without = devices_with(&["device_kernels=no"]);
    assert!(!without.can_reduce(&at, ReduceOperation::Sum, Element::I32));
    // SAFETY: as above.
    assert!(unsafe { without.reduce(&at, Order::None, &sum_of_two(&[first], &both, 10)) }.unwrap().is_none());
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
            let run = unsafe { devices.reduce(&at, Order::None, &sum_of_two(&[first], &sources, 10)) };
            assert!(run.unwrap().is_none());
            assert!(!devices.can_reduce(&at, ReduceOperation::Sum, Element::I32));
        }
    });
}

/// The kernel's failure is known to the driver only.
#[test]
fn a_failed_launch_is_an_error_and_the_last_one() {
    let test = "a_failed_launch_is_an_error_and_the_last_one";
    if !common::on_simulated_driver(test) {
        return;
    }
    const FAULTS: &[(&str, &str)] = &[("SIM_CUDA_FAIL", "cuStreamQuery:719"), ("SIM_CUDA_KERNEL_DELAY_US", "200000")];
    isolated(test, FAULTS, || {
        let devices = devices();
        // The simulated kernel runs nevertheless, so the memory stays.
        let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 8 << 20).unwrap();
        let (at, first) = (buffer.location(), buffer.as_device_ptr());
        std::mem::forget(buffer);
        let sources = [first.cast_const(), first.wrapping_add(4 << 20).cast_const()];
        let to = [first];
        let reduction = sum_of_two(&to, &sources, 1 << 20);
        // SAFETY: parts of a buffer that is never freed.
        let reduce = || unsafe { devices.reduce(&at, Order::None, &reduction) };
        // Which blocks are late is left to chance; without any, nobody asks the driver.
        let failed = (0..20).any(|_| reduce().unwrap().unwrap().wait().is_err());
        assert!(failed);
        assert!(reduce().unwrap().is_none());
        assert!(!devices.can_reduce(&at, ReduceOperation::Sum, Element::I32));
    });
}
