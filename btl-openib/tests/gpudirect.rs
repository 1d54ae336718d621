//! Tests GPUDirect RDMA with device memory of the simulated driver. `SIM_CUDA_DIRECT` lets soft-RoCE register it as
//! peer memory. The required kernel module exists only by name.
#![cfg(feature = "cuda")]

mod common;

use std::path::PathBuf;

use cableway_btl::{Access, Error, Flags, Region, Remote, Token};
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, Order};
use common::{Pair, has_device, pair_with, pattern, region, send, transfer, until};
use libloading::os::unix::Library;
use test_nodes::{devices, devices_with, isolated};

const ABLE: Flags = Flags::DEVICE_GET.union(Flags::DEVICE_PUT).union(Flags::DEVICE_DIRECT);
const PEER_MEMORY: &[(&str, &str)] = &[("SIM_CUDA_DIRECT", "peer_memory")];

/// Makes a `/sys` with or without the module.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(module: bool) -> Self {
        let folder = std::env::temp_dir().join(format!("cableway-gpudirect-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(if module { "module/nvidia_peermem" } else { "module" })).unwrap();
        Sysfs(folder)
    }

    fn pair(&self, devices: &Devices, assignments: &[&str]) -> Pair {
        let sysfs = format!("btl_openib_gpudirect_sysfs={}", self.0.display());
        let mut pair = pair_with(devices, &[&[sysfs.as_str()], assignments].concat());
        send(&[&pair.a, &pair.b], &mut *pair.to_b, b"hello", b"");
        send(&[&pair.a, &pair.b], &mut *pair.to_a, b"hello", b"");
        until(&[&pair.a, &pair.b], "they are connected", || pair.a.received() + pair.b.received() == 2);
        pair
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn buffer(devices: &Devices, kind: BufferKind, content: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), kind, content.len()).unwrap();
    buffer.copy_from_host(0, content).unwrap();
    buffer
}

fn content(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to_host(0, &mut bytes).unwrap();
    bytes
}

/// Returns `len` bytes from `first` on, with an idle default stream.
fn part(devices: &Devices, buffer: &DeviceBuffer, first: usize, len: usize) -> Region {
    let address = buffer.as_device_ptr().cast::<u8>().wrapping_add(first);
    let location = devices.classify(address, len);
    until(&[], "the default stream is idle", || devices.ask_default_stream(&location).unwrap());
    Region { address, len, location, order: Order::None }
}

/// Returns the number of calls of the simulated driver.
fn calls(devices: &Devices, function: &std::ffi::CStr) -> i64 {
    // SAFETY: the library of the driver, which stays loaded.
    let library = unsafe { Library::new(&devices.facts().unwrap().drivers[0].path) }.unwrap();
    type CallCount = unsafe extern "C" fn(*const std::ffi::c_char) -> i64;
    // SAFETY: the driver's declaration of the function. The name ends with a zero.
    unsafe { library.get::<CallCount>("simCudaCallCount").unwrap()(function.as_ptr()) }
}

