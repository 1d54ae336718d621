//! Tests of the classification of memory.

mod common;

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, Location, MemoryClass};
use common::{app, devices, isolated};

const DEVICE: DeviceIndex = DeviceIndex(0);

#[test]
fn every_kind_of_memory_is_classified() {
    let devices = devices();
    for kind in common::kinds() {
        let buffer = DeviceBuffer::new(&devices, DEVICE, kind, 100_000).unwrap();
        let expected = match kind {
            BufferKind::Pinned => MemoryClass::Pinned,
            BufferKind::Managed => MemoryClass::Managed,
            _ => MemoryClass::Device,
        };
        for offset in [0, 1, 4097, 99_999] {
            let at = devices.classify(buffer.as_device_ptr().wrapping_add(offset), 1);
            assert_eq!(at.class, expected, "{kind:?} at {offset}");
            assert_eq!(at.on_device(), kind != BufferKind::Pinned);
            if at.on_device() {
                assert_eq!(at.device, Some(DEVICE), "{kind:?}");
                assert_ne!(at.buffer_id, 0, "{kind:?}");
            } else {
                assert_eq!((at.device, at.context), (None, 0));
            }
        }
    }
}

#[test]
fn host_memory_is_host_memory() {
    static STATIC: [u8; 4] = [0; 4];
    let devices = devices();
    let large = vec![0_u8; 1 << 20];
    let small = [0_u8; 8];
    for (address, len) in [(large.as_ptr(), large.len()), (small.as_ptr(), 8), (STATIC.as_ptr(), 4)] {
        assert_eq!(devices.classify(address, len), Location::HOST);
    }
    assert_eq!(devices.classify(std::ptr::null(), 8), Location::HOST);
}

#[test]
fn an_empty_buffer_causes_no_query() {
    let devices = devices();
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 64).unwrap();
    assert_eq!(devices.classify(buffer.as_device_ptr(), 0), Location::HOST);
}

#[test]
fn memory_that_the_program_registers_is_pinned() {
    let (app, devices) = (app(), devices());
    app.use_device(0);
    let mut bytes = vec![0_u8; 1 << 20];
    app.cuMemHostRegister(bytes.as_mut_ptr().cast(), bytes.len(), 0).unwrap();
    assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()).class, MemoryClass::Pinned);
    assert!(devices.reaches(bytes.as_ptr(), bytes.len()));
    app.cuMemHostUnregister(bytes.as_mut_ptr().cast()).unwrap();
    assert!(!devices.reaches(bytes.as_ptr(), 1));
    assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()).class, MemoryClass::Host);
}

#[test]
fn a_new_allocation_at_an_old_address_has_a_new_id() {
    let devices = devices();
    for kind in [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm, BufferKind::Managed] {
        let mut ids = Vec::new();
        for _ in 0..20 {
            let buffer = DeviceBuffer::new(&devices, DEVICE, kind, 4 << 20).unwrap();
            ids.push(buffer.location().buffer_id);
        }
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "{kind:?}");
    }
}

#[test]
fn threads_without_a_context_get_the_same_answer() {
    let devices = devices();
    for kind in common::kinds() {
        let buffer = DeviceBuffer::new(&devices, DEVICE, kind, 4096).unwrap();
        let here = buffer.location();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let app = app();
                assert_eq!(app.current(), 0);
                assert_eq!(buffer.location(), here, "{kind:?}");
                assert_eq!(app.current(), 0, "the thread is left as it was");
            });
        });
    }
}

#[test]
fn each_device_has_its_own_memory() {
    let (app, devices) = (app(), devices());
    for index in (0..app.device_count()).map(DeviceIndex) {
        for kind in [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm] {
            let buffer = DeviceBuffer::new(&devices, index, kind, 4096).unwrap();
            assert_eq!(buffer.location().device, Some(index), "{kind:?}");
        }
    }
}

#[test]
fn buffers_that_span_allocations_are_detected() {
    let devices = devices();
    for kind in [BufferKind::Device, BufferKind::Pool, BufferKind::Managed] {
        let buffer = DeviceBuffer::new(&devices, DEVICE, kind, 1 << 20).unwrap();
        let (at, address) = (buffer.location(), buffer.as_device_ptr());
        assert!(devices.one_allocation(&at, address, 1 << 20), "{kind:?}");
        assert!(devices.one_allocation(&at, address.wrapping_add(100), 1), "{kind:?}");
        // Larger than any rounding of sizes.
        assert!(!devices.one_allocation(&at, address, 1 << 40), "{kind:?}");
        assert!(!devices.one_allocation(&at, address.wrapping_add(1), 1 << 40), "{kind:?}");
    }
    let host = [0_u8; 64];
    assert!(devices.one_allocation(&Location::HOST, host.as_ptr(), host.len()));
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 64).unwrap();
    let distance = (buffer.as_device_ptr() as usize).wrapping_sub(host.as_ptr() as usize);
    assert!(!devices.one_allocation(&Location::HOST, host.as_ptr(), distance.wrapping_add(1)));
}

