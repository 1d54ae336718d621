//! Copies of up to 16 bytes to a device, which the stream writes as values.

mod common;

use cableway_common_cuda::{BufferKind, Completion, DeviceBuffer, DeviceIndex, Devices, Direction, Order};
use common::{App, app, devices, devices_with, isolated, isolated_each, on_simulated_driver, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);
const ON_DEVICE: [BufferKind; 4] = [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm, BufferKind::Managed];
const LEN: usize = 4096;

fn filled(devices: &Devices, kind: BufferKind, byte: u8) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DEVICE, kind, LEN).unwrap();
    buffer.copy_from_host(0, &[byte; LEN]).unwrap();
    devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
    buffer
}

/// Begins to copy bytes into a buffer. Both outlive the completion.
fn begin(devices: &Devices, buffer: &DeviceBuffer, at: usize, bytes: &[u8], order: Order) -> Completion {
    let mut batch = devices.batch(&buffer.location(), Direction::HostToDevice, order).unwrap();
    // SAFETY: as many bytes of both, which outlive the completion.
    unsafe { batch.copy(buffer.as_device_ptr().wrapping_add(at), bytes.as_ptr(), bytes.len()) };
    batch.finish().unwrap()
}

fn content(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    buffer.copy_to_host(0, &mut bytes).unwrap();
    bytes
}

/// Copies every length to every alignment, and checks that no other byte changes.
fn copy_every_length_and_alignment(devices: &Devices, kind: BufferKind) {
    let bytes = pattern(64, 7);
    for len in 1..=24 {
        let buffer = filled(devices, kind, 0xEE);
        let mut expected = vec![0xEE; LEN];
        for offset in 0..16 {
            let at = offset * 64 + offset;
            let bytes = &bytes[offset..offset + len];
            begin(devices, &buffer, at, bytes, Order::AfterDefaultStream).wait().unwrap();
            expected[at..at + len].copy_from_slice(bytes);
        }
        assert!(content(&buffer) == expected, "{len} bytes to {kind:?}");
    }
}

/// Returns the numbers of calls that write values, copy, record an event and query a stream; `None` on a real driver.
fn calls(app: &App) -> Option<[i64; 4]> {
    let [values, copies, recorded, asked] =
        [c"cuStreamBatchMemOp", c"cuMemcpyAsync", c"cuEventRecord", c"cuStreamQuery"].map(|name| app.calls(name));
    Some([values?, copies?, recorded?, asked?])
}

fn since(app: &App, before: Option<[i64; 4]>) -> Option<[i64; 4]> {
    let (before, now) = (before?, calls(app)?);
    Some(std::array::from_fn(|index| now[index] - before[index]))
}

#[test]
fn every_length_and_alignment_in_every_kind_of_memory() {
    let devices = devices();
    ON_DEVICE.into_iter().for_each(|kind| copy_every_length_and_alignment(&devices, kind));
}

#[test]
fn aligned_words_are_written_as_values() {
    isolated("aligned_words_are_written_as_values", &[], || {
        let app = app();
        for (patience, of_three) in [("60s", [3, 0, 0, 0]), ("0s", [0, 3, 3, 0])] {
            let devices = devices_with(&[&format!("device_landing_patience={patience}")]);
            let buffer = filled(&devices, BufferKind::Device, 1);
            let bytes = pattern(24, 3);
            // The first copy creates streams, events and words.
            begin(&devices, &buffer, 0, &bytes[..8], Order::None).wait().unwrap();
            let before = calls(&app);
            for (at, len) in [(0, 16), (36, 12), (44, 4)] {
                begin(&devices, &buffer, at, &bytes[..len], Order::None).wait().unwrap();
            }
            let made = since(&app, before).map(|[values, copies, recorded, _]| [values, copies, recorded, 0]);
            assert!(made.is_none_or(|made| made == of_three), "{patience}: {made:?}");
            // A copy engine makes copies that need three values or parts of words.
            let before = calls(&app);
            for (at, len) in [(64, 20), (68, 16), (102, 4), (104, 6)] {
                begin(&devices, &buffer, at, &bytes[..len], Order::None).wait().unwrap();
            }
            let made = since(&app, before);
            assert!(made.is_none_or(|made| made[..3] == [0, 4, 4]), "{patience}: {made:?}");
            let mut expected = vec![1; LEN];
            for (at, len) in [(0, 16), (36, 12), (44, 4), (64, 20), (68, 16), (102, 4), (104, 6)] {
                expected[at..at + len].copy_from_slice(&bytes[..len]);
            }
            assert!(content(&buffer) == expected);
        }
    });
}

