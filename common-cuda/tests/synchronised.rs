//! With `default_stream_order=auto`, the driver completes the program's synchronous calls before they return. Operations
//! then follow no work, except the first one on an allocation while mappings are not held off.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use cableway_common_cuda::{BufferKind, CopyOrder, DeviceBuffer, DeviceIndex, Devices, Location, Order};
use common::app::BLOCKING_STREAM;
use common::{App, app, devices, devices_with, isolated, isolated_each, on_simulated_driver};

const LEN: usize = 1 << 20;
/// Work in streams takes that long.
const SLOW: &[(&str, &str)] = &[("SIM_CUDA_DELAY_US", "20000")];
/// So it does, and the driver does not wait for earlier synchronous calls when it is asked to complete later ones.
const NOT_WAITING: &[(&str, &str)] = &[("SIM_CUDA_DELAY_US", "20000"), ("SIM_CUDA_EARLY", "1")];

fn buffer(devices: &Devices, kind: BufferKind) -> DeviceBuffer {
    DeviceBuffer::new(devices, DeviceIndex(0), kind, LEN).unwrap()
}

/// Copies to the host in the order that a message uses.
fn read(devices: &Devices, address: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let source = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: both have this length, and only this thread uses them.
    unsafe { devices.copy(bytes.as_mut_ptr(), source, LEN) }.unwrap();
    bytes
}

fn locate(devices: &Devices, address: u64) -> Location {
    devices.classify(std::ptr::with_exposed_provenance(address as usize), LEN)
}

fn order(devices: &Devices, at: &Location) -> Order {
    CopyOrder::begin().of(at, devices)
}

/// Waits until the default stream has passed the moment of the first operation.
fn meet(devices: &Devices, at: &Location) {
    while order(devices, at) == Order::AfterDefaultStream {
        std::thread::yield_now();
    }
}

/// Returns a word of host memory, 0 at first, for which streams can wait. It is never freed.
fn word(app: &App) -> &'static AtomicU32 {
    let mut address = std::ptr::null_mut();
    // Portable and mapped.
    app.cuMemHostAlloc(&raw mut address, 64, 3).unwrap();
    // SAFETY: 64 bytes of aligned host memory, which only atomic operations access from now on.
    unsafe {
        address.cast::<u32>().write(0);
        AtomicU32::from_ptr(address.cast())
    }
}

#[test]
fn the_first_operation_follows_earlier_work() {
    isolated_each("the_first_operation_follows_earlier_work", &[SLOW, NOT_WAITING], |_| {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        for round in 1..20 {
            let address = app.malloc(LEN);
            app.cuMemsetD8(address, round, LEN).unwrap();
            assert!(read(&devices, address).iter().all(|&byte| byte == round), "stale bytes in round {round}");
            app.cuMemFree(address).unwrap();
        }
    });
}

#[test]
fn later_operations_see_synchronous_calls_and_follow_nothing() {
    let test = "later_operations_see_synchronous_calls_and_follow_nothing";
    isolated(test, SLOW, || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let address = app.malloc(LEN);
        meet(&devices, &locate(&devices, address));
        let asked = || [c"cuStreamQuery", c"cuEventRecord", c"cuStreamWaitEvent"].map(|name| app.calls(name));
        for round in 1..20 {
            if round % 2 == 0 {
                app.cuMemsetD8(address, round, LEN).unwrap();
            } else {
                app.upload(address, &vec![round; LEN]);
            }
            let before = asked();
            let at = locate(&devices, address);
            assert_eq!(order(&devices, &at), Order::Synchronised);
            assert!(devices.default_stream(&at).unwrap().poll().unwrap());
            assert!(devices.ask_default_stream(&at).unwrap());
            assert_eq!(asked(), before, "no stream is asked or waited for");
            assert!(read(&devices, address).iter().all(|&byte| byte == round), "stale bytes in round {round}");
        }
        app.cuMemFree(address).unwrap();
    });
}

/// A program may fill new memory before each message, so that the default stream is never idle.
#[test]
fn an_allocation_is_known_while_others_are_met() {
    let test = "an_allocation_is_known_while_others_are_met";
    if !on_simulated_driver(test) {
        return;
    }
    isolated(test, SLOW, || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let filled = || {
            let address = app.malloc(LEN);
            app.cuMemsetD8(address, 1, LEN).unwrap();
            locate(&devices, address)
        };
        let first = filled();
        app.cuCtxSynchronize().unwrap();
        filled();
        assert_eq!(order(&devices, &first), Order::Synchronised);
    });
}