#[test]
fn get_and_put_move_device_memory() {
    if !has_device() {
        return;
    }
    isolated("get_and_put_move_device_memory", PEER_MEMORY, || {
        let (devices, sysfs) = (devices(), Sysfs::new(true));
        let Pair { a, b, mut to_b, mut to_a } = sysfs.pair(&devices, &["btl_openib_gpudirect_limit=5M"]);
        let nodes = [&a, &b];
        let link = to_b.capabilities();
        assert!(link.flags.contains(ABLE) && !link.flags.contains(Flags::DEVICE_TO_DEVICE));
        assert_eq!((link.device_min_rdma_size, link.device_max_rdma_size), (1, 5 << 20));
        assert!(to_b.notes()[0].contains("by peer memory (nvidia_peermem)"), "{:?}", to_b.notes());
        let mut token = 0;
        for len in [1, 7, 4095, 4096, 4097, 65_535, 65_537, 1 << 20, (3 << 20) + 5] {
            let before = calls(&devices, c"cuFlushGPUDirectRDMAWrites");
            let (mine, theirs) = (pattern(len + 20, 1), pattern(len + 20, 2));
            let here = buffer(&devices, BufferKind::Device, &mine);
            let there = buffer(&devices, BufferKind::Device, &theirs);
            // Get, from device to device and to host memory.
            // SAFETY: the memory outlives the registration, and no other code accesses it.
            let registered = unsafe { to_a.register(part(&devices, &there, 3, len), Access::RemoteRead) };
            let registration = registered.unwrap().unwrap();
            let mut host = vec![0; len];
            for into_host in [false, true] {
                token += 1;
                let local = if into_host { region(&mut host) } else { part(&devices, &here, 9, len) };
                let handle = *registration.handle();
                // SAFETY: as above.
                transfer(&nodes, &a, token, |token| unsafe { to_b.get(&local.into(), &Remote::at(&handle, 0), token) });
            }
            drop(registration);
            let mut expected = mine;
            expected[9..9 + len].copy_from_slice(&theirs[3..3 + len]);
            assert!(content(&here) == expected && host == theirs[3..3 + len], "get of {len} bytes");
            // Only registrations of device memory count.
            assert_eq!(calls(&devices, c"cuFlushGPUDirectRDMAWrites") - before, 1);

            // Put, from device to device and from host memory.
            for from_host in [false, true] {
                token += 1;
                // SAFETY: as above.
                let registered = unsafe { to_a.register(part(&devices, &there, 5, len), Access::RemoteWrite) };
                let registration = registered.unwrap().unwrap();
                let mut source = pattern(len, token);
                let local = if from_host { region(&mut source) } else { part(&devices, &here, 9, len) };
                let handle = *registration.handle();
                // SAFETY: as above.
                transfer(&nodes, &a, token, |token| unsafe { to_b.put(&local.into(), &Remote::at(&handle, 0), token) });
                send(&nodes, &mut *to_b, b"stored", b"");
                let received = b.received();
                until(&nodes, "the message arrives", || b.received() > received);
                drop(registration);
                let bytes = if from_host { source } else { expected[9..9 + len].to_vec() };
                assert!(content(&there)[5..5 + len] == bytes, "put of {len} bytes");
            }
            // One for each registration that was written.
            assert_eq!(calls(&devices, c"cuFlushGPUDirectRDMAWrites") - before, 3);
        }
        assert!(a.seen.completed.lock().iter().all(|(_, result)| result.is_ok()));
        assert_eq!((a.failures(), b.failures()), (0, 0));
    });
}

/// A freed and reallocated address is different memory. A stale registration would move the old pages, which the
/// simulated driver never reuses.
#[test]
fn a_new_allocation_is_registered_again() {
    if !has_device() {
        return;
    }
    isolated("a_new_allocation_is_registered_again", PEER_MEMORY, || {
        // Only registrations set the attribute that is counted, if messages ask for the order each time.
        let devices = devices_with(&["costs=default", "default_stream_order=legacy"]);
        let sysfs = Sysfs::new(true);
        for cache in ["1G", "100K", "0"] {
            let set = format!("btl_openib_registration_cache={cache}");
            let Pair { a, b, mut to_b, mut to_a } = sysfs.pair(&devices, &[&set]);
            let nodes = [&a, &b];
            let len = 70_000;
            let (mut addresses, mut token) = (Vec::new(), 0);
            for round in 0..12 {
                let bytes = pattern(len, round);
                let source = buffer(&devices, BufferKind::Device, &bytes);
                let target = buffer(&devices, BufferKind::Device, &vec![0; len]);
                addresses.extend([source.as_device_ptr() as usize, target.as_device_ptr() as usize]);
                let before = calls(&devices, c"cuPointerSetAttribute");
                for again in 0..3 {
                    token += 1;
                    // SAFETY: the memory outlives the registration, and no other code accesses it.
                    let registered = unsafe { to_a.register(part(&devices, &source, 0, len), Access::RemoteRead) };
                    let registration = registered.unwrap().unwrap();
                    let (local, handle) = (part(&devices, &target, 0, len), *registration.handle());
                    // SAFETY: as above.
                    transfer(&nodes, &a, token, |token| unsafe {
                        to_b.get(&local.into(), &Remote::at(&handle, 0), token)
                    });
                    assert!(content(&target) == bytes, "round {round}, time {again}, {cache} kept");
                }
                let registered = calls(&devices, c"cuPointerSetAttribute") - before;
                assert_eq!(registered, if cache == "0" { 6 } else { 2 }, "registrations of two allocations");
            }
            addresses.sort_unstable();
            addresses.dedup();
            assert!(addresses.len() < 24, "no address was reused, so this tests nothing");
        }
    });
}

