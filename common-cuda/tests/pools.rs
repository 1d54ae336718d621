//! Memory of shareable pools: the pool is passed by file descriptor, and an allocation is mapped for one message at a
//! time.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use cableway_base::Parameters;
use cableway_common_cuda::{
    Answer, BufferKind, DescriptorRequest, DeviceBuffer, DeviceIndex, Devices, ExportKind, Exported, Exports, Imports,
    Location, Mapped, PieceDescriptor, Reach,
};
use common::{App, app, devices, isolated, pattern};

const LEN: usize = 3 << 20;
/// The minimum size of exports of pool memory.
const SIZE: usize = 1 << 20;
/// The ranks of the importer and the owner.
const IMPORTER: u32 = 1;
const OWNER: u32 = 7;

/// Checks whether the driver shares pools. If not, prints why the test is skipped.
fn shared(devices: &Devices, test: &str) -> bool {
    match DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::PoolShared, LEN) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped {test}: the driver has no shareable pools: {error}");
            false
        }
    }
}

fn buffer(devices: &Devices, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::PoolShared, bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
    buffer
}

fn export(exports: &Exports, buffer: &DeviceBuffer) -> Option<Exported> {
    exports.export(&buffer.location(), buffer.as_device_ptr(), buffer.len(), IMPORTER)
}

#[test]
fn pool_memory_is_exported_from_a_minimum_size_on() {
    let devices = devices();
    if !shared(&devices, "pool_memory_is_exported_from_a_minimum_size_on") {
        return;
    }
    let exports = Exports::new(&devices, 10).with_pools(SIZE);
    let mine = buffer(&devices, &pattern(LEN, 1));
    let exported = export(&exports, &mine).unwrap();
    assert_eq!((exported.kind, exported.base), (ExportKind::Pool, mine.as_device_ptr() as u64));
    assert_eq!((exported.len, exported.buffer_id), (LEN as u64, mine.location().buffer_id));
    assert!(exported.pool != 0 && exported.handle != [0; 64], "{exported:?}");
    let part = |len| exports.export(&mine.location(), mine.as_device_ptr().wrapping_add(10), len, IMPORTER);
    assert_eq!((part(SIZE), part(SIZE - 1), part(LEN)), (Some(exported), None, None));
    assert_eq!(
        export(&Exports::new(&devices, 10), &mine),
        None,
        "pool memory must not be exported without a minimum size"
    );
    let others = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Pool, LEN).unwrap();
    assert_eq!(export(&exports, &others), None, "the default pool cannot be shared");
    let wanted = DescriptorRequest::of(&exported);
    assert!(matches!(exports.answer(&wanted, IMPORTER), Answer::Descriptors(given) if given.len() == 1));
    assert!(
        matches!(exports.answer(&wanted, IMPORTER + 1), Answer::Gone),
        "a process without an export must get nothing"
    );
    let wrong = DescriptorRequest { buffer_id: wanted.buffer_id + 1, ..wanted };
    assert!(matches!(exports.answer(&wrong, IMPORTER), Answer::Gone));
    exports.forget_peer(IMPORTER);
    assert!(matches!(exports.answer(&wanted, IMPORTER), Answer::Gone), "a forgotten peer must get nothing");
}

#[test]
fn a_pool_keeps_its_number_while_it_has_allocations() {
    // The only allocation of the pool.
    isolated("a_pool_keeps_its_number_while_it_has_allocations", &[], || {
        let devices = devices();
        if !shared(&devices, "a_pool_keeps_its_number_while_it_has_allocations") {
            return;
        }
        let exports = Exports::new(&devices, 10).with_pools(SIZE);
        let make = |seed| {
            let made = buffer(&devices, &pattern(LEN, seed));
            let exported = export(&exports, &made).unwrap();
            (made, exported)
        };
        let ((first, of_first), (second, of_second)) = (make(1), make(2));
        assert_eq!(of_first.pool, of_second.pool);
        assert_ne!(of_first.buffer_id, of_second.buffer_id);
        drop(first);
        let (third, of_third) = make(3);
        assert_eq!(of_third.pool, of_second.pool, "the second allocation exists");
        drop(second);
        exports.tell_gone(|_, _| panic!("the third allocation exists"));
        drop(third);
        let mut gone = Vec::new();
        exports.tell_gone(|peer, id| {
            gone.push((peer, id));
            true
        });
        assert_eq!(
            gone,
            [(IMPORTER, DescriptorRequest::of(&of_third).buffer_id)],
            "importers keep no mapping of pool memory"
        );
        assert!(matches!(exports.answer(&DescriptorRequest::of(&of_third), IMPORTER), Answer::Gone));
        let (_fourth, of_fourth) = make(4);
        assert_ne!(of_fourth.pool, of_third.pool);
    });
}