/// The driver is asked for the extent of an allocation once, and for each buffer where it begins.
#[test]
fn a_known_allocation_is_asked_about_once() {
    isolated("a_known_allocation_is_asked_about_once", &[], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let len = 1 << 20;
        let address: *mut u8 = std::ptr::with_exposed_provenance_mut(app.malloc(len) as usize);
        let asked = || app.calls(c"cuPointerGetAttributes").unwrap_or(0);
        // AMD's driver is asked about the last byte, too. A real driver does not count.
        let expected = i64::from(sim_cuda::tested_folder().is_some());
        let amd = sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd;
        let mut before = asked();
        for round in 0..10 {
            let at = devices.classify(address, len);
            assert!(devices.one_allocation(&at, address, len));
            assert!(devices.one_allocation(&at, address.wrapping_add(1), len - 1));
            assert!(!devices.one_allocation(&at, address.wrapping_add(1), len));
            assert!(round == 0 || amd || asked() - before == expected, "{} questions", asked() - before);
            before = asked();
        }
        // The same address with another length.
        app.cuMemFree(address as u64).unwrap();
        let again: *mut u8 = std::ptr::with_exposed_provenance_mut(app.malloc(len / 2) as usize);
        let at = devices.classify(again, len / 2);
        assert!(devices.one_allocation(&at, again, len / 2) && !devices.one_allocation(&at, again, len));
    });
}

/// A program may load its driver long after Cableway, as Python does that imports CuPy after `MPI_Init`.
#[test]
fn a_driver_that_is_loaded_later_is_found() {
    isolated("a_driver_that_is_loaded_later_is_found", &[("CABLEWAY_CUDA_LIBDIR", "")], || {
        let folder = common::folder();
        let log = common::collect_log();
        // As `open` does on a machine with a device.
        let devices = Devices::open_in(None, &common::parameters(&[]));
        let bytes = vec![0_u8; 1 << 20];
        assert!(!devices.present());
        assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()), Location::HOST);
        assert_eq!(log.lock().unwrap().len(), 1, "one line at level info: {log:?}");

        let app = common::App::load(folder.as_deref()).unwrap();
        assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()), Location::HOST);
        assert!(devices.present(), "the driver is loaded");
        if let Some(calls) = app.calls(c"cuInit") {
            assert_eq!(calls, 0, "the program decides whether to initialise the driver");
        }

        app.cuInit(0).unwrap();
        app.use_device(0);
        let address = app.malloc(4096);
        let at = devices.classify(std::ptr::with_exposed_provenance(address as usize), 4096);
        assert_eq!((at.class, at.device), (MemoryClass::Device, Some(DEVICE)));
    });
}

#[test]
fn a_folder_without_a_driver_means_no_driver() {
    isolated(
        "a_folder_without_a_driver_means_no_driver",
        &[("CABLEWAY_CUDA_LIBDIR", "/nonexistent"), ("CABLEWAY_TEST_REAL_DRIVER", "")],
        || {
            let log = common::collect_log();
            let devices = Devices::open(&common::parameters(&[]));
            assert!(!devices.present());
            let bytes = vec![0_u8; 1 << 20];
            assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()), Location::HOST);
            assert!(DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 1).is_err());
            let log = log.lock().unwrap();
            assert_eq!(log.len(), 2, "{log:?}");
            assert!(log[0].starts_with("WARN") && log[0].contains("/nonexistent"), "{log:?}");
            assert!(log[0].contains("cannot open shared object file"), "the loader's own message: {log:?}");
            assert!(log[1].starts_with("INFO") && log[1].contains("no CUDA or HIP driver"), "{log:?}");
        },
    );
}

/// Nothing that a rank does at its start may create an object in the driver.
#[test]
fn classification_creates_no_context() {
    isolated("classification_creates_no_context", &[], || {
        let app = app();
        let devices = Devices::open_in(common::folder().as_deref(), &common::parameters(&[]));
        let mut bytes = vec![0_u8; 1 << 20];
        // SAFETY: the vector outlives the registration.
        let registration = unsafe { devices.register_host(bytes.as_mut_ptr(), bytes.len()) };
        assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()), Location::HOST);
        assert!(!registration.registered());
        for device in 0..app.device_count() {
            assert!(!app.primary_active(device.try_into().unwrap()), "device {device}");
        }
        drop(registration);
        drop(devices);
    });
}

