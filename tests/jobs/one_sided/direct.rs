//! Puts and gets that the owner takes no part in, between processes.

use cableway::{DeviceIndex, DeviceSlice, DeviceSliceMut, Signal, SignalUpdate, World};
use serde_json::Value;

use super::{Outcome, Window, exchange, expect, expect_bytes, on_device, pattern, places};
use crate::support::{Driver, Finished, cableway, finish, over, role_job, skip, transports};

const LEN: usize = 1 << 20;
const ROUNDS: u64 = 10;

/// Over shared memory host memory goes by a single copy, and device memory by the device's copy through its IPC handle.
/// Over verbs host memory goes by RDMA. Over tcp the link stores data, and fetches none. Nothing goes directly between host
/// and device, or where `device_protocols=copy` forbids it to devices.
pub(super) fn over_every_transport() {
    let driver = Driver::find();
    let host = single_copy();
    for (btl, copy) in transports().iter().flat_map(|btl| [(btl, false), (btl, true)]) {
        let finished = job(btl, copy, &driver);
        for (from, to) in ["host", "device"].iter().flat_map(|from| ["host", "device"].map(|to| (*from, to))) {
            let reached = match (btl.as_str(), from, to) {
                ("tcp", ..) => from == "host" && to == "host",
                ("sm", "host", "host") if !host => {
                    skip("this machine allows no single copy between processes");
                    false
                }
                (_, "host", "host") => true,
                ("sm", "device", "device") if !driver.simulated => {
                    skip("whether devices share their memory is the machine's affair");
                    continue;
                }
                ("sm", "device", "device") => !copy,
                _ => false,
            };
            // The first puts ask for the exposure of the word and of the data.
            let fetches = btl != "tcp";
            let expected = if reached { [ROUNDS - 1, if fetches { ROUNDS } else { 0 }] } else { [0, 0] };
            assert_eq!(counts(&finished, from, to), expected, "{btl}, {from} to {to}, {copy}: {finished:#?}");
        }
    }
}

fn job(btl: &str, copy: bool, driver: &Driver) -> Finished {
    let mut options = [over(btl), driver.options()].concat();
    if copy {
        options.extend(["--set", "device_protocols=copy"].map(str::to_owned));
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    finish(&mut role_job(2, &options, "one_sided_direct")).assert_success()
}

/// Returns whether processes may copy from each other's host memory.
fn single_copy() -> bool {
    let info = finish(cableway().args(["info", "--format", "json"])).assert_success();
    let info: Value = serde_json::from_str(&info.stdout).expect("info prints an object");
    info["single_copy"]["cma"].as_str().is_some_and(|text| text.starts_with("allowed"))
}

/// Returns how many puts and gets between two memories went directly.
fn counts(finished: &Finished, from: &str, to: &str) -> [u64; 2] {
    let named = format!("direct {from} {to} ");
    let line = finished.stdout.lines().find_map(|line| line.strip_prefix(&named));
    let line = line.unwrap_or_else(|| panic!("no counts from {from} to {to}: {finished:#?}"));
    let counts: Vec<u64> = line.split(' ').map(|count| count.parse().expect("a count")).collect();
    [counts[0], counts[1]]
}

/// Rank 0 puts and gets. It prints for each pair of memories how many of them went directly.
pub(super) fn direct() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let places = places(&world)?;
    let name = |place: Option<DeviceIndex>| if place.is_some() { "device" } else { "host" };
    for (local, remote) in places.iter().flat_map(|&local| places.iter().map(move |&remote| (local, remote))) {
        let windows = [Window::new(&world, remote, LEN)?, Window::new(&world, None, 8)?];
        let keys = exchange(on, &windows)?;
        let (data, word) = (keys[2], keys[3]);
        if world.rank() == 0 {
            let count = || world.counters().one_sided_direct.get();
            let mut puts = 0;
            for round in 0..=ROUNDS {
                let before = count();
                let bytes = pattern(LEN, round as u32);
                let signal = Signal { at: word.at(0), update: SignalUpdate::Set(round + 1) };
                let device = local.map(|device| on_device(&world, device, &bytes)).transpose()?;
                match &device {
                    None => on.put_signal(&bytes, data.at(0), signal)?,
                    Some(device) => on.put_signal(&DeviceSlice::new(device, 0..LEN)?, data.at(0), signal)?,
                }
                puts += count() - before;
                on.send(&[0_u8], 1, 0)?;
                on.recv(&mut [0_u8], 1, 0)?;
            }
            let (before, mut room) = (count(), vec![0; LEN]);
            for round in 0..ROUNDS {
                room.fill(0);
                let signal = Signal { at: word.at(0), update: SignalUpdate::Add(1) };
                match local {
                    None if round % 2 == 0 => on.get(&mut room, data.at(0))?,
                    None => on.get_signal(&mut room, data.at(0), signal)?,
                    Some(device) => {
                        let mut buffer = on_device(&world, device, &room)?;
                        let mut into = DeviceSliceMut::new(&mut buffer, 0..LEN)?;
                        if round % 2 == 0 {
                            on.get(&mut into, data.at(0))?;
                        } else {
                            on.get_signal(&mut into, data.at(0), signal)?;
                        }
                        buffer.copy_to_host(0, &mut room)?;
                    }
                }
                expect_bytes("what was got", &room, &pattern(LEN, ROUNDS as u32))?;
            }
            let (from, to) = (name(local), name(remote));
            println!("direct {from} {to} {puts} {}", count() - before);
        } else {
            for round in 0..=ROUNDS {
                on.recv(&mut [0_u8], 0, 0)?;
                expect(windows[1].load(0)?, round + 1)?;
                expect_bytes("what was put", &windows[0].bytes(LEN)?, &pattern(LEN, round as u32))?;
                on.send(&[0_u8], 0, 0)?;
            }
        }
        on.barrier()?;
        if world.rank() == 1 {
            expect(windows[1].load(0)?, ROUNDS + 1 + ROUNDS / 2)?;
        }
    }
    Ok(())
}
