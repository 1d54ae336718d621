//! Memory of one process, mapped by another.

mod common;

use std::process::Command;

use cableway_base::Parameters;
use cableway_common_cuda::{
    BufferKind, DeviceBuffer, DeviceIndex, Devices, Exported, Exports, Holder, Imports, Order, Reach, Vendor,
    WaitCondition, WordOperation,
};
use common::app::{Handle, NON_BLOCKING_STREAM};
use common::{app, collect_log, devices, devices_with, isolated, pattern};

const LEN: usize = 100_000;
const OTHER: &str = "CABLEWAY_TEST_OTHER_PROCESS";

fn buffer(devices: &Devices, device: u32, kind: BufferKind, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(device), kind, bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    // The bytes may still be in transit, and no stream order of this process holds for another process.
    devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
    buffer
}

fn export(exports: &Exports, buffer: &DeviceBuffer, peer: u32) -> Option<Exported> {
    exports.export(&buffer.location(), buffer.as_device_ptr(), buffer.len(), peer)
}

/// Formats an export for another process of these tests: kind, device, base, length, id, handle.
fn to_text(exported: &Exported) -> String {
    let numbers = [exported.base, exported.len, exported.buffer_id].map(u64::to_le_bytes).concat();
    let bytes = [&exported.device[..], &numbers, &exported.handle].concat();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_text(text: &str) -> Exported {
    let bytes: Vec<u8> =
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let amd = sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd;
    Exported {
        kind: cableway_common_cuda::ExportKind::from_number(if amd { 4 } else { 1 }).unwrap(),
        device: bytes[..16].try_into().unwrap(),
        base: number(16),
        len: number(24),
        buffer_id: number(32),
        handle: bytes[40..].try_into().unwrap(),
        pool: 0,
    }
}

/// Runs the calling test in another process, and passes these exports to it.
fn other_process(test: &str, exported: &[Exported]) {
    let words = exported.iter().map(to_text).collect::<Vec<_>>().join(" ");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(OTHER, words);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns the exports that the first process passed, if this is the other process.
fn told() -> Option<Vec<Exported>> {
    Some(std::env::var(OTHER).ok()?.split(' ').map(from_text).collect())
}

fn imports(devices: &Devices, assignments: &[&str]) -> Imports {
    let mut parameters = Parameters::default();
    for assignment in assignments {
        parameters.assign_internal(assignment).unwrap();
    }
    Imports::new(devices, &parameters)
}

#[test]
fn memory_is_mapped_and_accessed_at_its_second_use() {
    let devices = devices();
    let mine = buffer(&devices, 0, BufferKind::Device, &pattern(LEN, 1));
    let Some(told) = told() else {
        let exports = Exports::new(&devices, 10);
        let exported = export(&exports, &mine, 1).unwrap();
        assert_eq!(export(&exports, &mine, 2), Some(exported), "every peer must get the same export");
        // SAFETY: within the buffer.
        let part = unsafe { mine.as_device_ptr().add(LEN / 2) };
        assert_eq!(exports.export(&mine.location(), part, 10, 1), Some(exported));
        assert_eq!(exports.export(&mine.location(), part, LEN, 1), None, "beyond its end");
        other_process("memory_is_mapped_and_accessed_at_its_second_use", &[exported]);
        let mut now = vec![0; LEN];
        mine.copy_to_host(0, &mut now).unwrap();
        let mut expected = pattern(LEN, 1);
        expected[1000..2000].copy_from_slice(&pattern(1000, 2));
        assert!(now == expected, "what the other process wrote");
        return;
    };
    let imports = imports(&devices, &[]);
    let at = mine.location();
    assert!(matches!(imports.reach(7, &told[0], &at, 8), Ok(Reach::NotYet)));
    let held = devices.hold_mappings(Holder::of(&devices));
    for _ in 0..3 {
        assert!(matches!(imports.reach(7, &told[0], &at, 8), Ok(Reach::NotYet)), "mappings are held off");
    }
    drop(held);
    let Ok(Reach::Mapped(mapped)) = imports.reach(7, &told[0], &at, 8) else { panic!("not mapped") };
    assert_eq!(imports.open(), (1, told[0].len));
    let _held = devices.hold_mappings(Holder::of(&devices));
    assert_eq!(devices.mappings().take(), (1, 0));
    assert!(matches!(imports.reach(7, &told[0], &at, 8), Ok(Reach::Mapped(_))));
    assert_eq!(devices.mappings().take(), (0, 1));
    let mut seen = vec![0; LEN];
    let written = pattern(1000, 2);
    // SAFETY: both processes keep their memory, and nobody else touches it.
    unsafe {
        devices.copy(seen.as_mut_ptr(), mapped.address(0), LEN).unwrap();
        devices.copy(mapped.address(1000), written.as_ptr(), 1000).unwrap();
    }
    assert!(seen == pattern(LEN, 1));
    imports.forget(8, told[0].buffer_id);
    assert_eq!(imports.open().0, 1, "another peer's");
    imports.forget(7, told[0].buffer_id);
    assert_eq!(imports.open(), (0, 0));
}

/// A driver unmaps memory only after it has waited for the streams of the context.
#[test]
fn mappings_are_closed_once_no_stream_may_wait() {
    let devices = devices();
    let mine = buffer(&devices, 0, BufferKind::Device, &pattern(LEN, 1));
    let Some(told) = told() else {
        let exports = Exports::new(&devices, 10);
        let exported = export(&exports, &mine, 1).unwrap();
        return other_process("mappings_are_closed_once_no_stream_may_wait", &[exported]);
    };
    // SAFETY: ends this process, which would hang with a driver that waits.
    unsafe { libc::alarm(120) };
    let app = app();
    app.use_device(0);
    let vendor = match sim_cuda::Vendor::tested() {
        sim_cuda::Vendor::Nvidia => Vendor::Nvidia,
        sim_cuda::Vendor::Amd => Vendor::Amd,
    };
    // SAFETY: nobody destroys the stream.
    let stream = unsafe { devices.program_stream(vendor, app.stream(NON_BLOCKING_STREAM)) }.unwrap();
    let words = stream.words(1).unwrap();
    let imports = imports(&devices, &["device_ipc_open_size=1"]);
    let reached = imports.reach(7, &told[0], &mine.location(), LEN as u64);
    assert!(matches!(reached, Ok(Reach::Mapped(_))));
    drop(reached);
    let held = devices.hold_mappings(Holder::of(&devices));
    let wait = WordOperation::wait(words.device_address(0), 1, WaitCondition::GreaterOrEqual);
    // SAFETY: the words live until the stream has passed the operation.
    unsafe { stream.operate(&[wait]) }.unwrap();
    imports.forget(7, told[0].buffer_id);
    assert_eq!((imports.open(), devices.has_unclosed_mappings()), ((0, 0), true));
    words.store(0, 1);
    app.cuStreamSynchronize(stream.handle() as Handle).unwrap();
    drop(held);
    assert!(!devices.has_unclosed_mappings());
}

#[test]
fn mappings_are_bounded_and_end_with_their_peer() {
    let devices = devices();
    let mine: Vec<_> = (0..5).map(|seed| buffer(&devices, 0, BufferKind::Device, &pattern(LEN, seed))).collect();
    let Some(told) = told() else {
        let exports = Exports::new(&devices, 10);
        let exported: Vec<_> = mine.iter().map(|buffer| export(&exports, buffer, 1).unwrap()).collect();
        return other_process("mappings_are_bounded_and_end_with_their_peer", &exported);
    };
    for (set, most) in [("device_ipc_mappings=2", 2), ("device_ipc_bytes=250000", 2), ("device_ipc_bytes=1", 1)] {
        let imports = imports(&devices, &["device_ipc_open_size=1", set]);
        for round in 0..3 {
            for (seed, exported) in told.iter().enumerate() {
                let Ok(Reach::Mapped(mapped)) = imports.reach(7, exported, &mine[0].location(), 8) else {
                    panic!("not mapped")
                };
                assert!(imports.open().0 <= most, "{set} in round {round}");
                let mut seen = vec![0; LEN];
                // SAFETY: as above.
                unsafe { devices.copy(seen.as_mut_ptr(), mapped.address(0), LEN) }.unwrap();
                assert!(seen == pattern(LEN, seed as u64));
            }
        }
        imports.forget_peer(7);
        assert_eq!(imports.open(), (0, 0));
    }
}

/// Mappings in constant use are not closed in favour of others, even if they are used without a look-up.
#[test]
fn mappings_used_without_a_look_up_stay() {
    let devices = devices();
    let mine = buffer(&devices, 0, BufferKind::Device, &pattern(LEN, 1));
    let Some(told) = told() else {
        let exports = Exports::new(&devices, 10);
        let others: Vec<_> = (2..6).map(|seed| buffer(&devices, 0, BufferKind::Device, &pattern(LEN, seed))).collect();
        let told: Vec<_> = [&mine].into_iter().chain(&others).map(|mine| export(&exports, mine, 1).unwrap()).collect();
        return other_process("mappings_used_without_a_look_up_stay", &told);
    };
    let imports = imports(&devices, &["device_ipc_mappings=3", "device_ipc_open_size=1"]);
    let reach = |exported| match imports.reach(7, exported, &mine.location(), 8) {
        Ok(Reach::Mapped(mapped)) => mapped.remember(),
        other => panic!("{other:?}"),
    };
    let constant = reach(&told[0]);
    for round in 0..4 {
        for now_and_then in &told[1..] {
            assert!(imports.again(&constant).is_some(), "round {round}");
            reach(now_and_then);
            assert_eq!(imports.open().0.min(3), imports.open().0, "the limit holds");
        }
    }
    // When it is no longer used, it is closed like any other.
    told[1..4].iter().for_each(|exported| drop(reach(exported)));
    assert!(imports.again(&constant).is_none());
}

#[test]
fn freed_allocations_are_reported_and_not_confused_with_later_ones() {
    let devices = devices();
    let exports = Exports::new(&devices, 10);
    let mut old = Vec::new();
    for seed in 0..4 {
        let mine = buffer(&devices, 0, BufferKind::Device, &pattern(LEN, seed));
        let exported = export(&exports, &mine, 1).unwrap();
        assert!(!old.contains(&exported.buffer_id));
        old.push(exported.buffer_id);
    }
    // An export next to it, which the peer cannot use.
    assert_eq!([exports.gone(1), exports.gone(1)], [Some(old[0]); 2]);
    let mut told = Vec::new();
    exports.tell_gone(|peer, id| {
        assert_eq!(peer, 1, "no other peer may be notified");
        told.push(id);
        true
    });
    assert_eq!(told, old);
    assert_eq!((exports.gone(1), exports.gone(2)), (None, None));
}

#[test]
fn memory_without_a_handle_has_no_export() {
    isolated("memory_without_a_handle_has_no_export", &[], || {
        let log = collect_log();
        let devices = devices();
        let exports = Exports::new(&devices, 10);
        for kind in [BufferKind::Pool, BufferKind::VmmPrivate, BufferKind::Managed, BufferKind::Pool] {
            let mine = buffer(&devices, 0, kind, &pattern(LEN, 1));
            assert_eq!(export(&exports, &mine, 1), None, "{kind:?}");
        }
        let said = |level: &str| log.lock().unwrap().iter().filter(|line| line.starts_with(level)).count();
        let about = log.lock().unwrap().iter().filter(|line| line.contains("through the host")).count();
        assert_eq!((about, said("WARN")), (1, 0), "{log:?}");
    });
}

#[test]
fn unmappable_memory_is_refused_with_one_warning_and_given_up() {
    isolated("unmappable_memory_is_refused_with_one_warning_and_given_up", &[], || {
        let log = collect_log();
        let devices = devices();
        let exports = Exports::new(&devices, 10);
        let imports = imports(&devices, &["device_ipc_open_size=1"]);
        for round in 0..6 {
            // A process cannot open its own handles.
            let mine = buffer(&devices, 0, BufferKind::Device, &pattern(LEN, 1));
            let exported = export(&exports, &mine, 1).unwrap();
            for _ in 0..2 {
                assert!(matches!(imports.reach(1, &exported, &mine.location(), 8), Ok(Reach::Refused)));
            }
            assert_eq!(imports.given_up(1), round >= 3);
        }
        assert!(!imports.given_up(2));
        let warnings = log.lock().unwrap().iter().filter(|line| line.starts_with("WARN")).count();
        assert_eq!(warnings, 1, "{log:?}");
    });
}

#[test]
fn default_stream_completes_after_the_programs_work() {
    let devices = devices();
    for round in 0..50 {
        let bytes = pattern(64 << 10, round);
        let mine = buffer(&devices, 0, BufferKind::Device, &bytes);
        devices.default_stream(&mine.location()).unwrap().wait().unwrap();
        let mut seen = vec![0; bytes.len()];
        let direction = cableway_common_cuda::Direction::DeviceToHost;
        let mut batch = devices.batch(&mine.location(), direction, Order::None).unwrap();
        // SAFETY: both have as many bytes, and the copy is waited for.
        unsafe { batch.copy(seen.as_mut_ptr(), mine.as_device_ptr(), seen.len()) };
        batch.finish().unwrap().wait().unwrap();
        assert!(seen == bytes, "stale in round {round}");
    }
    let host = cableway_common_cuda::Location::HOST;
    assert!(devices.default_stream(&host).unwrap().poll().unwrap());
    let unordered = devices_with(&["default_stream_order=none"]);
    let mine = buffer(&unordered, 0, BufferKind::Device, &pattern(LEN, 1));
    assert!(unordered.default_stream(&mine.location()).unwrap().poll().unwrap());
}
