//! Every operation, of every size, by one thread and by ten, between every pair of memories, with every byte checked.
//!
//! Each thread of rank 0 works on a slot of its own in rank 1's memory, and a thread of rank 1 checks the slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway::{DeviceBuffer, DeviceIndex, DeviceSlice, DeviceSliceMut, RemoteKey, Signal, SignalUpdate, World};
use parking_lot::Mutex;

use super::{NO_DRIVER, Outcome, WINDOWS, Window, exchange, expect, expect_bytes, on_device, pattern, places};
use crate::support::{Driver, finish, over, role_job, transports};

/// Operations of each thread together, for each size and pair of memories. `./check all` sets 1,000.
const COUNT: &str = "CABLEWAY_TEST_ONE_SIDED";
const FEW: u64 = 10;

const SIZES: [usize; 6] = [0, 8, 8116, 8117, 65_536, 1 << 20];
const LARGE: usize = 256 << 20;

/// Bytes after each slot that nothing may change.
const GUARD: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Put,
    PutSignal,
    Get,
    GetSignal,
    Atomic,
    Active,
    Message,
}

/// Runs a job over every transport, with device memory.
pub(super) fn jobs(role: &str) {
    let driver = Driver::find().options();
    let count = std::env::var(COUNT).unwrap_or_else(|_| FEW.to_string());
    for btl in transports() {
        let options = [over(&btl), driver.clone()].concat();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        finish(role_job(2, &options, role).env(COUNT, &count)).assert_success();
        if btl == "sm" {
            let mut job = role_job(2, &over(&btl).iter().map(String::as_str).collect::<Vec<_>>(), role);
            job.env(COUNT, &count).env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER).env(WINDOWS, "shared");
            finish(&mut job).assert_success();
        }
    }
}

pub(super) fn puts() -> Outcome {
    matrix(Operation::Put)
}

pub(super) fn signals() -> Outcome {
    matrix(Operation::PutSignal)
}

pub(super) fn gets() -> Outcome {
    matrix(Operation::Get)
}

pub(super) fn get_signals() -> Outcome {
    matrix(Operation::GetSignal)
}

pub(super) fn atomics() -> Outcome {
    matrix(Operation::Atomic)
}

pub(super) fn active() -> Outcome {
    matrix(Operation::Active)
}

pub(super) fn messages() -> Outcome {
    matrix(Operation::Message)
}

/// Memory of one thread, on the host or a device.
enum Room {
    Host(Vec<u8>),
    Device(DeviceBuffer),
}

impl Room {
    fn new(world: &World, place: Option<DeviceIndex>, len: usize) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(match place {
            None => Room::Host(vec![0x55; len]),
            Some(device) => Room::Device(on_device(world, device, &vec![0x55; len.max(1)])?),
        })
    }

    fn fill(&mut self, bytes: &[u8]) -> Outcome {
        match self {
            Room::Host(room) => room.copy_from_slice(bytes),
            Room::Device(room) => room.copy_from_host(0, bytes)?,
        }
        Ok(())
    }

    fn check(&self, what: &str, expected: &[u8]) -> Outcome {
        match self {
            Room::Host(room) => expect_bytes(what, room, expected),
            Room::Device(room) => {
                let mut bytes = vec![0; expected.len()];
                room.copy_to_host(0, &mut bytes)?;
                expect_bytes(what, &bytes, expected)
            }
        }
    }
}

/// Calls an operation with the first bytes of a room, whichever memory it is.
macro_rules! with_room {
    ($room:expr, $len:expr, $buffer:ident => $call:expr) => {
        match $room {
            Room::Host(room) => {
                let $buffer = &room[..$len];
                $call
            }
            Room::Device(room) => {
                let $buffer = &DeviceSlice::new(room, 0..$len)?;
                $call
            }
        }
    };
    (mut $room:expr, $len:expr, $buffer:ident => $call:expr) => {
        match $room {
            Room::Host(room) => {
                let $buffer = &mut room[..$len];
                $call
            }
            Room::Device(room) => {
                let $buffer = &mut DeviceSliceMut::new(room, 0..$len)?;
                $call
            }
        }
    };
}

