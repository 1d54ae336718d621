//! Device memory that one process copies straight from or to another's, and what takes over where that does not work.

use std::error::Error;
use std::time::{Duration, Instant};

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, DeviceSlice, DeviceSliceMut, World};

use crate::support::{Driver, Finished, Role, SOON, Test, cableway, finish, role_job, skip};

pub(crate) const TESTS: &[Test] = &[
    ("device_copy::between_two_devices_and_on_one", between_two_devices_and_on_one),
    ("device_copy::small_copies_by_a_resident_kernel", small_copies_by_a_resident_kernel),
    ("device_copy::receivers_that_invite", receivers_that_invite),
    ("device_copy::four_ranks_on_two_devices", four_ranks_on_two_devices),
    ("device_copy::copy_protocols_map_nothing", copy_protocols_map_nothing),
    ("device_copy::memory_without_a_handle_goes_through_the_host", memory_without_a_handle),
    ("device_copy::fresh_allocations_are_never_taken_for_old_ones", fresh_allocations),
    ("device_copy::few_mappings_are_enough", few_mappings_are_enough),
    ("device_copy::what_the_driver_refuses_goes_through_the_host", refusals),
    ("device_copy::messages_of_a_window_share_their_calls", shared_calls),
    ("device_copy::a_peer_killed_while_mapped_is_an_error_soon", killed_while_mapped),
];

pub(crate) const ROLES: &[Role] = &[
    ("device_exchange", exchange),
    ("device_fresh", fresh),
    ("device_settled", settled),
    ("device_many", many),
    ("device_killed", killed),
    ("device_one_way", one_way),
    ("device_has_shared_pools", has_shared_pools),
];

type Outcome = Result<(), Box<dyn Error>>;

/// Runs a role over shared memory with the driver; of the variables each goes to every rank.
pub(crate) fn run(ranks: u32, options: &[&str], variables: &[(&str, &str)], role: &str) -> Finished {
    let folder = Driver::find().folder;
    let mut all = vec!["--cuda-libdir", folder.to_str().expect("a folder"), "--set", "btl=sm"];
    all.extend(options);
    let mut job = role_job(ranks, &all, role);
    finish(job.envs(variables.iter().copied()))
}

/// Copies that ranks say they had made from device to device, in all.
pub(crate) fn direct(finished: &Finished) -> u64 {
    told(finished, "direct ")
}

/// What ranks say of a counter, in all.
pub(crate) fn told(finished: &Finished, counter: &str) -> u64 {
    let counts = finished.stdout.lines().filter_map(|line| line.strip_prefix(counter));
    counts.map(|count| count.parse::<u64>().expect("a count")).sum()
}

pub(crate) const ONE_DEVICE: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "0");

/// Messages that `device_exchange` sends in all, and of these those that are certain to be copied once: their buffers are
/// met for the second time, and of each pair of ranks on one device the higher one has learnt by a message who copies.
pub(crate) fn messages(ranks: u64, on_one_device: u64) -> (u64, u64) {
    let pairs = ranks * (ranks - 1);
    let size_count = SIZES.len() as u64;
    (pairs * ROUNDS * size_count, pairs * (ROUNDS - 1) * size_count - on_one_device)
}

fn between_two_devices_and_on_one() {
    for (variables, on_one_device) in [(&[][..], 0), (&[ONE_DEVICE], 1)] {
        let finished = run(2, &[], variables, "device_exchange").assert_success();
        let ((all, again), found) = (messages(2, on_one_device), direct(&finished));
        assert!((again..=all).contains(&found), "{found} of {all}: {finished:#?}");
        assert_eq!(finished.stderr, "", "{variables:?}");
        assert!(told(&finished, "mapped ") > 0 && told(&finished, "already mapped ") > 0, "{finished:#?}");
    }
    // Who copies is decided by cost; either way the data is right.
    for push in ["1us", "1s"] {
        let set = format!("device_push_latency={push}");
        let finished = run(2, &["--set", &set], &[], "device_exchange").assert_success();
        assert!(direct(&finished) >= messages(2, 0).1, "{finished:#?}");
    }
}

