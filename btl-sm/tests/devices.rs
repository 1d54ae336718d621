//! Tests device data over the transport, on the simulated driver, or on the real one with
//! `CABLEWAY_TEST_REAL_DRIVER=1`.
#![cfg(feature = "cuda")]

mod common;

use std::cell::RefCell;

use cableway_base::Rank;
use cableway_btl::{
    Access, Btl as _, Error, Flags, FragmentKind, Operation, Received, Region, Remote, Token, Transfer, Upcalls,
};
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Location, MOST_PIECES, MemoryClass};
use common::device::{content, copied, copied_when_mapped, filled, progress, region, registered};
use common::{Pair, pattern, until};
use test_nodes::{devices, devices_with};

#[test]
fn a_device_copies_into_and_out_of_the_same_registered_pages() {
    let devices = devices();
    let mut pair = Pair::with_devices(&[], &devices);
    assert!(pair.to_one.capabilities().flags.contains(Flags::DEVICE_FRAGMENTS));
    pair.one.heard.retain.set(true);
    let buffer = |len| DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, len).unwrap();
    for (round, len) in [100, 4000, 5000, 1 << 20, 64].into_iter().enumerate() {
        let (message, mut got) = (pattern(round, len), vec![0; len]);
        let (source, target) = (buffer(len), buffer(len));
        // SAFETY: both have `len` bytes.
        unsafe { devices.copy(source.as_device_ptr(), message.as_ptr(), len) }.unwrap();

        let mut fragment = None;
        until(&[&pair.zero, &pair.one], "a device fragment is free", || {
            fragment = pair.to_one.alloc(len, FragmentKind::Device).unwrap();
            fragment.is_some()
        });
        let mut fragment = fragment.unwrap();
        // SAFETY: the fragment has room and belongs to this test.
        unsafe { devices.copy(fragment.as_mut_ptr(), source.as_device_ptr(), len) }.unwrap();
        assert_eq!(devices.classify(fragment.as_mut_ptr(), len).class, MemoryClass::Pinned, "on the sender's side");
        pair.to_one.send(fragment, len).unwrap();

        until(&[&pair.zero, &pair.one], "it arrives", || !pair.one.heard.retained.borrow().is_empty());
        let kept = pair.one.heard.retained.borrow_mut().pop().unwrap();
        assert_eq!(kept.bytes().len(), len);
        // SAFETY: the message is kept until after the copies.
        unsafe {
            devices.copy(target.as_device_ptr(), kept.bytes().as_ptr(), len).unwrap();
            devices.copy(got.as_mut_ptr(), target.as_device_ptr(), len).unwrap();
        }
        let class = devices.classify(kept.bytes().as_ptr(), len).class;
        assert_eq!(class, MemoryClass::Pinned, "on the receiver's side");
        assert!(got == message, "{len} bytes");
    }
}

#[test]
fn device_memory_is_registered_and_unavailable_if_it_cannot_be_mapped() {
    let devices = devices();
    for set in ["device_protocols=copy", "device_ipc=no"] {
        let pair = Pair::with_devices(&[set], &devices);
        assert!(!pair.to_one.capabilities().flags.intersects(Flags::DEVICE_GET | Flags::DEVICE_PUT), "{set}");
    }
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    let able = Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_TO_DEVICE;
    assert!(pair.to_one.capabilities().flags.contains(able));
    pair.deliver(b"connected");
    let buffer = |kind| DeviceBuffer::new(&devices, DeviceIndex(0), kind, 5000).unwrap();
    for kind in [BufferKind::Pool, BufferKind::VmmPrivate, BufferKind::Managed] {
        let mine = buffer(kind);
        // SAFETY: the buffer outlives the registration.
        let registered = unsafe { pair.to_one.register(region(&mine), Access::RemoteRead) };
        assert!(registered.unwrap().is_none(), "{kind:?}");
    }
    // Both ends are one process, and no driver lets a process open its own memory. After a few attempts it gives up.
    for _ in 0..5 {
        let (mine, theirs) = (buffer(BufferKind::Device), buffer(BufferKind::Device));
        // SAFETY: both buffers outlive their transfers.
        unsafe {
            let registered = pair.to_one.register(region(&mine), Access::RemoteRead).unwrap().unwrap();
            let got = pair.to_zero.get(&region(&theirs).into(), &Remote::at(registered.handle(), 0), Token(1));
            assert!(matches!(got, Err(Error::Unavailable { .. })), "{got:?}");
            let put = pair.to_zero.put(&region(&theirs).into(), &Remote::at(registered.handle(), 0), Token(1));
            assert!(matches!(put, Err(Error::Unavailable { .. })), "not permitted: {put:?}");
        }
    }
    assert!(!pair.to_zero.capabilities().flags.intersects(able));
    let mine = buffer(BufferKind::Device);
    // SAFETY: as above.
    let registered = unsafe { pair.to_zero.register(region(&mine), Access::RemoteRead) };
    assert!(registered.unwrap().is_none(), "memory that the peer cannot map must not be registered");
}

