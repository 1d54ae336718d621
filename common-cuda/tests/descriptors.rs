//! Memory of virtual memory management, passed by file descriptor. The driver lets a process import what it exported
//! itself, so that one process is both sides here.

mod common;

use cableway_base::Parameters;
use cableway_common_cuda::{
    Answer, BufferKind, DeviceBuffer, DeviceIndex, Devices, ExportKind, Exported, Exports, Imports, Location, Mapped,
    Reach, Wanted,
};
use common::{App, app, collect_log, devices, isolated, isolated_each, on_simulated_driver, pattern};

const LEN: usize = 100_000;
/// What sizes of physical memory are multiples of, on the devices there are.
const PIECE: usize = 2 << 20;
/// Who imports, to the owner; and who owns, to the importer.
const IMPORTER: u32 = 1;
const OWNER: u32 = 7;

struct Sides {
    devices: Devices,
    exports: Exports,
    imports: Imports,
}

impl Sides {
    fn new() -> Self {
        let devices = devices();
        let exports = Exports::new(&devices, 10);
        let imports = Imports::new(&devices, &Parameters::default());
        Sides { devices, exports, imports }
    }

    fn buffer(&self, kind: BufferKind, bytes: &[u8]) -> DeviceBuffer {
        let mut buffer = DeviceBuffer::new(&self.devices, DeviceIndex(0), kind, bytes.len()).unwrap();
        buffer.copy_from_host(0, bytes).unwrap();
        self.devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
        buffer
    }

    fn export(&self, address: *const u8, len: usize) -> Option<Exported> {
        self.exports.export(&self.devices.classify(address, len), address, len, IMPORTER)
    }

    fn reach(&self, exported: &Exported, into: &Location) -> Reach {
        self.imports.reach(OWNER, exported, into, 8).unwrap()
    }

    /// Meets it until its owner is to be asked.
    fn want(&self, exported: &Exported, into: &Location) -> Wanted {
        assert!(matches!(self.reach(exported, into), Reach::NotYet), "met once");
        let Reach::Ask(wanted) = self.reach(exported, into) else { panic!("not asked for") };
        assert!(matches!(self.reach(exported, into), Reach::NotYet), "asked for once only");
        wanted
    }

    fn map(&self, exported: &Exported, into: &Location) -> Mapped {
        let wanted = self.want(exported, into);
        self.imports.supply(OWNER, &wanted, self.exports.answer(&wanted, IMPORTER));
        let Reach::Mapped(mapped) = self.reach(exported, into) else { panic!("not mapped") };
        mapped
    }

    fn read(&self, at: *const u8, len: usize) -> Vec<u8> {
        let mut seen = vec![0; len];
        // SAFETY: callers pass memory that is mapped for so long.
        unsafe { self.devices.copy(seen.as_mut_ptr(), at, len) }.unwrap();
        seen
    }
}

#[test]
fn it_is_mapped_once_its_owner_has_given_a_descriptor() {
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
    assert!(sides.read(mapped.address(5000), 1000) == written, "as long as somebody uses the mapping");
}

#[test]
fn only_what_was_told_is_given() {
    let sides = Sides::new();
    let (mine, legacy) = (sides.buffer(BufferKind::Vmm, &[1; LEN]), sides.buffer(BufferKind::Device, &[1; LEN]));
    let exported = sides.export(mine.as_device_ptr(), LEN).unwrap();
    let wanted = Wanted::of(&exported);
    assert!(matches!(sides.exports.answer(&wanted, IMPORTER), Answer::Given(_)));
    assert!(matches!(sides.exports.answer(&wanted, IMPORTER + 1), Answer::Gone), "was told of nothing");
    for wrong in [
        Wanted { buffer_id: wanted.buffer_id + 1, ..wanted },
        Wanted { base: wanted.base + 1, ..wanted },
        Wanted { len: wanted.len + 1, ..wanted },
        Wanted::of(&sides.export(legacy.as_device_ptr(), LEN).unwrap()),
    ] {
        assert!(matches!(sides.exports.answer(&wrong, IMPORTER), Answer::Gone), "{wrong:?}");
    }
    sides.exports.forget_peer(IMPORTER);
    assert!(matches!(sides.exports.answer(&wanted, IMPORTER), Answer::Gone), "is told anew");
}

#[test]
fn who_was_told_hears_of_what_is_freed() {
    let sides = Sides::new();
    let (first, second) = (sides.buffer(BufferKind::Vmm, &[1; LEN]), sides.buffer(BufferKind::Device, &[1; LEN]));
    let ids = [&first, &second].map(|buffer| sides.export(buffer.as_device_ptr(), LEN).unwrap().buffer_id);
    sides.exports.tell_gone(|_, id| panic!("{id} is still there"));
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
    assert_eq!(said, [(IMPORTER, ids[0]); 2], "until it was heard");
    drop(second);
    assert_eq!(sides.exports.gone(IMPORTER), None, "not looked for");
    sides.exports.tell_gone(|_, id| id == ids[1]);
    assert_eq!(sides.exports.gone(IMPORTER), None, "heard");
}

/// Addresses that outlive what is mapped there.
struct Addresses<'a> {
    app: &'a App,
    base: u64,
    len: usize,
}

impl<'a> Addresses<'a> {
    fn reserve(app: &'a App, len: usize) -> Self {
        let mut base = 0;
        app.cuMemAddressReserve(&raw mut base, len, 0, 0, 0).unwrap();
        Addresses { app, base, len }
    }

