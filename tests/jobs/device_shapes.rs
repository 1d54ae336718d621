//! Device memory in blocks, sent and received with every pair of layouts. Kernels copy regular blocks directly and pack
//! irregular ones. Messages also arrive without kernels.

use std::error::Error;

use cableway::{BufferKind, Datatype, DeviceBuffer, DeviceIndex, Layout, Predefined, RawBuffer, World};

use crate::support::{Driver, Finished, Role, Test, finish, role_job};

pub(crate) const TESTS: &[Test] = &[
    ("device_shapes::every_layout_is_sent_to_every_other", every_layout_to_every_other),
    ("device_shapes::every_layout_is_sent_to_the_same_process", every_layout_to_itself),
    ("device_shapes::kernels_work_without_scratch_memory", kernels_without_scratch_memory),
    ("device_shapes::kernels_pack_staged_messages", packed_by_kernels),
    ("device_shapes::messages_pass_without_kernels", without_kernels),
    ("device_shapes::a_peer_killed_between_pieces_is_an_error_soon", killed_between_pieces),
];

pub(crate) const ROLES: &[Role] = &[("device_shapes", shapes), ("device_pieces_killed", killed)];

type Outcome = Result<(), Box<dyn Error>>;

fn run(options: &[&str], variables: &[(&str, &str)]) -> Finished {
    run_among(2, options, variables)
}

fn run_among(ranks: u32, options: &[&str], variables: &[(&str, &str)]) -> Finished {
    let folder = Driver::find().folder;
    let mut all = vec![crate::support::libdir_option(), folder.to_str().expect("a folder"), "--set", "btl=sm"];
    // On a busy machine copies of the simulated driver take as long as a turn.
    all.extend(["--set", "device_turn_latency=1s"]);
    all.extend(options);
    let mut job = role_job(ranks, &all, "device_shapes");
    finish(job.envs(variables.iter().copied())).assert_success()
}

/// Returns the number of copies from device to device that all ranks report.
fn direct(finished: &Finished) -> u64 {
    let counts = finished.stdout.lines().filter_map(|line| line.strip_prefix("direct "));
    counts.map(|count| count.parse::<u64>().expect("a count")).sum()
}

/// The messages between regular layouts of both ranks, at least those of the later rounds.
const REGULAR: u64 = 2 * (ROUNDS as u64 - 2) * 4 * 4 * COUNTS.len() as u64;

/// The longer messages of one pair of layouts.
const ONE_PAIR: u64 = 2 * (ROUNDS as u64 - 2);

/// No kernel is revoked, however slow the machine is. Messages that kernels do not pack are staged.
const PATIENTLY: [&str; 2] = ["--set", "device_kernel_patience=20s"];

fn every_layout_to_every_other() {
    // Messages from and to the irregular layout are packed into one run, or sent in pieces.
    let all = REGULAR + 9 * ONE_PAIR;
    for variables in [&[][..], &[("CUDA_VISIBLE_DEVICES", "0")]] {
        let found = direct(&run(&PATIENTLY, variables));
        assert!(found >= all, "{found} of {all} with {variables:?}");
    }
    // First the receiver copies messages of every size, then the sender.
    for limit in ["0", "1G"] {
        let found = direct(&run(&[&PATIENTLY[..], &["--set", &format!("device_push_limit={limit}")]].concat(), &[]));
        assert!(found >= all, "{found} of {all} with a limit of {limit}");
    }
    // Without pieces: stored into one run, or fetched from one.
    for (limit, pairs) in [("0", 2), ("1G", 1)] {
        let limit = format!("device_push_limit={limit}");
        let options = |size| [&PATIENTLY[..], &["--set", &limit, "--set", size]].concat();
        let found = direct(&run(&options("device_scratch_size=0"), &[]));
        let all = REGULAR + pairs * ONE_PAIR;
        assert!(found >= all, "{found} of {all} with {limit}");
        let (more, others) = (direct(&run(&options("device_scratch_size=32M"), &[])), (9 - pairs) * ONE_PAIR);
        assert!(more >= found + others, "{more}, no {others} more than {found} with {limit}");
    }
    // Each message is sent in several pieces, more than fit at a time.
    run(&["--set", "device_scratch_size=64K"], &[]);
}

fn every_layout_to_itself() {
    // All messages of regular layouts, and the longer ones from or to the irregular layout, are moved by kernels.
    let all = (ROUNDS * (4 * 4 * COUNTS.len() + 9)) as u64;
    for limit in ["0", "1G"] {
        let found =
            direct(&run_among(1, &[&PATIENTLY[..], &["--set", &format!("device_push_limit={limit}")]].concat(), &[]));
        assert!(found >= all, "{found} of {all} with a limit of {limit}");
    }
    run_among(1, &["--set", "device_scratch_size=64K"], &[]);
    run_among(1, &["--set", "device_kernels=no"], &[]);
    assert_eq!(direct(&run_among(1, &["--set", "device_protocols=copy"], &[])), 0);
}