fn matrix(operation: Operation) -> Outcome {
    let world = World::init()?;
    let count = std::env::var(COUNT).ok().map_or(Ok(FEW), |text| text.parse())?;
    let places = places(&world)?;
    let sizes: &[usize] = if operation == Operation::Atomic { &[8] } else { &SIZES };
    for pair in (0..places.len() * places.len()).map(|at| [at % places.len(), at / places.len()]) {
        let [local, remote] = pair.map(|at| places[at]);
        for (&size, threads) in sizes.iter().flat_map(|size| [(size, 1), (size, 10)]) {
            let rounds = count.div_ceil(threads);
            Case { world: &world, operation, local, remote, size, threads: threads as u32, rounds }.run()?;
        }
        if count > FEW && operation != Operation::Atomic {
            Case { world: &world, operation, local, remote, size: LARGE, threads: 1, rounds: 3 }.run()?;
        }
    }
    Ok(())
}

struct Case<'w> {
    world: &'w World,
    operation: Operation,
    /// Where rank 0's memory lies, and rank 1's.
    local: Option<DeviceIndex>,
    remote: Option<DeviceIndex>,
    size: usize,
    threads: u32,
    /// Operations of each thread.
    rounds: u64,
}

/// An active message's memory, and how many have landed. One is under way at a time.
struct Inbox {
    room: Mutex<Option<Room>>,
    landed: AtomicU64,
}