/// The default stream waits for a blocking stream, which may wait for a message. Synchronous calls on the allocation are over
/// once the driver has been asked.
#[test]
fn new_memory_follows_no_blocking_stream_while_mappings_are_held() {
    isolated("new_memory_follows_no_blocking_stream_while_mappings_are_held", SLOW, || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        // The context is known.
        meet(&devices, &locate(&devices, app.malloc(LEN)));
        let _held = devices.hold_mappings_firmly();
        let (blocking, word) = (app.stream(BLOCKING_STREAM), word(&app));
        for round in 1..20_u8 {
            let (filled, other) = (app.malloc(LEN), app.malloc(LEN));
            app.cuMemsetD8(filled, round, LEN).unwrap();
            let at = locate(&devices, filled);
            app.wait_value(blocking, word.as_ptr() as u64, round.into(), 0);
            for at in [at, locate(&devices, other)] {
                assert_eq!(order(&devices, &at), Order::Synchronised);
                assert!(devices.ask_default_stream(&at).unwrap());
            }
            assert!(read(&devices, filled).iter().all(|&byte| byte == round), "stale bytes in round {round}");
            word.store(round.into(), Ordering::Release);
            app.cuStreamSynchronize(blocking).unwrap();
            app.cuMemFree(filled).unwrap();
            app.cuMemFree(other).unwrap();
        }
    });
}

/// So it is when the allocation was met before, and the default stream has not passed that moment.
#[test]
fn an_allocation_met_before_follows_nothing_once_mappings_are_held() {
    isolated("an_allocation_met_before_follows_nothing_once_mappings_are_held", SLOW, || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let (blocking, address) = (app.stream(BLOCKING_STREAM), app.malloc(LEN));
        let word = word(&app);
        app.cuMemsetD8(address, 1, LEN).unwrap();
        app.wait_value(blocking, word.as_ptr() as u64, 1, 0);
        let at = locate(&devices, address);
        assert_eq!(order(&devices, &at), Order::AfterDefaultStream);
        let _held = devices.hold_mappings_firmly();
        assert_eq!(order(&devices, &at), Order::Synchronised);
        assert!(read(&devices, address).iter().all(|&byte| byte == 1), "stale bytes");
        word.store(1, Ordering::Release);
    });
}

/// Another allocation at the same address is met anew.
#[test]
fn an_allocation_is_known_by_its_id() {
    isolated_each("an_allocation_is_known_by_its_id", &[SLOW, NOT_WAITING], |_| {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let mut addresses = Vec::new();
        for round in 1..20 {
            let address = app.malloc(LEN);
            addresses.push(address);
            app.cuMemsetD8(address, round, LEN).unwrap();
            assert!(read(&devices, address).iter().all(|&byte| byte == round), "stale bytes in round {round}");
            meet(&devices, &locate(&devices, address));
            app.cuMemFree(address).unwrap();
        }
        addresses.dedup();
        assert!(!app.simulated() || addresses.len() < 19, "no address was used again: {addresses:x?}");
    });
}

/// More allocations than the memory of known ones has room for.
#[test]
fn many_allocations_stay_synchronised() {
    isolated("many_allocations_stay_synchronised", &[], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let addresses: Vec<u64> = (0..300).map(|_| app.malloc(4096)).collect();
        for address in &addresses {
            meet(&devices, &locate(&devices, *address));
        }
        let before = app.calls(c"cuPointerSetAttribute");
        for address in &addresses {
            assert_eq!(order(&devices, &locate(&devices, *address)), Order::Synchronised);
        }
        assert_eq!(app.calls(c"cuPointerSetAttribute"), before, "the driver was asked again");
        for address in addresses {
            app.cuMemFree(address).unwrap();
        }
    });
}

/// Fills of such memory return early on an H200, although pools accept the attribute.
#[test]
fn other_memory_follows_the_default_stream() {
    isolated("other_memory_follows_the_default_stream", SLOW, || {
        let (app, devices) = (app(), devices());
        for kind in [BufferKind::Pool, BufferKind::PoolShared, BufferKind::Managed, BufferKind::VmmPrivate] {
            let mut buffer = buffer(&devices, kind);
            for round in 1..20 {
                buffer.fill(round).unwrap();
                let at = locate(&devices, buffer.as_device_ptr() as u64);
                assert_eq!(order(&devices, &at), Order::AfterDefaultStream, "{kind:?}");
                let got = read(&devices, buffer.as_device_ptr() as u64);
                assert!(got.iter().all(|&byte| byte == round), "stale bytes in round {round} of {kind:?}");
            }
        }
        assert!(app.calls(c"cuPointerSetAttribute").is_none_or(|calls| calls == 0), "the driver is asked");
    });
}

/// The order after kernels is what `legacy` adds, for every message alike.
#[test]
fn work_that_the_program_has_not_waited_for_is_not_followed() {
    let test = "work_that_the_program_has_not_waited_for_is_not_followed";
    if !on_simulated_driver(test) {
        return;
    }
    isolated(test, SLOW, || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let (address, other) = (app.malloc(LEN), app.malloc(LEN));
        let at = locate(&devices, address);
        meet(&devices, &at);
        // A fill of memory that no message has used is asynchronous, as a kernel is.
        app.cuMemsetD8(other, 1, LEN).unwrap();
        assert_eq!(order(&devices, &at), Order::Synchronised);
        assert!(devices.default_stream(&at).unwrap().poll().unwrap());
        let legacy = devices_with(&["default_stream_order=legacy"]);
        assert_eq!(order(&legacy, &locate(&legacy, address)), Order::AfterDefaultStream);
        assert!(!legacy.ask_default_stream(&at).unwrap(), "the stream is busy");
    });
}