/// Whether its lease ends in the midst of messages or not.
fn small_copies_by_a_resident_kernel() {
    for lease in ["50us", "100ms"] {
        let lease = format!("device_copier_lease={lease}");
        let options = ["--set", "device_copier=yes", "--set", &lease, "--set", "device_copier_idle=20ms"];
        let finished = run(2, &options, &[], "device_exchange").assert_success();
        assert!(direct(&finished) >= messages(2, 0).1, "{finished:#?}");
        run(4, &options, &[], "device_exchange").assert_success();
    }
}

fn receivers_that_invite() {
    let options = ["--set", "device_invitations=yes", "--set", "device_push_latency=1us"];
    let finished = run(2, &options, &[], "device_exchange").assert_success();
    assert!(direct(&finished) >= messages(2, 0).1 && told(&finished, "invited ") > 0, "{finished:#?}");
    for (ranks, variables) in [(2, &[ONE_DEVICE][..]), (4, &[][..]), (4, &[ONE_DEVICE][..])] {
        run(ranks, &options, variables, "device_exchange").assert_success();
    }
    assert_eq!(told(&run(2, &options[2..], &[], "device_exchange").assert_success(), "invited "), 0, "not by default");
}

fn four_ranks_on_two_devices() {
    let finished = run(4, &[], &[], "device_exchange").assert_success();
    assert!(direct(&finished) >= messages(4, 2).1, "{finished:#?}");
}

fn copy_protocols_map_nothing() {
    for set in ["device_protocols=copy", "device_ipc=no"] {
        let finished = run(2, &["--set", set], &[], "device_exchange").assert_success();
        assert_eq!(direct(&finished), 0, "{set}: {finished:#?}");
    }
}

fn memory_without_a_handle() {
    for kind in ["pool", "vmm_private", "managed"] {
        let finished = run(2, &[], &[("IPC_KIND", kind), ("RUST_LOG", "info")], "device_exchange").assert_success();
        assert_eq!(direct(&finished), 0, "{kind}: {finished:#?}");
        // One side is enough.
        let finished = run(2, &[], &[("IPC_KIND", kind), ("IPC_INTO", "device")], "device_exchange").assert_success();
        assert!(direct(&finished) > 0, "{kind}: {finished:#?}");
    }
}

fn fresh_allocations() {
    for variables in [&[][..], &[ONE_DEVICE]] {
        run(2, &[], variables, "device_fresh").assert_success();
        run(2, &["--set", "device_ipc_open_size=1"], variables, "device_fresh").assert_success();
        let variables = [variables, &[("IPC_KIND", "vmm")]].concat();
        for set in ["device_ipc_open_size=1", "device_ipc_mappings=2"] {
            let finished = run(2, &["--set", set], &variables, "device_fresh").assert_success();
            assert_eq!(finished.stderr, "", "{variables:?}");
        }
    }
}

fn few_mappings_are_enough() {
    for set in ["device_ipc_mappings=1", "device_ipc_mappings=3", "device_ipc_bytes=100K"] {
        let finished = run(2, &["--set", set, "--set", "device_ipc_open_size=1"], &[], "device_many").assert_success();
        assert!(direct(&finished) > 0, "{finished:#?}");
        let vmm = [("IPC_KIND", "vmm")];
        run(2, &["--set", set, "--set", "device_ipc_open_size=1"], &vmm, "device_many").assert_success();
    }
}

