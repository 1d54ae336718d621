//! Memory of virtual memory management, passed by file descriptor. The driver lets a process import its own exports, so
//! one process acts as owner and importer here.

mod common;
#[path = "common/sides.rs"]
mod sides;

use cableway_common_cuda::{Answer, BufferKind, DescriptorRequest, ExportKind, MOST_PIECES, Mapped, Reach};
use common::{app, collect_log, isolated, isolated_each, on_simulated_driver, pattern};
use sides::{Addresses, IMPORTER, LEN, OWNER, PIECE, Sides};

#[test]
fn memory_is_mapped_after_its_owner_sends_a_descriptor() {
    let sides = Sides::new();
    let mine = sides.buffer(BufferKind::Vmm, &pattern(LEN, 1));
    let at = mine.location();
    let exported = sides.export(mine.as_device_ptr(), LEN).unwrap();
    assert_eq!((exported.kind, exported.base), (ExportKind::Descriptor, mine.as_device_ptr() as u64));
    assert!(exported.len >= LEN as u64);
    let mapped = sides.map(&exported, &at);
    assert!(sides.read(mapped.address(0), LEN) == pattern(LEN, 1));
    let written = pattern(1000, 2);
    // SAFETY: within the mapping, and nobody else touches it.
    unsafe { sides.devices.copy(mapped.address(5000), written.as_ptr(), 1000) }.unwrap();
    let mut now = vec![0; 1000];
    mine.copy_to_host(5000, &mut now).unwrap();
    assert!(now == written, "the owner's own memory");
    assert_eq!(sides.imports.open(), (1, exported.len));
    assert_eq!(sides.devices.mappings().take().0, 1);
    sides.imports.forget(OWNER, exported.buffer_id);
    assert_eq!(sides.imports.open(), (0, 0));
    assert!(sides.read(mapped.address(5000), 1000) == written, "a mapping must stay while it is used");
}

#[test]
fn descriptors_are_sent_only_for_exports_of_the_peer() {
    let sides = Sides::new();
    let (mine, legacy) = (sides.buffer(BufferKind::Vmm, &[1; LEN]), sides.buffer(BufferKind::Device, &[1; LEN]));
    let exported = sides.export(mine.as_device_ptr(), LEN).unwrap();
    let wanted = DescriptorRequest::of(&exported);
    assert!(matches!(sides.exports.answer(&wanted, IMPORTER), Answer::Descriptors(_)));
    assert!(
        matches!(sides.exports.answer(&wanted, IMPORTER + 1), Answer::Gone),
        "a process without an export must get nothing"
    );
    for wrong in [
        DescriptorRequest { buffer_id: wanted.buffer_id + 1, ..wanted },
        DescriptorRequest { base: wanted.base + 1, ..wanted },
        DescriptorRequest { len: wanted.len + 1, ..wanted },
        DescriptorRequest::of(&sides.export(legacy.as_device_ptr(), LEN).unwrap()),
    ] {
        assert!(matches!(sides.exports.answer(&wrong, IMPORTER), Answer::Gone), "{wrong:?}");
    }
    sides.exports.forget_peer(IMPORTER);
    assert!(matches!(sides.exports.answer(&wanted, IMPORTER), Answer::Gone), "a forgotten peer must get nothing");
}

#[test]
fn importers_are_notified_of_freed_memory() {
    let sides = Sides::new();
    let (first, second) = (sides.buffer(BufferKind::Vmm, &[1; LEN]), sides.buffer(BufferKind::Device, &[1; LEN]));
    let ids = [&first, &second].map(|buffer| sides.export(buffer.as_device_ptr(), LEN).unwrap().buffer_id);
    sides.exports.tell_gone(|_, id| panic!("{id} still exists"));
    drop(first);
    let mut said = Vec::new();
    let mut tell = |heard: bool| {
        sides.exports.tell_gone(|peer, id| {
            said.push((peer, id));
            heard
        });
    };
    tell(false);
    tell(true);
    tell(true);
    assert_eq!(said, [(IMPORTER, ids[0]); 2], "reports repeat until they are delivered");
    drop(second);
    assert_eq!(sides.exports.gone(IMPORTER), None, "the freed memory was not searched for yet");
    sides.exports.tell_gone(|_, id| id == ids[1]);
    assert_eq!(sides.exports.gone(IMPORTER), None, "heard");
}

