//! Puts and gets of elements of layouts, between every pair of memories.

use cableway::{Communicator, Datatype, DeviceBuffer, Layout, Predefined, Signal, SignalUpdate};
use cableway::{Target, TypedSlice, TypedSliceMut, World};

use super::{Outcome, Window, exchange, expect, expect_bytes, on_device, pattern, places, with_every_driver};
use crate::support::{Driver, finish, over, role_job, skip, transports};

/// The bytes before the data hold signals.
const SIGNALS: usize = 64;

const LENGTHS: [usize; 2] = [48, 120_000];

/// The first layouts, which are regular. The last one is a run.
const REGULAR: usize = 2;

/// Between devices that map each other, the caller's kernels copy rows. Nothing else in blocks goes directly.
pub(super) fn over_every_transport() {
    with_every_driver(2, "one_sided_layouts");
    let driver = Driver::find();
    if !driver.simulated || !transports().contains(&"sm".to_owned()) {
        return skip("whether devices share their memory is the machine's affair");
    }
    let options = [over("sm"), driver.options()].concat();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let finished = finish(&mut role_job(2, &options, "one_sided_layouts")).assert_success();
    let direct = |what: &str| {
        let counts = finished.stdout.lines().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        counts.map(|count| count.parse::<u64>().expect("a count")).sum::<u64>()
    };
    assert!(direct("rows") > 0 && direct("others") == 0, "{finished:#?}");
}

/// Returns layouts of so many bytes: rows, planes, blocks in no order, one run.
fn layouts(len: usize) -> Result<Vec<Layout>, cableway::Error> {
    let (byte, rows) = (Predefined::Byte.datatype(), len as i64 / 8);
    let pair = Datatype::hvector(2, 4, 5, &byte)?;
    // More blocks than an ask has room for, and each of another length than the one before.
    let lengths: Vec<i64> = (0..len as i64 / 24).flat_map(|_| [5, 19]).collect();
    let offsets: Vec<i64> = (0..lengths.len() as i64).map(|at| 25 * (lengths.len() as i64 - 1 - at)).collect();
    Ok(vec![
        Layout::rows(rows as u64, 8, 12)?,
        Datatype::hvector(rows, 1, 11, &pair)?.commit(),
        Datatype::hindexed(&lengths, &offsets, &byte)?.commit(),
        Layout::rows(1, len as u64, 0)?,
    ])
}

fn range(layout: &Layout) -> usize {
    layout.span(1).map_or(0, |(low, len)| low as usize + len as usize)
}

/// Stores packed data where it lies.
fn scatter(layout: &Layout, packed: &[u8], into: &mut [u8]) {
    let mut packed = packed.iter();
    for block in layout.blocks(1) {
        let place = &mut into[block.offset as usize..][..block.len as usize];
        place.iter_mut().zip(&mut packed).for_each(|(place, byte)| *place = *byte);
    }
}

/// The caller's memory.
enum Room {
    Host(Vec<u8>),
    Device(DeviceBuffer),
}

impl Room {
    fn put(&self, on: &Communicator, layout: &Layout, to: Target<'_>, signal: Option<Signal<'_>>) -> Outcome {
        let data = match self {
            Room::Host(memory) => TypedSlice::new(memory, 1, layout)?,
            Room::Device(memory) => TypedSlice::new(memory, 1, layout)?,
        };
        match signal {
            Some(signal) => on.put_signal(&data, to, signal)?,
            None => on.scope(|scope| scope.put(&data, to)?.wait().map(drop))?,
        }
        Ok(())
    }

    fn get(&mut self, on: &Communicator, layout: &Layout, from: Target<'_>, signal: Option<Signal<'_>>) -> Outcome {
        let mut room = match self {
            Room::Host(memory) => TypedSliceMut::new(memory, 1, layout)?,
            Room::Device(memory) => TypedSliceMut::new(memory, 1, layout)?,
        };
        match signal {
            Some(signal) => on.get_signal(&mut room, from, signal)?,
            None => on.get(&mut room, from)?,
        }
        Ok(())
    }

    fn bytes(self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        Ok(match self {
            Room::Host(bytes) => bytes,
            Room::Device(buffer) => {
                let mut bytes = vec![0; buffer.len()];
                buffer.copy_to_host(0, &mut bytes)?;
                bytes
            }
        })
    }
}