#[test]
fn memory_passed_by_descriptor_is_copied_after_its_owner_answers() {
    let devices = devices();
    let mut pair = Pair::with_devices(&[], &devices);
    pair.deliver(b"connected");
    for (round, access) in [Access::RemoteRead, Access::RemoteWrite].into_iter().enumerate() {
        let (ours, theirs) = (pattern(round, 5000), pattern(round + 2, 5000));
        let remote = filled(&devices, BufferKind::Vmm, &theirs);
        let local = filled(&devices, BufferKind::Vmm, &ours);
        let name = registered(&mut pair, &remote, access).unwrap();
        for met in ["met once", "asked for", "not there yet"] {
            assert!(!copied(&mut pair, &local, &name, access), "{met}: no process has progressed");
        }
        copied_when_mapped(&mut pair, &local, &name, access);
        let expected = if access == Access::RemoteRead { &theirs } else { &ours };
        assert!(content(&local) == *expected && content(&remote) == *expected, "{access:?}");
        let again = registered(&mut pair, &remote, access).unwrap();
        assert!(copied(&mut pair, &local, &again, access), "the memory must stay mapped");
        let wrong = if access == Access::RemoteRead { Access::RemoteWrite } else { Access::RemoteRead };
        assert!(!copied(&mut pair, &local, &again, wrong), "the handle must not permit this access");
    }
}

#[test]
fn memory_freed_during_the_request_is_not_mapped() {
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    pair.deliver(b"connected");
    let local = filled(&devices, BufferKind::Device, &[0; 5000]);
    for round in 0..6 {
        let old = filled(&devices, BufferKind::Vmm, &pattern(round, 5000));
        let name = registered(&mut pair, &old, Access::RemoteRead).unwrap();
        assert!(!copied(&mut pair, &local, &name, Access::RemoteRead), "asked for");
        if round % 2 == 0 {
            // The request is in flight, or not even sent.
            progress(&pair);
        }
        drop(old);
        let new = filled(&devices, BufferKind::Vmm, &pattern(100 + round, 5000));
        let name = registered(&mut pair, &new, Access::RemoteRead).unwrap();
        copied_when_mapped(&mut pair, &local, &name, Access::RemoteRead);
        assert!(content(&local) == pattern(100 + round, 5000), "round {round}: copied from the freed memory");
    }
}