#[test]
fn memory_remapped_at_an_address_is_not_confused_with_the_old() {
    let (app, sides) = (app(), Sides::new());
    app.use_device(0);
    let into = sides.buffer(BufferKind::Device, &[0; 8]);
    let addresses = Addresses::reserve(&app, PIECE);
    let mut ids = Vec::new();
    let mut kept = Vec::new();
    for round in 0..6 {
        let at = addresses.map(round);
        let exported = sides.export(at, PIECE).unwrap();
        assert!(!ids.contains(&exported.buffer_id), "ids must not be reused");
        ids.push(exported.buffer_id);
        if round % 3 == 2 {
            // The memory is freed while the request is in flight.
            let wanted = sides.want(&exported, &into.location());
            addresses.unmap();
            assert!(matches!(sides.exports.answer(&wanted, IMPORTER), Answer::Gone), "the memory was freed");
            addresses.map(100);
            let answer = sides.exports.answer(&wanted, IMPORTER);
            assert!(matches!(answer, Answer::Gone), "other memory is there");
            sides.imports.supply(OWNER, &wanted, answer);
            assert!(!matches!(sides.reach(&exported, &into.location()), Reach::Mapped(_)));
        } else {
            let mapped = sides.map(&exported, &into.location());
            assert_eq!(sides.imports.open().0, 1, "the old mapping must be closed");
            kept.push((round, mapped));
        }
        addresses.unmap();
        for (round, mapped) in &kept {
            assert!(
                sides.read(mapped.address(0), PIECE).iter().all(|byte| byte == round),
                "wrong data in round {round}"
            );
        }
    }
    let mut told = Vec::new();
    sides.exports.tell_gone(|_, id| {
        told.push(id);
        true
    });
    assert!(told.iter().all(|id| ids.contains(id)) && told.len() >= ids.len() - 1, "{told:?} of {ids:?}");
}

#[test]
fn a_part_of_one_piece_is_exported_with_that_piece_alone() {
    let sides = Sides::new();
    let mine = sides.buffer(BufferKind::VmmPieces, &pattern(3 * PIECE, 5));
    let at = |offset: usize| mine.as_device_ptr().wrapping_add(offset);
    let second = sides.export(at(PIECE), PIECE).unwrap();
    assert_eq!((second.base, second.len), (at(PIECE) as u64, PIECE as u64));
    assert_eq!(sides.export(at(PIECE + 1000), 50), Some(second));
    let mapped = sides.map(&second, &mine.location());
    assert!(sides.read(mapped.address(0), PIECE) == pattern(3 * PIECE, 5)[PIECE..2 * PIECE]);
    assert_ne!(sides.export(at(0), PIECE).unwrap().buffer_id, second.buffer_id);
    assert_eq!(sides.imports.open().0, 1);
}

#[test]
fn adjacent_pieces_are_mapped_side_by_side() {
    let sides = Sides::new();
    let bytes = pattern(5 * PIECE, 5);
    let mine = sides.buffer(BufferKind::VmmPieces, &bytes);
    let at = |offset: usize| mine.as_device_ptr().wrapping_add(offset);
    let exported = sides.export(at(PIECE + 1000), 2 * PIECE).unwrap();
    assert_eq!(
        (exported.kind, exported.base, exported.len),
        (ExportKind::Descriptor, at(PIECE) as u64, 3 * PIECE as u64)
    );
    let mapped = sides.map(&exported, &mine.location());
    assert!(sides.read(mapped.address(0), 3 * PIECE) == bytes[PIECE..4 * PIECE]);
    let written = pattern(2000, 6);
    // SAFETY: within the mapping, over a border, and nobody else touches it.
    unsafe { sides.devices.copy(mapped.address(PIECE as u64 - 1000), written.as_ptr(), 2000) }.unwrap();
    let mut now = vec![0; 2000];
    mine.copy_to_host(2 * PIECE - 1000, &mut now).unwrap();
    assert!(now == written, "the owner's own memory");
    // A buffer within the run has the run's number. A buffer in one piece or beyond the run has not.
    assert_eq!(sides.export(at(2 * PIECE - 1), 2), Some(exported));
    assert!(matches!(sides.reach(&exported, &mine.location()), Reach::Mapped(_)));
    let whole = sides.export(at(0), 5 * PIECE).unwrap();
    assert_ne!(whole.buffer_id, exported.buffer_id);
    assert_ne!(sides.export(at(2 * PIECE), 2).unwrap().buffer_id, exported.buffer_id);
    // All of them exist at the same time.
    sides.map(&whole, &mine.location());
    assert!(matches!(sides.reach(&exported, &mine.location()), Reach::Mapped(_)), "they overlap");
    assert_eq!(sides.imports.open(), (2, 8 * PIECE as u64));
    drop(mine);
    let mut told = Vec::new();
    sides.exports.tell_gone(|_, id| {
        told.push(id);
        true
    });
    assert!(told.contains(&exported.buffer_id) && told.contains(&whole.buffer_id), "{told:?}");
    for id in told {
        sides.imports.forget(OWNER, id);
    }
    assert_eq!(sides.imports.open(), (0, 0));
}