/// Both ranks put to each other at the same time, and get what they put.
pub(super) fn layouts_move() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let places = places(&world)?;
    let len = SIGNALS + 3 * LENGTHS[1] + 64;
    let windows: Vec<Window> =
        places.iter().map(|&device| Window::new(&world, device, len)).collect::<Result<_, _>>()?;
    let keys = exchange(on, &windows)?;
    let theirs = &keys[places.len() * peer as usize..][..places.len()];
    let mut models = vec![vec![0_u8; len]; places.len()];
    let (mut signals, mut seed) = (vec![0_u64; places.len()], 0);
    // What went directly: rows between devices, and all else in blocks.
    let (count, mut direct) = (|| world.counters().one_sided_direct.get(), [0; 2]);
    for size in LENGTHS {
        let layouts = layouts(size)?;
        for (here, there) in (0..layouts.len()).flat_map(|here| (0..layouts.len()).map(move |there| (here, there))) {
            let (local, remote) = (&layouts[here], &layouts[there]);
            for (at, place) in (0..places.len()).flat_map(|at| places.iter().map(move |place| (at, *place))) {
                seed += 2;
                let what = format!("{size} bytes, {local:?} in {place:?} to {remote:?} in {:?}", places[at]);
                let offset = SIGNALS + seed as usize % 3;
                let (data, coming) = (pattern(size, seed + me), pattern(size, seed + peer));
                let new = |bytes: &[u8]| -> Result<Room, Box<dyn std::error::Error>> {
                    Ok(match place {
                        None => Room::Host(bytes.to_vec()),
                        Some(device) => Room::Device(on_device(&world, device, bytes)?),
                    })
                };
                let before = count();
                let mut content = vec![0x55; range(local) + 7];
                scatter(local, &data, &mut content);
                let to = theirs[at].at(offset as u64).typed(1, remote);
                let signal = Signal { at: theirs[at].at(8), update: SignalUpdate::Add(1) };
                let signaled = seed % 4 == 0;
                new(&content)?.put(on, local, to, signaled.then_some(signal))?;
                match signaled {
                    true => {
                        signals[at] += 1;
                        windows[at].wait_until(8, peer, |count| count == signals[at])?;
                    }
                    false => on.barrier()?,
                }
                models[at][8..16].copy_from_slice(&signals[at].to_le_bytes());
                scatter(remote, &coming, &mut models[at][offset..]);
                let end = offset + range(remote) + 32;
                expect_bytes(&what, &windows[at].bytes(end)?, &models[at][..end])?;
                on.barrier()?;
                let mut room = new(&vec![0x55; range(local) + 7])?;
                room.get(on, local, to, (!signaled).then_some(signal))?;
                expect_bytes(&format!("get of {what}"), &room.bytes()?, &content)?;
                if !signaled {
                    signals[at] += 1;
                    windows[at].wait_until(8, peer, |count| count == signals[at])?;
                    models[at][8..16].copy_from_slice(&signals[at].to_le_bytes());
                }
                let in_blocks = here.min(there) < layouts.len() - 1;
                let regular = |layout| layout < REGULAR || layout == layouts.len() - 1;
                let rows = regular(here) && regular(there) && place.is_some() && places[at].is_some();
                direct[usize::from(!rows)] += u64::from(in_blocks) * (count() - before);
                on.barrier()?;
            }
        }
    }
    println!("rows {}\nothers {}", direct[0], direct[1]);
    mistakes(&world, &theirs[0], len as u64)
}

/// What the caller can know is an error there, and nothing is written.
fn mistakes(world: &World, key: &cableway::RemoteKey, len: u64) -> Outcome {
    let (on, rows) = (world.communicator(), Layout::rows(4, 8, 16)?);
    let text = |result: Result<(), cableway::Error>| result.err().map(|error| error.to_string()).unwrap_or_default();
    let short = text(on.put(&[0_u8; 31], key.at(0).typed(1, &rows)));
    expect(short.contains("31 and 32 bytes: describe equal amounts"), true)?;
    let outside = text(on.put(&[0_u8; 32], key.at(len - 55).typed(1, &rows)));
    expect(outside.contains("exceed the registered memory"), true)?;
    let upwards = Layout::rows(4, 8, -16)?;
    let below = text(on.get(&mut [0_u8; 32], key.at(47).typed(1, &upwards)));
    expect(below.contains("exceed the registered memory"), true)?;
    expect(TypedSlice::new(&[0_u8; 55], 1, &rows).is_err() && TypedSlice::new(&[0_u8; 56], 1, &rows).is_ok(), true)
}