#[test]
fn each_piece_of_physical_memory_is_passed_by_a_descriptor() {
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    pair.deliver(b"connected");
    // The largest number of pieces, with the granularity of present devices.
    for (round, pieces) in [2, MOST_PIECES].into_iter().enumerate() {
        let (ours, theirs) = (pattern(round, pieces << 21), pattern(round + 2, pieces << 21));
        let remote = filled(&devices, BufferKind::VmmPieces, &theirs);
        let local = filled(&devices, BufferKind::VmmPieces, &ours);
        for access in [Access::RemoteRead, Access::RemoteWrite] {
            let name = registered(&mut pair, &remote, access).unwrap();
            copied_when_mapped(&mut pair, &local, &name, access);
            assert!(content(&local) == theirs && content(&remote) == theirs, "{access:?}");
        }
        let whole = region(&remote);
        // Another allocation than the previous one, so nothing about it is cached.
        // SAFETY: the buffer outlives the registration.
        let part = unsafe { pair.to_one.register(Region { len: 5000, ..whole }, Access::RemoteRead) }.unwrap().unwrap();
        let small = filled(&devices, BufferKind::Device, &[0; 5000]);
        copied_when_mapped(&mut pair, &small, &part, Access::RemoteRead);
        assert!(content(&small) == theirs[..5000]);
    }
    let more = filled(&devices, BufferKind::VmmPieces, &pattern(1, (MOST_PIECES + 1) << 21));
    assert!(registered(&mut pair, &more, Access::RemoteRead).is_none());
}

/// Frees memory as soon as its copy completes, as its owner may.
struct FreesAtOnce(RefCell<Option<DeviceBuffer>>);

impl Upcalls for FreesAtOnce {
    fn receive(&self, _: Rank, _: Received<'_>) {}

    fn completed(&self, _: Token, result: Result<(), Error>) {
        result.unwrap();
        assert!(self.0.take().is_some(), "completed once");
    }

    fn peer_failed(&self, _: Rank, error: Error) {
        panic!("{error}");
    }

    fn peer_left(&self, _: Rank) {}
}

#[test]
fn pool_memory_is_unmapped_before_its_message_completes() {
    const TEST: &str = "pool_memory_is_unmapped_before_its_message_completes";
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        return eprintln!("skipped {TEST}: the simulated driver only ends a process that frees what is mapped");
    }
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1", "device_ipc_pool_size=4000"], &devices);
    pair.deliver(b"connected");
    let _always_there = filled(&devices, BufferKind::PoolShared, &[1; 10]);
    let local = filled(&devices, BufferKind::Device, &[0; 5000]);
    let small = filled(&devices, BufferKind::PoolShared, &[0; 3999]);
    assert!(registered(&mut pair, &small, Access::RemoteRead).is_none(), "a small message must not be registered");
    for round in 0..20 {
        let remote = filled(&devices, BufferKind::PoolShared, &pattern(round, 5000));
        let name = registered(&mut pair, &remote, Access::RemoteRead).unwrap();
        let frees = FreesAtOnce(RefCell::new(Some(remote)));
        let (start, mut begun) = (std::time::Instant::now(), false);
        while frees.0.borrow().is_some() {
            assert!(start.elapsed() < common::PATIENCE, "no descriptor was given");
            if !begun {
                // SAFETY: both buffers live until the copy completes, and no other code accesses them.
                let get = unsafe { pair.to_zero.get(&region(&local).into(), &Remote::at(name.handle(), 0), Token(7)) };
                begun = matches!(get, Ok(Transfer::Started));
            }
            pair.zero.progress();
            pair.one.btl.progress(&frees);
        }
        assert!(content(&local) == pattern(round, 5000), "round {round}");
    }
}