#[test]
fn a_piece_that_is_mapped_anew_is_never_reached_by_an_old_run() {
    let (app, sides) = (app(), Sides::new());
    app.use_device(0);
    let into = sides.buffer(BufferKind::Device, &[0; 8]);
    let addresses = Addresses::reserve(&app, 4 * PIECE);
    let part = |number: usize| addresses.part(number * PIECE, PIECE);
    for number in 0..4 {
        part(number).map(number as u8);
    }
    let at = |number: usize| std::ptr::with_exposed_provenance::<u8>(addresses.base as usize + number * PIECE);
    let first = sides.export(at(0), 4 * PIECE).unwrap();
    let old = sides.map(&first, &into.location());
    let seen = |mapped: &Mapped, from: usize, count: usize| -> Vec<u8> {
        let bytes = sides.read(mapped.address((from * PIECE) as u64), count * PIECE);
        bytes
            .chunks(PIECE)
            .map(|piece| piece.iter().fold(piece[0], |all, byte| if *byte == all { all } else { 99 }))
            .collect()
    };
    assert_eq!(seen(&old, 0, 4), [0, 1, 2, 3]);
    part(2).unmap();
    assert_eq!(sides.export(at(0), 4 * PIECE), None, "a part of the memory is missing");
    // The ends still exist, and the same mapping serves them until the freed piece is found.
    assert_eq!(sides.export(at(0), PIECE + 1).unwrap().buffer_id, first.buffer_id);
    part(2).map(7);
    let second = sides.export(at(0), 4 * PIECE).unwrap();
    assert_ne!(second.buffer_id, first.buffer_id);
    let wanted = DescriptorRequest::of(&first);
    assert!(matches!(sides.exports.answer(&wanted, IMPORTER), Answer::Gone), "a part of the run was freed");
    let new = sides.map(&second, &into.location());
    assert_eq!((seen(&new, 0, 4), seen(&old, 0, 4)), (vec![0, 1, 7, 3], vec![0, 1, 2, 3]));
    assert_eq!(sides.imports.open().0, 1, "the old mapping must be closed");
    assert_eq!(sides.exports.gone(IMPORTER), Some(first.buffer_id));
    // The memory is freed while the request is in flight.
    let third = sides.export(at(1), 2 * PIECE).unwrap();
    assert_eq!(third, second, "the buffer is a part of a known run");
    let also = sides.imports_of_another_peer(&second, &into.location());
    part(3).unmap();
    assert!(matches!(sides.exports.answer(&also, IMPORTER), Answer::Gone));
    for number in 0..3 {
        part(number).unmap();
    }
}