#[test]
fn slow_values_cause_a_driver_query() {
    isolated("slow_values_cause_a_driver_query", &[("SIM_CUDA_DELAY_US", "2000")], || {
        let app = app();
        let devices = devices_with(&["device_landing_patience=1us"]);
        let before = calls(&app);
        copy_every_length_and_alignment(&devices, BufferKind::Device);
        let made = since(&app, before);
        assert!(made.is_none_or(|[values, _, _, asked]| values > 0 && asked > 0), "{made:?}");
    });
}

#[test]
fn copy_engines_copy_if_values_are_refused() {
    let test = "copy_engines_copy_if_values_are_refused";
    if !on_simulated_driver(test) {
        return;
    }
    const CASES: [&[(&str, &str)]; 4] = [
        &[("SIM_CUDA_FAIL", "cuStreamBatchMemOp:801")],
        &[("SIM_CUDA_MISSING", "cuStreamBatchMemOp")],
        &[("SIM_CUDA_VERSION", "11060")],
        // The device cannot access the words.
        &[("SIM_CUDA_FAIL", "cuMemHostGetDevicePointer:801")],
    ];
    isolated_each(test, &CASES, |case| {
        let app = app();
        copy_every_length_and_alignment(&devices(), BufferKind::Device);
        // A driver that refuses is asked only once.
        assert_eq!(app.calls(c"cuStreamBatchMemOp"), Some(i64::from(case == 0)));
    });
}

#[test]
fn values_come_after_the_default_streams_work() {
    let test = "values_come_after_the_default_streams_work";
    isolated(test, &[("SIM_CUDA_DELAY_US", "5000")], || {
        let (app, devices) = (app(), devices());
        let mut buffer = filled(&devices, BufferKind::Device, 1);
        let bytes = pattern(8, 5);
        for round in 0..20 {
            buffer.fill(round).unwrap();
            begin(&devices, &buffer, 64, &bytes, Order::AfterDefaultStream).wait().unwrap();
            let mut expected = vec![round; LEN];
            expected[64..72].copy_from_slice(&bytes);
            assert!(content(&buffer) == expected, "round {round}");
        }
        assert!(app.calls(c"cuStreamBatchMemOp").is_none_or(|calls| calls >= 20));
    });
}

/// There are more copies than slots.
#[test]
fn many_copies_by_values_at_once() {
    const COUNT: usize = 200;
    let devices = devices();
    for _ in 0..3 {
        let buffer = filled(&devices, BufferKind::Device, 0);
        let bytes = pattern(COUNT * 16, 9);
        let start = |index: usize| begin(&devices, &buffer, index * 16, &bytes[index * 16..][..16], Order::None);
        let mut completions: Vec<Completion> = (0..COUNT).map(start).collect();
        while let Some(completion) = completions.pop() {
            completion.wait().unwrap();
        }
        assert!(content(&buffer)[..COUNT * 16] == bytes);
    }
}

#[test]
fn values_end_with_their_context() {
    let test = "values_end_with_their_context";
    if !on_simulated_driver(test) {
        return;
    }
    isolated(test, &[("SIM_CUDA_DELAY_US", "20000")], || {
        let app = app();
        let context = app.create_context(0);
        let devices = devices();
        let address = app.malloc(LEN);
        let target: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        let at = devices.classify(target, LEN);
        let bytes = pattern(8, 2);
        let mut batch = devices.batch(&at, Direction::HostToDevice, Order::AfterDefaultStream).unwrap();
        // SAFETY: both have 8 bytes. The test destroys the target's context on purpose.
        unsafe { batch.copy(target, bytes.as_ptr(), bytes.len()) };
        let completion = batch.finish().unwrap();
        assert_eq!(app.calls(c"cuStreamBatchMemOp"), Some(1));
        app.cuCtxDestroy(context).unwrap();
        // Whether the copy was still made is not defined.
        let _ = completion.wait();
        // Values are written in another context.
        let buffer = filled(&devices, BufferKind::Device, 1);
        begin(&devices, &buffer, 8, &bytes, Order::AfterDefaultStream).wait().unwrap();
        assert!(content(&buffer)[..16] == [&[1; 8][..], &bytes].concat());
        assert_eq!(app.calls(c"cuStreamBatchMemOp"), Some(2));
    });
}