/// The limits and costs of a link are those of the parameters until the device of its messages and the location of the
/// peer's memory are known.
#[test]
fn a_link_adapts_to_its_devices() {
    const TEST: &str = "a_link_adapts_to_its_devices";
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        return eprintln!("skipped {TEST}: only the simulated driver has made-up figures");
    }
    let folder = std::env::temp_dir().join(format!("cableway-sm-costs-{}", std::process::id()));
    let set = format!("costs_folder={}", folder.display());
    // A later run continues a measurement that takes too long on a busy machine.
    let (start, mut text) = (std::time::Instant::now(), String::new());
    let file = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let is_file = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "txt");
    let figures = ["within", "to_host", "from_host", "push", "pull"];
    while !figures.iter().all(|name| text.contains(&format!("\n{name} "))) {
        assert!(start.elapsed() < common::PATIENCE, "{text}");
        let measuring = devices_with(&["costs=measure", &set]);
        measuring.report_costs(&[DeviceIndex(0)]).unwrap();
        text = file().find(is_file).map(|path| std::fs::read_to_string(path).unwrap()).unwrap_or_default();
    }
    let line = |line: &str| match line.split_once(' ') {
        Some(("within", _)) => "within 5.000 us 1.000 GB/s\n".to_owned(),
        Some((name @ ("push" | "pull"), _)) => format!("{name} 50.000 us 1.000 GB/s\n"),
        Some((name @ ("to_host" | "from_host"), _)) => format!("{name} 10.000 us 10.000 GB/s\n"),
        _ => format!("{line}\n"),
    };
    std::fs::write(file().find(is_file).unwrap(), text.lines().map(line).collect::<String>()).unwrap();

    let devices = devices_with(&["costs=cached", &set]);
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    pair.deliver(b"connected");
    let on_device = Location { class: MemoryClass::Device, ..Location::HOST };
    let fetched = |pair: &Pair| pair.to_zero.cost(Operation::Get, &on_device).fixed.as_micros();
    let sizes = |pair: &Pair| {
        let capabilities = pair.to_zero.capabilities();
        (capabilities.device_min_rdma_size, capabilities.device_max_rdma_size)
    };
    assert_eq!((fetched(&pair), sizes(&pair)), (10, (1, usize::MAX)), "the parameters'");
    let local = filled(&devices, BufferKind::Vmm, &pattern(2, 5000));
    assert!(local.location().on_device());
    // The device is known now. The peer's memory may be on the other device, or on the same one, where copies start
    // fast and run slowly.
    assert_eq!(fetched(&pair), 53);
    registered(&mut pair, &local, Access::RemoteRead);
    let small = |(from, to): (usize, usize)| from == 1 && (15_000..30_000).contains(&to);
    let capabilities = pair.to_one.capabilities();
    assert!(small((capabilities.device_min_rdma_size, capabilities.device_max_rdma_size)));
    for (device, microseconds) in [(0, 8), (1, 53), (0, 8)] {
        let bytes = pattern(3 + device as usize, 5000);
        let mut remote = DeviceBuffer::new(&devices, DeviceIndex(device), BufferKind::Vmm, bytes.len()).unwrap();
        remote.copy_from_host(0, &bytes).unwrap();
        devices.default_stream(&remote.location()).unwrap().wait().unwrap();
        let name = registered(&mut pair, &remote, Access::RemoteRead).unwrap();
        copied_when_mapped(&mut pair, &local, &name, Access::RemoteRead);
        assert_eq!(fetched(&pair), microseconds, "from device {device}");
        assert!(if device == 0 { small(sizes(&pair)) } else { sizes(&pair) == (usize::MAX, 0) }, "{:?}", sizes(&pair));
        assert!(content(&local) == bytes);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Counts the pieces of memory that the simulated driver has mapped in this process, of devices and of other processes.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:sim-cuda")).count()
}

#[test]
fn freed_memory_is_closed_without_further_messages() {
    const TEST: &str = "freed_memory_is_closed_without_further_messages";
    const CHILD: &str = "CABLEWAY_TEST_ALONE";
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        return eprintln!("skipped {TEST}: mappings of a real driver cannot be counted");
    }
    if std::env::var_os(CHILD).is_none() {
        // Other tests map memory as well.
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args([TEST, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    pair.deliver(b"connected");
    let local = filled(&devices, BufferKind::Device, &[0; 5000]);
    let before = mapped();
    let old = filled(&devices, BufferKind::Vmm, &pattern(1, 5000));
    let owned = mapped();
    let name = registered(&mut pair, &old, Access::RemoteRead).unwrap();
    copied_when_mapped(&mut pair, &local, &name, Access::RemoteRead);
    assert!(mapped() > owned, "the other process must have mapped it");
    drop(old);
    assert!(mapped() > before, "still");
    until(&[&pair.zero, &pair.one], "the mapping is closed", || mapped() == before);
}