#[test]
fn unexportable_runs_have_no_export_and_one_warning() {
    isolated("unexportable_runs_have_no_export_and_one_warning", &[], || {
        let log = collect_log();
        let (app, sides) = (app(), Sides::new());
        app.use_device(0);
        let about = |line: &&String| line.contains("through the host");
        let said = |level| log.lock().unwrap().iter().filter(about).filter(|line| line.starts_with(level)).count();
        let many = sides.buffer(BufferKind::VmmPieces, &vec![0; (MOST_PIECES + 1) * PIECE]);
        let last = many.as_device_ptr().wrapping_add(PIECE);
        for _ in 0..3 {
            assert_eq!(sides.export(many.as_device_ptr(), many.len()), None);
            assert!(sides.export(last, MOST_PIECES * PIECE).is_some());
        }
        assert_eq!((said("INFO"), said("WARN")), (1, 0), "{log:?}");
        let addresses = Addresses::reserve(&app, 2 * PIECE);
        let (shared, private) = (addresses.part(0, PIECE), addresses.part(PIECE, PIECE));
        let at = shared.map(1);
        private.map_of(2, [1, 1, 0, 0]);
        for _ in 0..3 {
            assert_eq!(sides.export(at, 2 * PIECE), None);
            assert!(sides.export(at, PIECE).is_some());
        }
        private.unmap();
        if app.device_count() > 1 {
            private.map_of(2, [0x1_0000_0001, 1 | 1 << 32, 0, 0]);
            assert_eq!(sides.export(at, 2 * PIECE), None, "on two devices");
            private.unmap();
        }
        assert_eq!((said("INFO"), said("WARN")), (1, 1), "{log:?}");
        private.map(3);
        assert!(sides.export(at, 2 * PIECE).is_some());
        private.unmap();
        shared.unmap();
    });
}

#[test]
fn descriptors_are_as_many_as_before() {
    isolated("descriptors_are_as_many_as_before", &[], || {
        let sides = Sides::new();
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut before = 0;
        for round in 0..100 {
            let (kind, len) = if round % 2 == 0 { (BufferKind::Vmm, LEN) } else { (BufferKind::VmmPieces, 2 * PIECE) };
            let mine = sides.buffer(kind, &pattern(len, round));
            let exported = sides.export(mine.as_device_ptr(), len).unwrap();
            let mapped = sides.map(&exported, &mine.location());
            assert!(sides.read(mapped.address(0), len) == pattern(len, round));
            // Memory freed earlier has been found by now.
            sides.exports.tell_gone(|_, gone| {
                sides.imports.forget(OWNER, gone);
                true
            });
            assert!(sides.imports.open().0 <= 2, "mappings of freed memory must be closed");
            match round {
                10 => before = count(),
                99 => assert!(count() <= before + 2, "{} descriptors where there were {before}", count()),
                _ => {}
            }
        }
    });
}

#[test]
fn driver_refusals_cause_one_warning() {
    const TEST: &str = "driver_refusals_cause_one_warning";
    if !on_simulated_driver(TEST) {
        return;
    }
    let faults = ["cuMemExportToShareableHandle:801", "cuMemImportFromShareableHandle:304", "cuMemSetAccess:101:12"];
    let variables = faults.map(|fault| [("SIM_CUDA_FAIL", fault)]);
    let cases: Vec<_> = variables.iter().map(|variables| &variables[..]).collect();
    isolated_each(TEST, &cases, |case| {
        let log = collect_log();
        let sides = Sides::new();
        for round in 0..6 {
            let mine = sides.buffer(BufferKind::Vmm, &pattern(LEN, 1));
            let exported = sides.export(mine.as_device_ptr(), LEN).unwrap();
            if sides.imports.refuses(OWNER, ExportKind::Descriptor) {
                assert!(matches!(sides.reach(&exported, &mine.location()), Reach::Refused));
                continue;
            }
            let wanted = sides.want(&exported, &mine.location());
            let answer = sides.exports.answer(&wanted, IMPORTER);
            assert_eq!(matches!(answer, Answer::Refused), case == 0, "{answer:?}");
            sides.imports.supply(OWNER, &wanted, answer);
            // The third fault affects one call, which the sixth import makes.
            let refused = matches!(sides.reach(&exported, &mine.location()), Reach::Refused);
            assert_eq!(refused, case < 2 || round == 5, "case {case}, round {round}");
        }
        // If the owner refuses one allocation, it may still export others.
        assert_eq!(sides.imports.refuses(OWNER, ExportKind::Descriptor), case == 1);
        assert_eq!(sides.imports.given_up(OWNER), case == 1);
        assert!(!sides.imports.refuses(OWNER, ExportKind::Legacy));
        let warnings = log.lock().unwrap().iter().filter(|line| line.starts_with("WARN")).count();
        assert_eq!(warnings, 1, "{log:?}");
    });
}
