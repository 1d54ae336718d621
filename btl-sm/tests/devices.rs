//! Device data through the transport, on the simulated driver; with `CABLEWAY_TEST_REAL_DRIVER=1` on the one that the
//! loader finds.
#![cfg(feature = "cuda")]

mod common;

use std::cell::RefCell;

use cableway_base::Rank;
use cableway_btl::{
    Access, Btl as _, Error, Flags, FragmentKind, Operation, Received, Region, Registration, Remote, Token, Transfer,
    Upcalls,
};
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, Location, MOST_PIECES, MemoryClass, Order};
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
        // SAFETY: the fragment has room and is ours.
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
fn device_memory_is_named_to_a_peer_and_what_cannot_be_mapped_is_unavailable() {
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
    // The two are one process, which no driver lets open its own memory; after a few tries it is left at that.
    for _ in 0..5 {
        let (mine, theirs) = (buffer(BufferKind::Device), buffer(BufferKind::Device));
        // SAFETY: both buffers outlive what is done with them.
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
    assert!(registered.unwrap().is_none(), "nor does it announce what the peer cannot map either");
}

fn region(buffer: &DeviceBuffer) -> Region {
    Region {
        address: buffer.as_device_ptr(),
        len: buffer.len(),
        location: buffer.location(),
        order: Order::AfterDefaultStream,
    }
}

/// A buffer of that content, which is there.
fn filled(devices: &Devices, kind: BufferKind, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), kind, bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
    buffer
}

/// Process 0 names the buffer to process 1.
fn registered(pair: &mut Pair, buffer: &DeviceBuffer, access: Access) -> Option<Registration> {
    // SAFETY: the callers' buffers outlive what is done with them.
    unsafe { pair.to_one.register(region(buffer), access) }.unwrap()
}

/// Process 1 has its device copy; false if that cannot be now.
fn copied(pair: &mut Pair, local: &DeviceBuffer, remote: &Registration, access: Access) -> bool {
    // SAFETY: both buffers live until the copy is reported, and nobody else touches them.
    let begun = unsafe {
        match access {
            Access::RemoteRead => pair.to_zero.get(&region(local).into(), &Remote::at(remote.handle(), 0), Token(7)),
            Access::RemoteWrite => pair.to_zero.put(&region(local).into(), &Remote::at(remote.handle(), 0), Token(7)),
        }
    };
    match begun {
        Ok(Transfer::Started) => {}
        Err(Error::Unavailable { .. }) => return false,
        other => panic!("{other:?}"),
    }
    pair.one.heard.asynchronous.set(true);
    until(&[&pair.zero, &pair.one], "the copy is done", || !pair.one.heard.completed.borrow().is_empty());
    assert!(matches!(pair.one.heard.completed.borrow_mut().pop(), Some((Token(7), Ok(())))));
    true
}

fn progress(pair: &Pair) {
    for process in [&pair.zero, &pair.one] {
        process.progress();
    }
}

