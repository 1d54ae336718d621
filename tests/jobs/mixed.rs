//! Jobs with devices of two vendors: ranks on NVIDIA's beside ranks on AMD's, and processes that use both.

use std::error::Error;
use std::path::Path;

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, ElementsMut, ReduceOperation, RemoteKey, Vendor, World};

use crate::support::{Role, Test, finish, role_job, skip};

pub(crate) const TESTS: &[Test] = &[
    ("mixed::ranks_of_two_vendors_exchange_device_memory", || job(4, "mixed_messages")),
    ("mixed::ranks_of_two_vendors_reduce_and_broadcast_together", || job(4, "mixed_collectives")),
    ("mixed::ranks_of_two_vendors_put_and_get", || job(4, "mixed_one_sided")),
    ("mixed::one_process_uses_devices_of_both_vendors", || job(2, "mixed_process")),
];

pub(crate) const ROLES: &[Role] = &[
    ("mixed_messages", mixed_messages),
    ("mixed_collectives", mixed_collectives),
    ("mixed_one_sided", mixed_one_sided),
    ("mixed_process", mixed_process),
];

type Outcome = Result<(), Box<dyn Error>>;

const LENS: [usize; 5] = [1, 3000, 100_000, 700_000, 5_000_000];

/// Gives each process both simulated drivers.
fn job(ranks: u32, role: &str) {
    let folder = |vendor: sim_cuda::Vendor| vendor.folder().map(|folder| folder.to_string_lossy().into_owned());
    let (Some(cuda), Some(hip)) = (folder(sim_cuda::Vendor::Nvidia), folder(sim_cuda::Vendor::Amd)) else {
        return skip("no machine has devices of both vendors, and the simulated drivers are not here");
    };
    let folder = std::env::temp_dir().join(format!("cableway-mixed-{role}-{}", std::process::id()));
    for btl in ["btl=sm", "btl=tcp"] {
        std::fs::create_dir_all(&folder).expect("a folder");
        let options = ["--cuda-libdir", &cuda, "--hip-libdir", &hip, "--set", btl];
        let mut command = role_job(ranks, &options, role);
        command.env("SIM_CUDA_STATS", folder.join("cuda-%p")).env("SIM_HIP_STATS", folder.join("hip-%p"));
        finish(&mut command).assert_success();
        if role == "mixed_messages" {
            // Memory is mapped within each vendor, and only there: a foreign handle would not open.
            let shared_memory = btl == "btl=sm";
            assert_eq!([opened(&folder, "cuda-"), opened(&folder, "hip-")].map(|count| count > 0), [shared_memory; 2]);
        }
        std::fs::remove_dir_all(&folder).expect("its folder");
    }
}

/// Counts the handles of other processes' memory that the processes with these files of counts opened.
fn opened(folder: &Path, files: &str) -> u64 {
    let all = std::fs::read_dir(folder).expect("a folder").flatten();
    let ours = all.filter(|file| file.file_name().to_string_lossy().starts_with(files));
    let lines = ours.map(|file| std::fs::read_to_string(file.path()).expect("counts")).collect::<String>();
    lines.lines().filter_map(|line| line.strip_prefix("cuIpcOpenMemHandle ")?.parse::<u64>().ok()).sum()
}

/// Returns the devices of a vendor.
fn of_vendor(world: &World, vendor: Vendor) -> Result<Vec<DeviceIndex>, Box<dyn Error>> {
    world.devices().initialise()?;
    let facts = world.devices().facts()?;
    let found: Vec<_> = facts.devices.iter().filter(|device| device.vendor == vendor).map(|it| it.index).collect();
    if found.is_empty() { Err(format!("there is no device of {vendor}").into()) } else { Ok(found) }
}

/// Two ranks of each vendor.
fn own_device(world: &World) -> Result<DeviceIndex, Box<dyn Error>> {
    let vendor = if world.rank().is_multiple_of(2) { Vendor::Nvidia } else { Vendor::Amd };
    let found = of_vendor(world, vendor)?;
    Ok(found[world.rank() as usize / 2 % found.len()])
}

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 7919) >> 13) as u8).collect()
}

fn filled(world: &World, device: DeviceIndex, content: &[u8]) -> Result<DeviceBuffer, Box<dyn Error>> {
    let mut buffer = DeviceBuffer::new(world.devices(), device, BufferKind::Device, content.len())?;
    buffer.copy_from_host(0, content)?;
    Ok(buffer)
}