impl Case<'_> {
    fn run(&self) -> Outcome {
        let (world, on) = (self.world, self.world.communicator());
        let slot = self.slot() as usize;
        let windows = [
            Window::new(world, self.remote, slot * self.threads as usize)?,
            Window::new(world, self.remote, 8 * (self.threads as usize + 1))?,
        ];
        let keys = exchange(on, &windows)?;
        let inboxes: Vec<Arc<Inbox>> = (0..self.threads).map(|thread| self.inbox(thread)).collect::<Result<_, _>>()?;
        on.barrier()?;
        let work = |thread: u32| -> Result<(), String> {
            let text = |error: Box<dyn std::error::Error>| format!("{}, thread {thread}: {error}", self.what());
            match world.rank() {
                0 => self.act(thread, &keys[2], &keys[3]).map_err(text),
                _ => self.verify(thread, &windows, &inboxes[thread as usize]).map_err(text),
            }
        };
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
        })?;
        on.barrier()?;
        for thread in 0..self.threads {
            world.remove_am_handler(thread);
        }
        if world.rank() == 1 && self.operation == Operation::Atomic {
            expect(windows[1].load(8 * u64::from(self.threads))?, u64::from(self.threads) * self.rounds)?;
        }
        Ok(on.barrier()?)
    }

    fn what(&self) -> String {
        format!("{} bytes, {:?} to {:?}, {} threads", self.size, self.local, self.remote, self.threads)
    }

    fn slot(&self) -> u64 {
        (self.size.next_multiple_of(8) + GUARD) as u64
    }

    fn data(&self, thread: u32, round: u64) -> Vec<u8> {
        pattern(self.size, 1 + thread + 64 * round as u32)
    }

    /// Registers a thread's handler. Messages of other operations do not come to it.
    fn inbox(&self, thread: u32) -> Result<Arc<Inbox>, Box<dyn std::error::Error>> {
        let inbox = Arc::new(Inbox { room: Mutex::new(None), landed: AtomicU64::new(0) });
        if self.operation != Operation::Active {
            return Ok(inbox);
        }
        *inbox.room.lock() = Some(Room::new(self.world, self.remote, self.size)?);
        let handled = inbox.clone();
        self.world.am_handler(thread, move |message| {
            let Some(room) = handled.room.lock().take() else { return };
            let inbox = handled.clone();
            let over = move |room: Room, length: Result<u64, cableway::Error>| {
                *inbox.room.lock() = length.is_ok().then_some(room);
                inbox.landed.fetch_add(1, Ordering::Release);
            };
            match room {
                Room::Host(room) => message.receive(room, move |room, length| over(Room::Host(room), length)),
                Room::Device(room) => message.receive(room, move |room, length| over(Room::Device(room), length)),
            }
        })?;
        Ok(inbox)
    }

    /// Rank 0's side.
    fn act(&self, thread: u32, data: &RemoteKey, words: &RemoteKey) -> Outcome {
        let (on, tag) = (self.world.communicator(), thread as i32);
        let to = data.at(u64::from(thread) * self.slot());
        let mut room = Room::new(self.world, self.local, self.size)?;
        for round in 0..self.rounds {
            let bytes = self.data(thread, round);
            match self.operation {
                Operation::Get => {
                    on.recv(&mut [0_u8], 1, tag)?;
                    with_room!(mut &mut room, self.size, buffer => on.get(buffer, to)?);
                    room.check("what was got", &bytes)?;
                }
                Operation::GetSignal => {
                    on.recv(&mut [0_u8], 1, tag)?;
                    let signal = Signal { at: words.at(8 * u64::from(thread)), update: SignalUpdate::Set(round + 1) };
                    with_room!(mut &mut room, self.size, buffer => on.get_signal(buffer, to, signal)?);
                    room.check("what was got", &bytes)?;
                }
                Operation::Atomic => {
                    let before = on.fetch_add(3_u64, words.at(8 * u64::from(thread)))?;
                    expect(before, 3 * round)?;
                    on.fetch_add(1_u64, words.at(8 * u64::from(self.threads)))?;
                }
                Operation::Put => {
                    room.fill(&bytes)?;
                    with_room!(&room, self.size, buffer => on.put(buffer, to)?);
                }
                Operation::PutSignal => {
                    room.fill(&bytes)?;
                    let signal = Signal { at: words.at(8 * u64::from(thread)), update: SignalUpdate::Set(round + 1) };
                    with_room!(&room, self.size, buffer => on.put_signal(buffer, to, signal)?);
                }
                Operation::Active => {
                    room.fill(&bytes)?;
                    with_room!(&room, self.size, buffer => {
                        on.scope(|scope| scope.post_am(buffer, 1, thread, &[])?.wait())?;
                    });
                }
                Operation::Message => {
                    room.fill(&bytes)?;
                    with_room!(&room, self.size, buffer => on.send(buffer, 1, tag)?);
                }
            }
            // Rank 1 may look, and then has looked.
            on.send(&[0_u8], 1, tag + 100)?;
            on.recv(&mut [0_u8], 1, tag + 100)?;
        }
        Ok(())
    }

    /// Rank 1's side.
    fn verify(&self, thread: u32, windows: &[Window; 2], inbox: &Inbox) -> Outcome {
        let (on, tag) = (self.world.communicator(), thread as i32);
        let at = u64::from(thread) * self.slot();
        let mut room = Room::new(self.world, self.remote, self.size)?;
        let mut slot = vec![0; self.slot() as usize];
        for round in 0..self.rounds {
            let bytes = self.data(thread, round);
            match self.operation {
                Operation::Get => {
                    windows[0].write(at, &bytes[..])?;
                    on.send(&[0_u8], 0, tag)?;
                }
                Operation::GetSignal => {
                    windows[0].write(at, &bytes[..])?;
                    on.send(&[0_u8], 0, tag)?;
                    // The data may be overwritten once the signal is there, before rank 0 says that it has it.
                    windows[1].wait_until(8 * u64::from(thread), 0, |word| word > round)?;
                    windows[0].write(at, &self.data(thread, round + 1)[..])?;
                }
                Operation::PutSignal => {
                    // The data is there once the signal is, before rank 0 says so.
                    windows[1].wait_until(8 * u64::from(thread), 0, |word| word > round)?;
                    self.check_slot(&windows[0], at, &mut slot, &bytes)?;
                }
                Operation::Active => {
                    self.world.progress_until(|| inbox.landed.load(Ordering::Acquire) > round);
                    let landed = inbox.room.lock();
                    landed.as_ref().ok_or("a message was not received")?.check("what landed", &bytes)?;
                }
                Operation::Message => {
                    let status = with_room!(mut &mut room, self.size, buffer => on.recv(buffer, 0, tag)?);
                    expect(status.bytes, self.size as u64)?;
                    room.check("what was received", &bytes)?;
                }
                Operation::Put | Operation::Atomic => {}
            }
            on.recv(&mut [0_u8], 0, tag + 100)?;
            match self.operation {
                Operation::Put => self.check_slot(&windows[0], at, &mut slot, &bytes)?,
                Operation::Atomic => expect(windows[1].load(8 * u64::from(thread))?, 3 * (round + 1))?,
                _ => {}
            }
            on.send(&[0_u8], 0, tag + 100)?;
        }
        Ok(())
    }

    /// Compares a slot with what was put, and what follows it with zeros.
    fn check_slot(&self, window: &Window, at: u64, slot: &mut [u8], bytes: &[u8]) -> Outcome {
        window.read(at, slot)?;
        expect_bytes("what was put", &slot[..self.size], bytes)?;
        expect(slot[self.size..].iter().all(|&byte| byte == 0), true)
    }
}