fn kernels_without_scratch_memory() {
    if Driver::find().simulated {
        for patience in ["100us", "1s"] {
            let set = format!("device_kernel_patience={patience}");
            run(&["--set", &set], &[("SIM_CUDA_KERNEL_DELAY_US", "1000")]);
        }
        for fault in ["cuModuleLoadData:218", "cuLaunchKernel:719", "cuGraphCreate:801,cuLaunchKernel:1:9+"] {
            run(&[], &[("SIM_CUDA_FAIL", fault)]);
        }
        // By graphs: always, or until the driver refuses it, or until it launches nothing any more.
        for fault in ["", "cuGraphLaunch:1:20+", "cuGraphLaunch:1:20+,cuLaunchKernel:1:17+"] {
            run(&[], &[("SIM_CUDA_SLOW", "cuLaunchKernel:200"), ("SIM_CUDA_FAIL", fault)]);
        }
    } else {
        crate::support::skip("kernels are delayed by the simulated driver only");
    }
}

/// Sends through host memory. Kernels pack and unpack if they can.
fn packed_by_kernels() {
    for staged in ["device_ipc=no", "btl=tcp"] {
        for latency in ["0us", "4us"] {
            run(&["--set", staged, "--set", &format!("device_pack_latency={latency}")], &[]);
        }
    }
    if Driver::find().simulated {
        let options =
            ["--set", "device_ipc=no", "--set", "device_pack_latency=0us", "--set", "device_kernel_patience=100us"];
        run(&options, &[("SIM_CUDA_KERNEL_DELAY_US", "1000")]);
    }
}

fn without_kernels() {
    run(&["--set", "device_kernels=no"], &[]);
    assert_eq!(direct(&run(&["--set", "device_protocols=copy"], &[])), 0);
}

fn killed_between_pieces() {
    let folder = Driver::find().folder;
    let all = [crate::support::libdir_option(), folder.to_str().expect("a folder"), "--set", "btl=sm", "--keep-going"];
    for variables in [&[][..], &[("CUDA_VISIBLE_DEVICES", "0")]] {
        let options = [&all[..], &PATIENTLY[..], &["--set", "device_scratch_size=64K"]].concat();
        let finished = finish(role_job(3, &options, "device_pieces_killed").envs(variables.iter().copied()));
        let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
        assert_eq!(survived, 2, "{finished:#?}");
        assert!(direct(&finished) > 0, "{finished:#?}");
    }
}

/// Ranks 0 and 2 receive hundreds of pieces from rank 1, which dies meanwhile. Then they exchange messages with each
/// other.
fn killed() -> Outcome {
    /// Of 1200 bytes each.
    const ELEMENTS: u64 = 4000;
    const EXTENT: usize = 3000;
    let world = World::init()?;
    let (on, me) = (world.communicator(), world.rank());
    world.devices().initialise()?;
    let device = DeviceIndex(me % world.devices().facts()?.devices.len() as u32);
    let len = ELEMENTS as usize * EXTENT;
    let mut buffer = DeviceBuffer::new(world.devices(), device, BufferKind::Device, len)?;
    let layout = layouts()?.pop().ok_or("a layout")?;
    let data: Vec<u8> = bytes(1).into_iter().cycle().take(len).collect();
    let count = 40;
    let address = buffer.as_device_ptr();
    let mut exchange = |peer: u32, sends: bool| -> Outcome {
        for _ in 0..4 {
            let content = if sends { &data[..] } else { &vec![0xbb; len][..] };
            buffer.copy_from_host(0, content)?;
            // SAFETY: the buffer outlives its view, and nobody touches it meanwhile.
            let mut whole = unsafe { RawBuffer::typed(address.cast(), count, &layout) };
            if sends {
                on.send(&whole, peer, 0)?;
                continue;
            }
            on.recv(&mut whole, peer, 0)?;
            let mut found = vec![0; len];
            buffer.copy_to_host(0, &mut found)?;
            let mut expected = content.to_vec();
            for place in places(&layout, count) {
                expected[place as usize] = data[place as usize];
            }
            if found != expected {
                return Err("something arrived wrong".into());
            }
        }
        Ok(())
    };
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        if me == one || me == other {
            // Both directions. On a busy machine the first received message may find no scratch memory. It is then
            // staged as a whole.
            exchange(one + other - me, me == one)?;
            exchange(one + other - me, me == other)?;
        }
    }
    on.barrier()?;
    // SAFETY: as above.
    let mut all = unsafe { RawBuffer::typed(address.cast(), ELEMENTS, &layout) };
    if me == 1 {
        return on.scope(|scope| {
            let sends = [scope.isend(&all, 0, 1)?, scope.isend(&all, 2, 1)?];
            // Some pieces are in flight, but far from all.
            let start = world.counters().device_direct.get();
            while world.counters().device_direct.get() < start + 20 {
                if sends.iter().all(|send| send.is_complete()) {
                    return Err("it was sent already".into());
                }
            }
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
            Err("still alive".into())
        });
    }
    if on.recv(&mut all, 1, 1).is_ok() {
        return Err("a dead rank sends".into());
    }
    exchange(2 - me, me == 0)?;
    println!("survived");
    println!("direct {}", world.counters().device_direct.get());
    Ok(())
}