fn expect(buffer: &DeviceBuffer, expected: &[u8], what: &str) -> Outcome {
    let mut found = vec![0; buffer.len()];
    buffer.copy_to_host(0, &mut found)?;
    if found == expected { Ok(()) } else { Err(format!("{what}: wrong bytes").into()) }
}

/// Every pair of ranks: within a vendor memory is mapped, between vendors it goes through the host.
fn mixed_messages() -> Outcome {
    let world = World::init()?;
    let (on, me) = (world.communicator(), world.rank());
    let device = own_device(&world)?;
    for len in LENS {
        let out = filled(&world, device, &bytes(me, len))?;
        for distance in 1..world.size() {
            let (to, from) = ((me + distance) % world.size(), (me + world.size() - distance) % world.size());
            // The second use maps the memory.
            for round in 0..3 {
                let mut inbox = filled(&world, device, &vec![0xee; len])?;
                on.sendrecv(&out, (to, round), &mut inbox, (from, round))?;
                expect(&inbox, &bytes(from, len), &format!("{len} bytes from {from} to {me}"))?;
            }
        }
    }
    Ok(on.barrier()?)
}

fn mixed_collectives() -> Outcome {
    let world = World::init()?;
    let everyone = world.communicator();
    let device = own_device(&world)?;
    for elements in [1, 1000, 300_000] {
        let mine = (everyone.rank() + 1).to_le_bytes().repeat(elements);
        let mut memory = filled(&world, device, &mine)?;
        everyone.allreduce_in_place(&mut ElementsMut::<u32>::new(&mut memory)?, ReduceOperation::Sum)?;
        let sum: u32 = (1..=everyone.size()).sum();
        expect(&memory, &sum.to_le_bytes().repeat(elements), "a sum")?;
    }
    Ok(everyone.barrier()?)
}

/// Each rank writes into the memory of the next one, which is of the other vendor, and reads it back.
fn mixed_one_sided() -> Outcome {
    let world = World::init()?;
    let (on, me) = (world.communicator(), world.rank());
    let (next, previous) = ((me + 1) % world.size(), (me + world.size() - 1) % world.size());
    let device = own_device(&world)?;
    for len in LENS {
        let window = world.register(filled(&world, device, &vec![0xee; len])?)?;
        let mut keys = vec![RemoteKey::default(); world.size() as usize];
        on.allgather(&[*window.key()], &mut keys)?;
        let vendors = [Vendor::Nvidia, Vendor::Amd];
        for (key, vendor) in keys.iter().zip(vendors.iter().cycle()) {
            if key.vendor() != Some(*vendor) {
                return Err(format!("the vendor of {key:?} is {:?}", key.vendor()).into());
            }
        }
        let target = &keys[next as usize];
        on.put(&filled(&world, device, &bytes(me, len))?, target.at(0))?;
        let mut back = filled(&world, device, &vec![0xee; len])?;
        on.get(&mut back, target.at(0))?;
        expect(&back, &bytes(me, len), &format!("{len} bytes read back from {next}"))?;
        on.barrier()?;
        expect(&window.into_memory(), &bytes(previous, len), &format!("{len} bytes put by {previous}"))?;
        on.barrier()?;
    }
    Ok(())
}

/// A rank sends itself memory of one vendor into memory of the other, and to the other rank likewise.
fn mixed_process() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let (nvidia, amd) = (of_vendor(&world, Vendor::Nvidia)?[0], of_vendor(&world, Vendor::Amd)?[0]);
    for len in LENS {
        for (from, to) in [(nvidia, amd), (amd, nvidia)] {
            let out = filled(&world, from, &bytes(me, len))?;
            let mut inbox = filled(&world, to, &vec![0xee; len])?;
            on.sendrecv(&out, (me, 1), &mut inbox, (me, 1))?;
            expect(&inbox, &bytes(me, len), &format!("{len} bytes to itself"))?;
            on.sendrecv(&out, (peer, 2), &mut inbox, (peer, 2))?;
            expect(&inbox, &bytes(peer, len), &format!("{len} bytes from the other rank"))?;
        }
    }
    Ok(on.barrier()?)
}