#[test]
fn a_known_allocation_is_queried_for_its_id_alone() {
    isolated("a_known_allocation_is_queried_for_its_id_alone", &[], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let at = |address: u64| devices.classify(std::ptr::with_exposed_provenance(address as usize), 64);
        let asked = |expected: u64, what: &str, address: u64| {
            let before = app.attributes();
            let found = at(address);
            let count = app.attributes().zip(before).map(|(after, before)| after - before);
            assert!(count.is_none_or(|count| count == expected), "{what}: {count:?}");
            found
        };
        let (first, second) = (app.malloc(4096), app.malloc(4096));
        let near = first >> 21 == second >> 21;
        let known = asked(6, "never met", first);
        assert_eq!((known.class, known.device), (MemoryClass::Device, Some(DEVICE)));
        assert_eq!(asked(1, "met", first + 100), known);
        let other = asked(if near { 7 } else { 6 }, "another one", second);
        assert_ne!(other.buffer_id, known.buffer_id);
        for _ in 0..3 {
            assert_eq!(asked(1, "both met", first), known);
            assert_eq!(asked(1, "both met", second), other);
        }
        // A new allocation at the old address is another one.
        app.cuMemFree(first).unwrap();
        assert_ne!(asked(7, "freed", first), known);
        let anew = app.malloc(4096);
        let found = asked(7, "allocated anew", anew);
        if anew == first {
            assert!(found.buffer_id != known.buffer_id && found.class == MemoryClass::Device);
        }
        assert_eq!(asked(1, "met again", anew), found);
    });
}

/// Programs use many arrays in turn, whose lengths are powers of two.
#[test]
fn hundreds_of_allocations_are_known_together() {
    isolated("hundreds_of_allocations_are_known_together", &[], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let arrays: Vec<u64> = (0..300).map(|_| app.malloc(4 << 20)).collect();
        let locate_all = || {
            for &array in &arrays {
                let at = devices.classify(std::ptr::with_exposed_provenance(array as usize), 64);
                assert_eq!(at.device, Some(DEVICE));
            }
        };
        locate_all();
        let before = app.attributes();
        locate_all();
        let asked = app.attributes().zip(before).map(|(after, before)| after - before);
        // One attribute of each, and six of those that share a slot: some eighty, as the simulated driver's ids are random.
        assert!(asked.is_none_or(|asked| (300..=1000).contains(&asked)), "{asked:?} attributes of 300 allocations");
    });
}

#[test]
fn memory_of_an_inactive_primary_context_uses_the_callers_context() {
    isolated("memory_of_an_inactive_primary_context_uses_the_callers_context", &[], || {
        let (app, devices) = (app(), devices());
        let context = app.create_context(0);
        let address = app.malloc(4096);
        let at = devices.classify(std::ptr::with_exposed_provenance(address as usize), 4096);
        assert_eq!(at.class, MemoryClass::Device);
        let mut id = 0;
        app.cuCtxGetId(context, &raw mut id).unwrap();
        assert_eq!(at.context, id);
        assert!(!app.primary_active(0), "the test did not create the primary context");
    });
}

#[test]
fn memory_that_the_driver_cannot_classify_is_not_touched() {
    let test = "memory_that_the_driver_cannot_classify_is_not_touched";
    if !common::on_simulated_driver(test) {
        return;
    }
    // As after a kernel that crashed: every query fails.
    isolated(test, &[("SIM_CUDA_FAIL", "cuPointerGetAttributes:700")], || {
        let devices = devices();
        let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 4096).unwrap();
        assert!(devices.classify(buffer.as_device_ptr(), 4096).on_device());
        let bytes = vec![0_u8; 1 << 20];
        assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()), Location::HOST);
    });
}

#[test]
fn only_memory_whose_location_stays_the_same_is_a_known_allocation() {
    let devices = devices();
    for kind in common::kinds() {
        let buffer = DeviceBuffer::new(&devices, DEVICE, kind, 100_000).unwrap();
        let found = devices.allocation_of(buffer.as_device_ptr(), buffer.len());
        let lasts = kind == BufferKind::Device;
        assert_eq!(buffer.allocation(), found.filter(|_| lasts), "{kind:?}");
        // AMD's driver names the device of memory of pools, too.
        assert!(found.is_some() == lasts || sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd, "{kind:?}");
    }
    assert_eq!(devices.allocation_of([0_u8; 8].as_ptr(), 8), None);
    assert_eq!(devices.allocation_of(std::ptr::null(), 0), None);
}

#[test]
fn an_allocation_is_known_until_many_others_were_used() {
    isolated("an_allocation_is_known_until_many_others_were_used", &[], || {
        let (app, devices) = (app(), devices());
        let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 64).unwrap();
        let (known, at) = (buffer.allocation().unwrap(), buffer.location());
        let before = app.attributes();
        assert_eq!(devices.located(known), Some(at));
        assert_eq!(buffer.allocation(), Some(known));
        assert_eq!(app.attributes(), before, "nothing is asked");
        let mut forgotten = false;
        for _ in 0..3000 {
            let other = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 64).unwrap();
            assert_ne!(other.allocation(), Some(known));
            // Forgotten, it is not taken for another one.
            let found = devices.located(known);
            assert!(found.is_none_or(|found| found == at));
            forgotten |= found.is_none();
        }
        assert!(forgotten);
        // A question finds it again.
        assert_eq!(buffer.location(), at);
        assert_eq!(devices.located(known), Some(at));
    });
}