/// Creates a shareable pool, allocates memory in it, and passes both on.
fn in_pool_of_its_own(app: &App, mut with: impl FnMut(usize, *mut u8)) {
    // `CUmemPoolProps`: pinned, shared by descriptor, on device 0.
    let mut properties = [0_u64; 11];
    properties[..2].copy_from_slice(&[0x1_0000_0001, 1]);
    let (mut pool, mut address) = (0, 0);
    app.cuMemPoolCreate(&raw mut pool, properties.as_ptr()).unwrap();
    app.cuMemAllocFromPoolAsync(&raw mut address, LEN, pool, 0).unwrap();
    app.cuCtxSynchronize().unwrap();
    with(pool, std::ptr::with_exposed_provenance_mut(address as usize));
    app.cuMemFreeAsync(address, 0).unwrap();
    app.cuCtxSynchronize().unwrap();
    app.cuMemPoolDestroy(pool).unwrap();
}

#[test]
fn a_reused_pool_handle_gets_a_new_number() {
    let (app, devices) = (app(), devices());
    if !shared(&devices, "a_reused_pool_handle_gets_a_new_number") {
        return;
    }
    app.use_device(0);
    let exports = Exports::new(&devices, 100).with_pools(SIZE);
    let (mut numbers, mut handles) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        in_pool_of_its_own(&app, |pool, address| {
            let at = devices.classify(address, LEN);
            let exported = exports.export(&at, address, LEN, IMPORTER).unwrap();
            assert!(!numbers.contains(&exported.pool), "handles were {handles:x?}, now {pool:x}");
            numbers.push(exported.pool);
            handles.push(pool);
        });
    }
    let all = handles.len();
    handles.sort_unstable();
    handles.dedup();
    // Check that handles were really reused.
    eprintln!("{} of {all} pools had the handle of another", all - handles.len());
}