    /// Maps memory that can be shared, and fills it.
    fn map(&self, byte: u8) -> *mut u8 {
        // `CUmemAllocationProp`: pinned, shared by descriptor, on device 0; `CUmemAccessDesc`: of device 0.
        let (properties, access) = ([0x1_0000_0001, 1, 0, 0], [1, 0, 3]);
        let mut handle = 0;
        self.app.cuMemCreate(&raw mut handle, self.len, properties.as_ptr(), 0).unwrap();
        self.app.cuMemMap(self.base, self.len, 0, handle, 0).unwrap();
        self.app.cuMemRelease(handle).unwrap();
        self.app.cuMemSetAccess(self.base, self.len, access.as_ptr(), 1).unwrap();
        self.app.cuMemsetD8(self.base, byte, self.len).unwrap();
        self.app.cuCtxSynchronize().unwrap();
        std::ptr::with_exposed_provenance_mut(self.base as usize)
    }

    fn unmap(&self) {
        self.app.cuMemUnmap(self.base, self.len).unwrap();
    }
}

impl Drop for Addresses<'_> {
    fn drop(&mut self) {
        self.app.cuMemAddressFree(self.base, self.len).unwrap();
    }
}

#[test]
fn what_is_mapped_anew_at_its_address_is_never_taken_for_it() {
    let (app, sides) = (app(), Sides::new());
    app.use_device(0);
    let into = sides.buffer(BufferKind::Device, &[0; 8]);
    let addresses = Addresses::reserve(&app, PIECE);
    let mut ids = Vec::new();
    let mut kept = Vec::new();
    for round in 0..6 {
        let at = addresses.map(round);
        let exported = sides.export(at, PIECE).unwrap();
        assert!(!ids.contains(&exported.buffer_id), "the number of an earlier mapping");
        ids.push(exported.buffer_id);
        if round % 3 == 2 {
            // It goes while its owner is asked.
            let wanted = sides.want(&exported, &into.location());
            addresses.unmap();
            assert!(matches!(sides.exports.answer(&wanted, IMPORTER), Answer::Gone), "nothing is there");
            addresses.map(100);
            let answer = sides.exports.answer(&wanted, IMPORTER);
            assert!(matches!(answer, Answer::Gone), "another is there");
            sides.imports.supply(OWNER, &wanted, answer);
            assert!(!matches!(sides.reach(&exported, &into.location()), Reach::Mapped(_)));
        } else {
            let mapped = sides.map(&exported, &into.location());
            assert_eq!(sides.imports.open().0, 1, "the one before was closed");
            kept.push((round, mapped));
        }
        addresses.unmap();
        for (round, mapped) in &kept {
            assert!(sides.read(mapped.address(0), PIECE).iter().all(|byte| byte == round), "of round {round}");
        }
    }
    let told: Vec<_> = std::iter::from_fn(|| sides.exports.gone(IMPORTER)).collect();
    assert!(told.iter().all(|id| ids.contains(id)) && told.len() >= ids.len() - 1, "{told:?} of {ids:?}");
}

#[test]
fn a_part_of_one_piece_has_an_export_and_what_spans_two_has_none() {
    let sides = Sides::new();
    let mine = sides.buffer(BufferKind::VmmPieces, &pattern(3 * PIECE, 5));
    let at = |offset: usize| mine.as_device_ptr().wrapping_add(offset);
    assert_eq!(sides.export(at(0), 3 * PIECE), None);
    assert_eq!(sides.export(at(PIECE - 1), 2), None);
    let second = sides.export(at(PIECE), PIECE).unwrap();
    assert_eq!((second.base, second.len), (at(PIECE) as u64, PIECE as u64));
    assert_eq!(sides.export(at(PIECE + 1000), 50), Some(second));
    let mapped = sides.map(&second, &mine.location());
    assert!(sides.read(mapped.address(0), PIECE) == pattern(3 * PIECE, 5)[PIECE..2 * PIECE]);
    assert_ne!(sides.export(at(0), PIECE).unwrap().buffer_id, second.buffer_id);
    assert_eq!(sides.imports.open().0, 1);
}

#[test]
fn descriptors_are_as_many_as_before() {
    isolated("descriptors_are_as_many_as_before", &[], || {
        let sides = Sides::new();
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut before = 0;
        for round in 0..100 {
            let mine = sides.buffer(BufferKind::Vmm, &pattern(LEN, round));
            let exported = sides.export(mine.as_device_ptr(), LEN).unwrap();
            let mapped = sides.map(&exported, &mine.location());
            assert!(sides.read(mapped.address(0), LEN) == pattern(LEN, round));
            // What was freed before is known by now.
            while let Some(gone) = sides.exports.gone(IMPORTER) {
                sides.imports.forget(OWNER, gone);
            }
            assert!(sides.imports.open().0 <= 2, "mappings of what is no more");
            match round {
                10 => before = count(),
                99 => assert!(count() <= before + 2, "{} descriptors where there were {before}", count()),
                _ => {}
            }
        }
    });
}

#[test]
fn what_the_driver_refuses_is_refused_with_one_warning() {
    const TEST: &str = "what_the_driver_refuses_is_refused_with_one_warning";
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
            // The third fault is of one call, which the sixth import makes.
            let refused = matches!(sides.reach(&exported, &mine.location()), Reach::Refused);
            assert_eq!(refused, case < 2 || round == 5, "case {case}, round {round}");
        }
        // An owner that refuses one allocation may have others.
        assert_eq!(sides.imports.refuses(OWNER, ExportKind::Descriptor), case == 1);
        assert_eq!(sides.imports.given_up(OWNER), case == 1);
        assert!(!sides.imports.refuses(OWNER, ExportKind::Legacy));
        let warnings = log.lock().unwrap().iter().filter(|line| line.starts_with("WARN")).count();
        assert_eq!(warnings, 1, "{log:?}");
    });
}