const ROUNDS: usize = 3;
/// Elements of 1200 bytes each.
const COUNTS: [u64; 2] = [1, 40];
const ELEMENT: u64 = 1200;
const ROOM: usize = 256 << 10;

/// Returns layouts of 1200 bytes. The last one is irregular.
fn layouts() -> Result<Vec<Layout>, cableway::Error> {
    let byte = Predefined::Byte.datatype();
    let rows = Datatype::resized(&Datatype::vector(30, 40, 72, &byte)?, 0, 2200)?;
    let plane = Datatype::hvector(3, 1, 60, &Datatype::vector(2, 8, 16, &byte)?)?;
    let cube = Datatype::resized(&Datatype::hvector(25, 1, 200, &plane)?, 0, 5008)?;
    let backwards = Datatype::resized(&Datatype::hvector(100, 12, -20, &byte)?, 0, 2100)?;
    let lens: Vec<i64> = (0..24).map(|i| 38 + i).chain([1200 - (0..24).map(|i| 38 + i).sum::<i64>()]).collect();
    let places: Vec<i64> = (0..25).map(|i| i * 83 + i * i % 7).collect();
    let irregular = Datatype::resized(&Datatype::indexed(&lens, &places, &byte)?, 0, 3000)?;
    Ok([Datatype::contiguous(ELEMENT as i64, &byte)?, rows, cube, backwards, irregular]
        .iter()
        .map(Datatype::commit)
        .collect())
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..ROOM).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 11) as u8).collect()
}

/// Returns the offsets of a message's bytes from the buffer's address.
fn places(layout: &Layout, count: u64) -> Vec<i64> {
    layout.blocks(count).flat_map(|block| (0..block.len).map(move |byte| block.offset + byte as i64)).collect()
}

fn shapes() -> Outcome {
    /// Before the buffers' addresses, for layouts that go backwards.
    const FIRST: usize = 4096;
    let world = World::init()?;
    // The other rank of two, or the only one.
    let (on, me, peer) = (world.communicator(), world.rank(), world.size() - 1 - world.rank());
    world.devices().initialise()?;
    let device = DeviceIndex(me % world.devices().facts()?.devices.len() as u32);
    let mut out = DeviceBuffer::new(world.devices(), device, BufferKind::Device, ROOM)?;
    let mut inbox = DeviceBuffer::new(world.devices(), device, BufferKind::Device, ROOM)?;
    let blank = vec![0xbb; ROOM];
    let layouts = layouts()?;
    for round in 0..ROUNDS {
        out.copy_from_host(0, &bytes(round * 2 + me as usize))?;
        let theirs = bytes(round * 2 + peer as usize);
        for from in &layouts {
            for to in &layouts {
                for count in COUNTS {
                    inbox.copy_from_host(0, &blank)?;
                    // SAFETY: both buffers outlive their views, and nobody touches them meanwhile.
                    let (send, mut receive) = unsafe {
                        let at = |buffer: &DeviceBuffer| buffer.as_device_ptr().add(FIRST).cast();
                        (RawBuffer::typed(at(&out), count, from), RawBuffer::typed(at(&inbox), count, to))
                    };
                    on.sendrecv(&send, (peer, 0), &mut receive, (peer, 0))?;
                    let mut expected = blank.clone();
                    let at = |place: i64| (FIRST as i64 + place) as usize;
                    for (to, from) in places(to, count).into_iter().zip(places(from, count)) {
                        expected[at(to)] = theirs[at(from)];
                    }
                    let mut found = vec![0; ROOM];
                    inbox.copy_to_host(0, &mut found)?;
                    if let Some(wrong) = found.iter().zip(&expected).position(|(found, expected)| found != expected) {
                        return Err(format!("byte {wrong} of {count} times {from:?} to {to:?}").into());
                    }
                }
            }
        }
        on.barrier()?;
    }
    println!("direct {}", world.counters().device_direct.get());
    Ok(on.barrier()?)
}