/// Formats an export for the other process of a test.
fn to_text(exported: &Exported) -> String {
    let numbers = [exported.base, exported.len, exported.buffer_id, exported.pool].map(u64::to_le_bytes).concat();
    let bytes = [&exported.device[..], &numbers, &exported.handle].concat();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_text(text: &str) -> Exported {
    let bytes: Vec<u8> =
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    Exported {
        kind: ExportKind::Pool,
        device: bytes[..16].try_into().unwrap(),
        base: number(16),
        len: number(24),
        buffer_id: number(32),
        pool: number(40),
        handle: bytes[48..].try_into().unwrap(),
    }
}

const OTHER: &str = "CABLEWAY_TEST_OTHER_PROCESS";

/// The importing process.
struct Importer {
    devices: Devices,
    imports: Imports,
    into: Location,
    descriptor: Option<OwnedFd>,
}

impl Importer {
    fn map(&mut self, exported: &Exported) -> Mapped {
        let reach = |importer: &Importer| importer.imports.reach(OWNER, exported, &importer.into, LEN as u64).unwrap();
        if let Some(descriptor) = self.descriptor.take() {
            assert!(matches!(reach(self), Reach::NotYet), "met once");
            let Reach::NeedsDescriptor(wanted) = reach(self) else { panic!("the first use must request a descriptor") };
            assert!(matches!(reach(self), Reach::NotYet), "a descriptor must be requested only once");
            self.imports.supply(OWNER, &wanted, Answer::Descriptors(vec![PieceDescriptor { descriptor, len: 0 }]));
        }
        let Reach::Mapped(mapped) = reach(self) else { panic!("not mapped") };
        mapped
    }

    fn read(&self, mapped: &Mapped) -> Vec<u8> {
        let mut seen = vec![0; LEN];
        // SAFETY: mapped for so long.
        unsafe { self.devices.copy(seen.as_mut_ptr(), mapped.address(0), LEN) }.unwrap();
        seen
    }
}

/// A program may free the memory of a message as soon as the message is complete. The next allocation is often at the
/// same address.
#[test]
fn pool_memory_is_mapped_for_one_message_at_a_time() {
    const TEST: &str = "pool_memory_is_mapped_for_one_message_at_a_time";
    const ROUNDS: u64 = 12;
    let devices = devices();
    if !shared(&devices, TEST) {
        return;
    }
    if let Ok(descriptor) = std::env::var(OTHER) {
        // SAFETY: the descriptor that was left open for this process.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor.parse().unwrap()) };
        let into = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, 8).unwrap().location();
        let imports = Imports::new(&devices, &Parameters::default());
        let mut importer = Importer { devices, imports, into, descriptor: Some(descriptor) };
        let (simulated, app) = (app().simulated(), app());
        let mut spent = Vec::new();
        for (round, line) in std::io::stdin().lines().enumerate() {
            let exported = from_text(&line.unwrap());
            let start = Instant::now();
            let mapped = importer.map(&exported);
            let took = start.elapsed();
            let again = importer.map(&exported);
            assert_eq!(mapped.address(5), again.address(5), "used twice, imported once");
            assert!(importer.read(&mapped) == pattern(LEN, round as u64), "in round {round}");
            drop(mapped);
            let written = pattern(LEN, 100 + round as u64);
            // SAFETY: within the mapping, and nobody else touches it.
            unsafe { importer.devices.copy(again.address(0), written.as_ptr(), LEN) }.unwrap();
            let start = Instant::now();
            drop(again);
            spent.push((took, start.elapsed()));
            if simulated {
                assert_eq!(app.calls(c"cuMemPoolImportPointer"), Some(round as i64 + 1));
                assert_eq!(app.calls(c"cuMemPoolImportFromShareableHandle"), Some(1));
            }
            assert_eq!(importer.imports.open(), (1, 0), "the pool");
            println!("\nDONE");
        }
        importer.imports.forget_peer(OWNER);
        assert_eq!(importer.imports.open(), (0, 0));
        // The minimum size of exports depends on this time.
        eprintln!("to map and to unmap, the first time with the pool: {spent:?}");
        return;
    }
    let exports = Exports::new(&devices, 10).with_pools(SIZE);
    // An allocation that exists during the whole test.
    let kept = buffer(&devices, &pattern(LEN, 1000));
    let wanted = DescriptorRequest::of(&export(&exports, &kept).unwrap());
    let Answer::Descriptors(mut given) = exports.answer(&wanted, IMPORTER) else { panic!("not given") };
    let descriptor = given.pop().unwrap().descriptor;
    // SAFETY: a copy that the other process inherits, and that ends with this one.
    let inherited = unsafe { libc::dup(descriptor.as_raw_fd()) };
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
        .env(OTHER, inherited.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (other.stdin.take().unwrap(), BufReader::new(other.stdout.take().unwrap()));
    // SAFETY: the copy made above.
    drop(unsafe { OwnedFd::from_raw_fd(inherited) });
    let (mut ids, mut places) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mine = buffer(&devices, &pattern(LEN, round));
        let exported = export(&exports, &mine).unwrap();
        assert!(!ids.contains(&exported.buffer_id) && DescriptorRequest::of(&exported) == wanted);
        ids.push(exported.buffer_id);
        places.push(exported.base);
        writeln!(to, "{}", to_text(&exported)).unwrap();
        let mut line = String::new();
        while line != "DONE\n" {
            line.clear();
            assert_ne!(from.read_line(&mut line).unwrap(), 0, "the other process ended");
        }
        let mut now = vec![0; LEN];
        mine.copy_to_host(0, &mut now).unwrap();
        assert!(now == pattern(LEN, 100 + round), "what the other process wrote in round {round}");
    }
    places.sort_unstable();
    places.dedup();
    eprintln!("{} allocations were at {} addresses", ids.len(), places.len());
    drop(to);
    assert!(other.wait().unwrap().success());
    let mut now = vec![0; LEN];
    kept.copy_to_host(0, &mut now).unwrap();
    assert!(now == pattern(LEN, 1000), "this memory must be unchanged");
}

#[test]
fn descriptors_are_as_many_as_before() {
    isolated("descriptors_are_as_many_as_before", &[], || {
        let devices = devices();
        if !shared(&devices, "descriptors_are_as_many_as_before") {
            return;
        }
        let exports = Exports::new(&devices, 4).with_pools(SIZE);
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut before = 0;
        for round in 0..60 {
            // The pool has no other allocation, so each time it counts as a new pool.
            let mine = buffer(&devices, &pattern(LEN, round));
            let exported = export(&exports, &mine).unwrap();
            let Answer::Descriptors(given) = exports.answer(&DescriptorRequest::of(&exported), IMPORTER) else {
                panic!("not given")
            };
            drop(given);
            match round {
                10 => before = count(),
                59 => assert!(count() <= before + 2, "{} descriptors where there were {before}", count()),
                _ => {}
            }
        }
    });
}