fn refusals() {
    if !Driver::find().simulated {
        return skip("faults are injected into the simulated driver only");
    }
    for fault in [
        "cuIpcGetMemHandle:801",
        "cuIpcGetMemHandle:1:2",
        "cuIpcOpenMemHandle:201",
        "cuIpcOpenMemHandle:400:1",
        "cuIpcCloseMemHandle:1",
        "cuMemGetAddressRange:1",
        "cuDeviceGetUuid:101",
    ] {
        for variables in [&[("SIM_CUDA_FAIL", fault)][..], &[("SIM_CUDA_FAIL", fault), ONE_DEVICE]] {
            let finished = run(2, &[], variables, "device_exchange").assert_success();
            if ["cuIpcOpenMemHandle:201", "cuIpcGetMemHandle:801"].contains(&fault) {
                assert_eq!(direct(&finished), 0, "{fault}");
            }
        }
    }
    for fault in [
        "cuMemRetainAllocationHandle:801",
        "cuMemGetAllocationPropertiesFromHandle:1",
        "cuMemExportToShareableHandle:1",
        "cuMemImportFromShareableHandle:304",
        "cuMemExportToShareableHandle:1:1",
        "cuMemImportFromShareableHandle:1:2",
    ] {
        for (variables, kind) in [(&[][..], "vmm"), (&[ONE_DEVICE], "vmm"), (&[], "vmm_pieces")] {
            let variables = [variables, &[("SIM_CUDA_FAIL", fault), ("IPC_KIND", kind)]].concat();
            let finished = run(2, &[], &variables, "device_exchange").assert_success();
            assert!(direct(&finished) == 0 || fault.matches(':').count() == 2, "{fault}: {finished:#?}");
        }
    }
    for fault in [
        "cuMemPoolExportToShareableHandle:801",
        "cuMemPoolExportPointer:1",
        "cuMemPoolImportFromShareableHandle:304",
        "cuMemPoolSetAccess:1",
        "cuMemPoolImportPointer:1",
        "cuMemPoolExportPointer:1:2",
        "cuMemPoolImportPointer:1:2",
    ] {
        let variables = [("SIM_CUDA_FAIL", fault), ("IPC_KIND", "pool_shared")];
        let finished = run(2, &["--set", "device_ipc_pool_size=1"], &variables, "device_exchange").assert_success();
        assert!(direct(&finished) == 0 || fault.matches(':').count() == 2, "{fault}: {finished:#?}");
    }
    // The command logs; one line a rank says why.
    for fault in ["cuIpcOpenMemHandle:201", "cuIpcGetMemHandle:801"] {
        let mut command = cableway();
        command
            .args(["pingpong", "--btl", "sm", "--src", "device", "--dst", "device", "--check", "--sizes", "8,70000"]);
        command.args(["--iterations", "5", "--cuda-libdir"]).arg(Driver::find().folder).env("SIM_CUDA_FAIL", fault);
        let finished = finish(&mut command).assert_success();
        assert_eq!(finished.stderr.matches("through the host, ").count(), 2, "{finished:#?}");
    }
    // The third copy of the receiver is its second from device to device; the sender copies once for each that fails.
    let failing = [("SIM_CUDA_FAIL", "cuMemcpyAsync:1:3")];
    assert_eq!(direct(&run(2, &[], &failing, "device_one_way").assert_success()), ONE_WAY as u64 - 2);
    assert_eq!(direct(&run(2, &[], &[], "device_one_way").assert_success()), ONE_WAY as u64 - 1);
    for missing in ["cuIpcOpenMemHandle", "cuIpcGetMemHandle", "cuIpcCloseMemHandle"] {
        run(2, &[], &[("SIM_CUDA_MISSING", missing)], "device_exchange").assert_success();
    }
    for missing in ["cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"] {
        let variables = [("SIM_CUDA_MISSING", missing), ("IPC_KIND", "vmm")];
        assert_eq!(direct(&run(2, &[], &variables, "device_exchange").assert_success()), 0, "{missing}");
    }
}