/// The driver exports a file that is no dma-buf. The device refuses it, and would refuse a real one.
#[test]
fn peer_memory_is_tried_after_dma_buf_fails() {
    if !has_device() {
        return;
    }
    let both: &[(&str, &str)] = &[("SIM_CUDA_DIRECT", "dma_buf,peer_memory")];
    isolated("peer_memory_is_tried_after_dma_buf_fails", both, || {
        let devices = devices();
        let memory = buffer(&devices, BufferKind::Device, &[1; 10_000]);
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        for (module, wanted, works) in
            [(true, "auto", true), (true, "dmabuf", false), (false, "auto", false), (true, "peer_memory", true)]
        {
            let sysfs = Sysfs::new(module);
            let Pair { a: _a, b: _b, mut to_b, to_a: _to_a } =
                sysfs.pair(&devices, &[&format!("btl_openib_gpudirect={wanted}")]);
            assert!(to_b.capabilities().flags.contains(ABLE), "the failure is unknown before the first attempt");
            let open = descriptors();
            let asked = calls(&devices, c"cuMemGetHandleForAddressRange");
            for _ in 0..3 {
                // SAFETY: the memory outlives the registration, and no other code accesses it.
                let made = unsafe { to_b.register(part(&devices, &memory, 1, 9_000), Access::RemoteRead) }.unwrap();
                assert_eq!(made.is_some(), works, "{wanted}, with the module: {module}");
            }
            assert_eq!(descriptors(), open);
            let asked = calls(&devices, c"cuMemGetHandleForAddressRange") - asked;
            assert_eq!(asked, i64::from(wanted != "peer_memory"), "a failed method must not be tried again");
            assert_eq!(to_b.capabilities().flags.intersects(ABLE), works);
            let notes = to_b.notes().concat();
            assert!(notes.contains(if works { "by peer memory" } else { "host buffers: by dma-buf: " }), "{notes}");
        }
    });
}

#[test]
fn some_memory_cannot_be_reached_and_some_must_not() {
    if !has_device() {
        return;
    }
    isolated("some_memory_cannot_be_reached_and_some_must_not", PEER_MEMORY, || {
        let (devices, sysfs) = (devices(), Sysfs::new(true));
        {
            let off = sysfs.pair(&devices, &["btl_openib_gpudirect=off"]);
            assert!(!off.to_b.capabilities().flags.intersects(ABLE));
        }
        let Pair { a, b, mut to_b, mut to_a } = sysfs.pair(&devices, &[]);
        let mut host = vec![1; 10_000];
        // SAFETY: the memory outlives the registration, and no other code accesses it.
        let registration = unsafe { to_a.register(region(&mut host), Access::RemoteRead) }.unwrap().unwrap();
        for kind in [BufferKind::Managed, BufferKind::Pool, BufferKind::Vmm] {
            let memory = buffer(&devices, kind, &[0; 10_000]);
            for _ in 0..2 {
                // SAFETY: as above.
                let made = unsafe { to_b.register(part(&devices, &memory, 0, 10_000), Access::RemoteRead) };
                assert!(made.unwrap().is_none(), "{kind:?}");
                let local = part(&devices, &memory, 0, 10_000);
                // SAFETY: as above.
                let refused = unsafe { to_b.get(&local.into(), &Remote::at(registration.handle(), 0), Token(1)) };
                assert!(matches!(refused, Err(Error::Unavailable { .. })), "{kind:?}: {refused:?}");
            }
        }
        assert!(to_b.capabilities().flags.contains(ABLE), "other memory must stay usable");
        let memory = buffer(&devices, BufferKind::Device, &[0; 10_000]);
        let local = part(&devices, &memory, 0, 10_000);
        // SAFETY: as above.
        transfer(&[&a, &b], &a, 2, |token| unsafe {
            to_b.get(&local.into(), &Remote::at(registration.handle(), 0), token)
        });
        assert!(content(&memory) == host);
    });
}

/// On a platform where the visibility of the NIC's writes is unknown, the NIC only reads.
#[test]
fn no_write_without_known_visibility() {
    if !has_device() {
        return;
    }
    let unseen: &[(&str, &str)] = &[("SIM_CUDA_DIRECT", "peer_memory,unseen")];
    isolated("no_write_without_known_visibility", unseen, || {
        let (devices, sysfs) = (devices(), Sysfs::new(true));
        let Pair { a, b, mut to_b, mut to_a } = sysfs.pair(&devices, &[]);
        let bytes = pattern(10_000, 1);
        let memory = buffer(&devices, BufferKind::Device, &bytes);
        let all = || part(&devices, &memory, 0, 10_000);
        // SAFETY: the memory outlives the registrations, and no other code accesses it.
        assert!(unsafe { to_a.register(all(), Access::RemoteWrite) }.unwrap().is_none());
        // SAFETY: as above.
        let registration = unsafe { to_a.register(all(), Access::RemoteRead) }.unwrap().unwrap();
        // SAFETY: as above.
        let refused = unsafe { to_b.get(&all().into(), &Remote::at(registration.handle(), 0), Token(1)) };
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let mut host = vec![0; 10_000];
        // SAFETY: as above.
        transfer(&[&a, &b], &a, 2, |token| unsafe {
            to_b.get(&region(&mut host).into(), &Remote::at(registration.handle(), 0), token)
        });
        assert!(host == bytes);
    });
}