fn content(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to_host(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn memory_passed_by_descriptor_is_copied_once_its_owner_has_answered() {
    let devices = devices();
    let mut pair = Pair::with_devices(&[], &devices);
    pair.deliver(b"connected");
    for (round, access) in [Access::RemoteRead, Access::RemoteWrite].into_iter().enumerate() {
        let (ours, theirs) = (pattern(round, 5000), pattern(round + 2, 5000));
        let remote = filled(&devices, BufferKind::Vmm, &theirs);
        let local = filled(&devices, BufferKind::Vmm, &ours);
        let name = registered(&mut pair, &remote, access).unwrap();
        for met in ["met once", "asked for", "not there yet"] {
            assert!(!copied(&mut pair, &local, &name, access), "{met}: nobody has progressed");
        }
        let mut done = false;
        let start = std::time::Instant::now();
        while !done {
            assert!(start.elapsed() < common::PATIENCE, "no descriptor was given");
            progress(&pair);
            done = copied(&mut pair, &local, &name, access);
        }
        let expected = if access == Access::RemoteRead { &theirs } else { &ours };
        assert!(content(&local) == *expected && content(&remote) == *expected, "{access:?}");
        let again = registered(&mut pair, &remote, access).unwrap();
        assert!(copied(&mut pair, &local, &again, access), "it stays mapped");
        let wrong = if access == Access::RemoteRead { Access::RemoteWrite } else { Access::RemoteRead };
        assert!(!copied(&mut pair, &local, &again, wrong), "what the handle does not permit");
    }
}

#[test]
fn what_goes_while_its_owner_is_asked_is_not_mapped() {
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    pair.deliver(b"connected");
    let local = filled(&devices, BufferKind::Device, &[0; 5000]);
    for round in 0..6 {
        let old = filled(&devices, BufferKind::Vmm, &pattern(round, 5000));
        let name = registered(&mut pair, &old, Access::RemoteRead).unwrap();
        assert!(!copied(&mut pair, &local, &name, Access::RemoteRead), "asked for");
        if round % 2 == 0 {
            // The question is under way, or not even that.
            progress(&pair);
        }
        drop(old);
        let new = filled(&devices, BufferKind::Vmm, &pattern(100 + round, 5000));
        let name = registered(&mut pair, &new, Access::RemoteRead).unwrap();
        let start = std::time::Instant::now();
        while !copied(&mut pair, &local, &name, Access::RemoteRead) {
            assert!(start.elapsed() < common::PATIENCE, "no descriptor was given");
            progress(&pair);
        }
        assert!(content(&local) == pattern(100 + round, 5000), "round {round}: of what was there before");
    }
}

#[test]
fn what_lies_in_several_pieces_of_physical_memory_is_passed_as_so_many_descriptors() {
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    pair.deliver(b"connected");
    // As many pieces as there can be, of the size that they have on the devices there are.
    for (round, pieces) in [2, MOST_PIECES].into_iter().enumerate() {
        let (ours, theirs) = (pattern(round, pieces << 21), pattern(round + 2, pieces << 21));
        let remote = filled(&devices, BufferKind::VmmPieces, &theirs);
        let local = filled(&devices, BufferKind::VmmPieces, &ours);
        for access in [Access::RemoteRead, Access::RemoteWrite] {
            let name = registered(&mut pair, &remote, access).unwrap();
            let start = std::time::Instant::now();
            while !copied(&mut pair, &local, &name, access) {
                assert!(start.elapsed() < common::PATIENCE, "no descriptors were given");
                progress(&pair);
            }
            assert!(content(&local) == theirs && content(&remote) == theirs, "{access:?}");
        }
        let whole = region(&remote);
        // Of another allocation than what was named just before: nothing is remembered of it.
        // SAFETY: the buffer outlives the registration.
        let part = unsafe { pair.to_one.register(Region { len: 5000, ..whole }, Access::RemoteRead) }.unwrap().unwrap();
        let small = filled(&devices, BufferKind::Device, &[0; 5000]);
        let start = std::time::Instant::now();
        while !copied(&mut pair, &small, &part, Access::RemoteRead) {
            assert!(start.elapsed() < common::PATIENCE, "no descriptor was given");
            progress(&pair);
        }
        assert!(content(&small) == theirs[..5000]);
    }
    let more = filled(&devices, BufferKind::VmmPieces, &pattern(1, (MOST_PIECES + 1) << 21));
    assert!(registered(&mut pair, &more, Access::RemoteRead).is_none());
}

/// Frees memory as soon as it is told that a copy of it is over, as its owner may.
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
fn memory_of_a_pool_is_let_go_of_before_its_message_is_over() {
    const TEST: &str = "memory_of_a_pool_is_let_go_of_before_its_message_is_over";
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        return eprintln!("skipped {TEST}: the simulated driver only ends a process that frees what is mapped");
    }
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1", "device_ipc_pool_size=4000"], &devices);
    pair.deliver(b"connected");
    let _always_there = filled(&devices, BufferKind::PoolShared, &[1; 10]);
    let local = filled(&devices, BufferKind::Device, &[0; 5000]);
    let small = filled(&devices, BufferKind::PoolShared, &[0; 3999]);
    assert!(registered(&mut pair, &small, Access::RemoteRead).is_none(), "it is not worth it");
    for round in 0..20 {
        let remote = filled(&devices, BufferKind::PoolShared, &pattern(round, 5000));
        let name = registered(&mut pair, &remote, Access::RemoteRead).unwrap();
        let frees = FreesAtOnce(RefCell::new(Some(remote)));
        let (start, mut begun) = (std::time::Instant::now(), false);
        while frees.0.borrow().is_some() {
            assert!(start.elapsed() < common::PATIENCE, "no descriptor was given");
            if !begun {
                // SAFETY: both buffers live until the copy is reported, and nobody else touches them.
                let get = unsafe { pair.to_zero.get(&region(&local).into(), &Remote::at(name.handle(), 0), Token(7)) };
                begun = matches!(get, Ok(Transfer::Started));
            }
            pair.zero.progress();
            pair.one.btl.progress(&frees);
        }
        assert!(content(&local) == pattern(round, 5000), "round {round}");
    }
}

/// The limits and costs of a link are those of the parameters until something is known of the device that messages turn
/// out to come from, and of where the peer's memory is.
#[test]
fn a_link_follows_what_becomes_known_of_its_devices() {
    const TEST: &str = "a_link_follows_what_becomes_known_of_its_devices";
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        return eprintln!("skipped {TEST}: figures are made up for the simulated driver only");
    }
    let folder = std::env::temp_dir().join(format!("cableway-sm-costs-{}", std::process::id()));
    let set = format!("device_costs_folder={}", folder.display());
    // A measurement that takes too long on a busy machine is continued the next time.
    let (start, mut text) = (std::time::Instant::now(), String::new());
    let file = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let is_file = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "txt");
    let figures = ["within", "to_host", "from_host", "push", "pull"];
    while !figures.iter().all(|name| text.contains(&format!("\n{name} "))) {
        assert!(start.elapsed() < common::PATIENCE, "{text}");
        let measuring = devices_with(&["device_costs=measure", &set]);
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

    let devices = devices_with(&["device_costs=cached", &set]);
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
    // It was met. The peer's may be on the other device, or on the same one, where a copy is quick to begin, and slow.
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
        let start = std::time::Instant::now();
        while !copied(&mut pair, &local, &name, Access::RemoteRead) {
            assert!(start.elapsed() < common::PATIENCE, "no descriptor was given");
            progress(&pair);
        }
        assert_eq!(fetched(&pair), microseconds, "from device {device}");
        assert!(if device == 0 { small(sizes(&pair)) } else { sizes(&pair) == (usize::MAX, 0) }, "{:?}", sizes(&pair));
        assert!(content(&local) == bytes);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Pieces of memory that the simulated driver has mapped in this process, of devices and of other processes'.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:sim-cuda")).count()
}

#[test]
fn what_its_owner_has_freed_is_closed_though_no_message_comes() {
    const TEST: &str = "what_its_owner_has_freed_is_closed_though_no_message_comes";
    const CHILD: &str = "CABLEWAY_TEST_ALONE";
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        return eprintln!("skipped {TEST}: what a real driver has mapped is not seen from outside");
    }
    if std::env::var_os(CHILD).is_none() {
        // Other tests map memory, too.
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
    let start = std::time::Instant::now();
    while !copied(&mut pair, &local, &name, Access::RemoteRead) {
        assert!(start.elapsed() < common::PATIENCE, "no descriptor was given");
        progress(&pair);
    }
    assert!(mapped() > owned, "by the other process");
    drop(old);
    assert!(mapped() > before, "still");
    until(&[&pair.zero, &pair.one], "the mapping is closed", || mapped() == before);
}