/// How many calls of the driver messages take on either side, while the machine does other things, too.
fn shared_calls() {
    const MESSAGES: u64 = 64 * 100;
    let file = std::env::temp_dir().join(format!("cableway-calls-{}", std::process::id()));
    let stats = format!("{}-%p", file.display());
    let mut command = cableway();
    command.args(["pingpong", "--btl", "sm", "--src", "device", "--dst", "device", "--test", "message-rate"]);
    command.args(["--sizes", "8", "--window", "64", "--iterations", "100", "--set", "device_kernel_patience=10s"]);
    command.arg("--cuda-libdir").arg(Driver::find().folder).env("SIM_CUDA_STATS", &stats);
    finish(&mut command).assert_success();
    let (folder, prefix) = (file.parent().expect("a folder"), file.file_name().expect("a name").to_string_lossy());
    let entries = std::fs::read_dir(folder).expect("the folder is there").filter_map(Result::ok);
    let of_ranks = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{prefix}-")));
    let mut copies = Vec::new();
    for entry in of_ranks {
        let text = std::fs::read_to_string(entry.path()).expect("calls are written at the end");
        std::fs::remove_file(entry.path()).expect("the file was there");
        let made = |names: &[&str]| -> u64 {
            let lines = text.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| names.contains(name));
            lines.map(|(_, count)| count.parse::<u64>().expect("a count")).sum()
        };
        let asked = made(&["cuPointerGetAttributes"]);
        // And in the windows before those that are timed.
        assert!((MESSAGES..=MESSAGES * 5 / 4).contains(&asked), "where buffers are is asked {asked} times: {text}");
        copies.push(made(&["cuLaunchKernel", "cuMemcpyBatchAsync", "cuMemcpyAsync"]));
        let ordered = made(&["cuEventRecord", "cuStreamWaitEvent", "cuStreamQuery"]);
        assert!(ordered <= MESSAGES / 4, "the default stream is asked about {ordered} times: {text}");
    }
    if copies.is_empty() {
        return skip("a real driver counts no calls");
    }
    copies.sort_unstable();
    assert_eq!(copies.len(), 2, "one for each rank");
    assert!(copies[0] < 50 && copies[1] <= MESSAGES / 8, "{copies:?} calls to copy");
}

fn killed_while_mapped() {
    let vmm = ("IPC_KIND", "vmm");
    let pool = ("IPC_KIND", "pool_shared");
    for variables in [&[][..], &[ONE_DEVICE], &[vmm], &[vmm, ONE_DEVICE], &[pool]] {
        let finished = run(3, &["--keep-going"], variables, "device_killed");
        let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
        assert_eq!(survived, 2, "{finished:#?}");
    }
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 11) as u8).collect()
}

fn kind(variable: &str, otherwise: BufferKind) -> BufferKind {
    match std::env::var(variable).as_deref() {
        Ok("device") => BufferKind::Device,
        Ok("pool") => BufferKind::Pool,
        Ok("pool_shared") => BufferKind::PoolShared,
        Ok("vmm") => BufferKind::Vmm,
        Ok("vmm_private") => BufferKind::VmmPrivate,
        Ok("vmm_pieces") => BufferKind::VmmPieces,
        Ok("managed") => BufferKind::Managed,
        _ => otherwise,
    }
}

fn device(world: &World) -> Result<DeviceIndex, cableway::Error> {
    world.devices().initialise()?;
    Ok(DeviceIndex(world.rank() % world.devices().facts()?.devices.len() as u32))
}

fn expect(buffer: &DeviceBuffer, first: usize, expected: &[u8]) -> Outcome {
    let mut found = vec![0; expected.len()];
    buffer.copy_to_host(first, &mut found)?;
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of {}: {} instead of {}", found.len(), found[at], expected[at]).into()),
    }
}

fn tell(world: &World) {
    let counters = world.counters();
    println!("direct {}", counters.device_direct.get());
    println!("fetched {}", counters.protocol_get.get());
    println!("stored {}", counters.protocol_put.get());
    println!("invited {}", counters.invitations.get());
    println!("mapped {}", counters.ipc_mappings.get());
    println!("already mapped {}", counters.ipc_hits.get());
}

const ROUNDS: u64 = 4;
const SIZES: [usize; 6] = [1, 8, 3000, 4096, 100_001, 3 << 20];

/// Every rank with every other at once, both ways, at offsets that nothing is aligned to.
fn exchange() -> Outcome {
    let world = World::init()?;
    let (on, me, ranks) = (world.communicator(), world.rank() as usize, world.communicator().size() as usize);
    let device = device(&world)?;
    let send_kind = kind("IPC_KIND", BufferKind::Device);
    let into_kind = kind("IPC_INTO", send_kind);
    let small = std::env::var_os("IPC_SIZES").is_some();
    for len in SIZES.into_iter().filter(|len| !small || *len < 16 << 10) {
        let first = len % 7 + 1;
        let mut out = DeviceBuffer::new(world.devices(), device, send_kind, len + 16)?;
        let mut inbox = DeviceBuffer::new(world.devices(), device, into_kind, len + 16)?;
        for round in 0..ROUNDS as usize {
            for shift in 1..ranks {
                let (to, from) = ((me + shift) % ranks, (me + ranks - shift) % ranks);
                let seed = |from: usize, to: usize| ((round * 10 + from) * 10 + to) * 100 + len;
                out.copy_from_host(0, &vec![0xaa; len + 16])?;
                inbox.copy_from_host(0, &vec![0xbb; len + 16])?;
                out.copy_from_host(first, &bytes(seed(me, to), len))?;
                {
                    let part = DeviceSlice::new(&out, first..first + len)?;
                    let mut room = DeviceSliceMut::new(&mut inbox, first + 1..first + 1 + len)?;
                    on.sendrecv(&part, (to as u32, 0), &mut room, (from as u32, 0))?;
                }
                let mut expected = vec![0xbb; len + 16];
                expected[first + 1..first + 1 + len].copy_from_slice(&bytes(seed(from, me), len));
                expect(&inbox, 0, &expected)?;
                expect(&out, first, &bytes(seed(me, to), len))?;
            }
        }
        on.barrier()?;
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// A message each way until both are copied from device to device many times in a row. Nobody has to wait for that:
/// until memory is mapped, its messages go through the host.
fn settled() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank() as usize, 1 - world.rank());
    let device = device(&world)?;
    let len = std::env::var("IPC_LEN").map_or(70_001, |len| len.parse().expect("a length"));
    let send_kind = kind("IPC_KIND", BufferKind::Device);
    let mut out = DeviceBuffer::new(world.devices(), device, send_kind, len)?;
    let mut inbox = DeviceBuffer::new(world.devices(), device, kind("IPC_INTO", send_kind), len)?;
    let (start, mut again) = (Instant::now(), 0);
    for round in 0.. {
        let seed = |rank: usize| round * 2 + rank;
        out.copy_from_host(0, &bytes(seed(me), len))?;
        let before = world.counters().device_direct.get();
        on.sendrecv(&out, (peer, 0), &mut inbox, (peer, 0))?;
        expect(&inbox, 0, &bytes(seed(peer as usize), len))?;
        let made = [(world.counters().device_direct.get() - before) as u8];
        let mut others = [0];
        on.sendrecv(&made, (peer, 1), &mut others, (peer, 1))?;
        match made[0] + others[0] {
            2 => again += 1,
            fewer if start.elapsed() > SOON => return Err(format!("{fewer} of two in round {round}").into()),
            // Before the ranks on one device have settled who copies, they may have copied other buffers.
            _ => again = 0,
        }
        if again > 20 {
            break;
        }
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// Allocations that come and go between messages, at the addresses of those before. Descriptors stay as many.
fn fresh() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank() as usize, 1 - world.rank());
    let device = device(&world)?;
    let kind = kind("IPC_KIND", BufferKind::Device);
    // Of a pool nothing is known any more once nothing is left in it.
    let _kept =
        std::env::var_os("IPC_KEEP").map(|_| DeviceBuffer::new(world.devices(), device, kind, 1)).transpose()?;
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    let mut at_first = 0;
    for round in 0..24 {
        let len = [5000, 70_000, 3 << 20][round % 3];
        let mut out = DeviceBuffer::new(world.devices(), device, kind, len)?;
        let inbox_len = len + round % 2;
        let mut inbox = DeviceBuffer::new(world.devices(), device, kind, inbox_len)?;
        for again in 0..3 {
            let seed = |rank: usize| (round * 3 + again) * 2 + rank;
            out.copy_from_host(0, &bytes(seed(me), len))?;
            on.sendrecv(&out, (peer, 0), &mut inbox, (peer, 0))?;
            expect(&inbox, 0, &bytes(seed(peer as usize), len))?;
        }
        if round == 8 {
            at_first = descriptors()?;
        }
    }
    // What is no more is told of now and then, and each goes on until the other has heard.
    let start = Instant::now();
    loop {
        let settled = descriptors()? <= at_first + 4;
        let mut others = [0];
        on.sendrecv(&[u8::from(settled)], (peer, 1), &mut others, (peer, 1))?;
        if settled && others == [1] {
            break;
        }
        if start.elapsed() > SOON && !settled {
            return Err(format!("{} descriptors where there were {at_first}", descriptors()?).into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// Many buffers in turns, and messages in flight between them.
fn many() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank() as usize, 1 - world.rank());
    let device = device(&world)?;
    let (kind, len) = (kind("IPC_KIND", BufferKind::Device), 60_000);
    let buffer = || DeviceBuffer::new(world.devices(), device, kind, len);
    let mut out = (0..8).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
    let mut inboxes = (0..8).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
    for round in 0..10 {
        let seed = |rank: usize, index: usize| (round * 8 + index) * 2 + rank;
        for (index, buffer) in out.iter_mut().enumerate() {
            buffer.copy_from_host(0, &bytes(seed(me, index), len))?;
        }
        on.scope(|scope| -> Result<(), cableway::Error> {
            let receives: Vec<_> = inboxes
                .iter_mut()
                .enumerate()
                .map(|(index, room)| scope.irecv(room, peer, index as i32))
                .collect::<Result<_, _>>()?;
            let sends: Vec<_> = out
                .iter()
                .enumerate()
                .map(|(index, buffer)| scope.isend(buffer, peer, index as i32))
                .collect::<Result<_, _>>()?;
            receives.into_iter().chain(sends).try_for_each(|request| request.wait().map(drop))
        })?;
        for (index, buffer) in inboxes.iter().enumerate() {
            expect(buffer, 0, &bytes(seed(peer as usize, index), len))?;
        }
    }
    tell(&world);
    Ok(on.barrier()?)
}

const ONE_WAY: usize = 8;

fn has_shared_pools() -> Outcome {
    let world = World::init()?;
    let made = DeviceBuffer::new(world.devices(), device(&world)?, BufferKind::PoolShared, 1);
    println!("shared pools {}", u8::from(made.is_ok()));
    Ok(())
}

/// From rank 0 to rank 1 only.
fn one_way() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let device = device(&world)?;
    let mut buffer = DeviceBuffer::new(world.devices(), device, BufferKind::Device, 5000)?;
    for round in 0..ONE_WAY {
        if world.rank() == 0 {
            buffer.copy_from_host(0, &bytes(round, 5000))?;
            on.send(&buffer, 1, 0)?;
        } else {
            on.recv(&mut buffer, 0, 0)?;
            expect(&buffer, 0, &bytes(round, 5000))?;
        }
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// Rank 1 dies while the others have its memory mapped and a message of its announced.
fn killed() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let device = device(&world)?;
    let mut buffer = DeviceBuffer::new(world.devices(), device, kind("IPC_KIND", BufferKind::Device), 4 << 20)?;
    let exchange = |buffer: &mut DeviceBuffer, peer: u32| -> Outcome {
        for round in 0..8 {
            if world.rank() < peer {
                buffer.copy_from_host(0, &bytes(round, 4 << 20))?;
                on.send(&*buffer, peer, 0)?;
            } else {
                on.recv(buffer, peer, 0)?;
                expect(buffer, 0, &bytes(round, 4 << 20))?;
            }
        }
        Ok(())
    };
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        let me = world.rank();
        if me == one || me == other {
            exchange(&mut buffer, one + other - me)?;
        }
    }
    on.barrier()?;
    if world.rank() == 1 {
        return on.scope(|scope| {
            let _sends = [scope.isend(&buffer, 0, 1)?, scope.isend(&buffer, 2, 1)?];
            on.recv(&mut [0_u8; 1], cableway::Any, 2)?;
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
            Err("still alive".into())
        });
    }
    on.probe(1, 1)?;
    if world.rank() == 0 {
        on.send(&[0_u8], 1, 2)?;
    }
    // The announced message may have come whole, or not; the next one never does.
    let _ = on.recv(&mut buffer, 1, 1);
    if on.recv(&mut buffer, 1, 1).is_ok() {
        return Err("a dead rank sends".into());
    }
    exchange(&mut buffer, 2 - world.rank())?;
    println!("survived");
    Ok(())
}
