//! Executes plans over an engine.

mod copies;
mod exchange;
mod memory;
mod note;
mod one_shot;
mod operation;
mod scene;
mod shared;
mod site;
mod steps;
mod tags;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_pml::Communicator;

use crate::build::{Basis, build};
use crate::call::Call;
use crate::choice::Choice;
use crate::error::Error;
use crate::placing::{Placing, Working};
use crate::plan::Me;
use crate::slots::Slots;

pub(crate) use exchange::recode;
use memory::Block;
pub(crate) use note::Note;
pub use operation::Operation;
pub use shared::Collectives;
use shared::Expected;
use site::Site;

/// The collective operations of one communicator.
pub struct Group {
    collectives: Arc<Collectives>,
    communicator: Arc<Communicator>,
    /// The communicator's ranks are those of another group of processes.
    between_groups: bool,
    /// The data of the next operation is expected to be in device memory.
    on_devices: AtomicBool,
    /// Ranks share a device.
    one_device: AtomicBool,
    /// The choices for host memory and for device memory. The first operation sets one, because not all processes have
    /// published their cards before.
    choices: [OnceLock<Arc<Choice>>; 2],
    /// For operations in one shot, if the members have agreed on slots.
    slots: OnceLock<Arc<Slots>>,
    /// Operations are in the order of streams that may wait for them.
    in_streams: bool,
    /// The number of the next operation.
    next: AtomicU32,
    /// An exchange with neighbours gave up a receive. Its message may still come, and a later exchange would take it for its
    /// own, because messages of exchanges have no number of the operation. So there are no later ones.
    interrupted: Arc<AtomicBool>,
}

impl Group {
    /// Creates the operations of an intracommunicator. Every member must do so.
    pub fn new(collectives: Arc<Collectives>, communicator: Arc<Communicator>) -> Self {
        collectives.engine.set_joint_tags(&communicator, tags::all());
        Group {
            collectives,
            communicator,
            between_groups: false,
            on_devices: AtomicBool::new(false),
            one_device: AtomicBool::new(false),
            slots: OnceLock::new(),
            in_streams: false,
            choices: Default::default(),
            next: AtomicU32::new(0),
            interrupted: Arc::default(),
        }
    }

    /// Has algorithms chosen for data in device memory, or in host memory, from the next operation on. All members must
    /// say the same before the same operation. It is no promise: any rank may pass memory of either kind.
    pub fn expect_devices(&self, on_devices: bool) {
        self.on_devices.store(on_devices, Ordering::Relaxed);
    }

    /// Says that ranks share a device. All members say so before the first operation for device memory, or none.
    pub fn share_a_device(&self) {
        self.one_device.store(true, Ordering::Relaxed);
    }

    /// Has blocking operations exchange little data through slots. All members say so before the same operation.
    pub(crate) fn use_slots(&self, slots: &Arc<Slots>) {
        self.slots.get_or_init(|| slots.clone());
    }

    /// Creates the operations of an intercommunicator. Only [`Call::Neighbors`] is defined: the members of the other group
    /// are the neighbours.
    pub fn between(collectives: Arc<Collectives>, communicator: Arc<Communicator>) -> Self {
        Group { between_groups: true, ..Group::new(collectives, communicator) }
    }

    /// Creates the operations of an intracommunicator whose calls are in the order of streams. A stream may wait for an
    /// operation, and hold up other work of its device. So these operations work in host memory, allocate and register
    /// nothing on a device, start no kernels, and follow no default stream: their copies to and from the memory of a call
    /// are in streams of Cableway.
    pub fn in_streams(collectives: Arc<Collectives>, communicator: Arc<Communicator>) -> Self {
        Group { in_streams: true, ..Group::new(collectives, communicator) }
    }

    /// Begins an operation. It has not finished before [`Operation::poll`] returns true.
    ///
    /// All members must begin the same operations in the same order, from one thread at a time. Several operations may
    /// be under way.
    ///
    /// # Safety
    /// Until the operation has finished, the memory of the call stays allocated. Nobody writes what is sent, or accesses
    /// what is received.
    ///
    /// # Errors
    /// The arguments are invalid. The operation did not begin in this process, and others that it would have exchanged
    /// messages with wait for it.
    pub unsafe fn start(&self, call: &Call<'_>) -> Result<Operation, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_with(call, None) }
    }

    /// Begins an operation as [`start`](Self::start) does, which all members wait for before they begin another one. It does
    /// not match one that a member begins by `start`.
    ///
    /// # Safety
    /// As [`start`](Self::start).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub unsafe fn start_blocking(&self, call: &Call<'_>) -> Result<Operation, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_with(call, self.slots.get()) }
    }

    /// # Safety
    /// As [`start`](Self::start).
    unsafe fn start_with(&self, call: &Call<'_>, slots: Option<&Arc<Slots>>) -> Result<Operation, Error> {
        let shared = &self.collectives;
        // No member of the other group is this process.
        let rank = if self.between_groups { u32::MAX } else { self.communicator.rank() };
        let me = Me { rank, size: self.communicator.group().len() as u32 };
        let among_neighbors = matches!(call, Call::Neighbors { .. });
        if among_neighbors && self.interrupted.load(Ordering::Acquire) {
            shared.engine.check_members(&self.communicator)?;
            return Err(Error::Interrupted);
        }
        let choice = self.choice()?;
        let report = if me.rank == 0 { Some(shared.report()) } else { None };
        let basis = Basis { me, choice, rules: &shared.rules, slots: slots.map(|slots| &**slots), report };
        let device_limit = shared.rules.device_limit;
        let known = RefCell::default();
        let on_devices = !self.in_streams;
        let mut placing = Placing { devices: &shared.pools.devices, device_limit, on_devices, known };
        let (mut plan, mut working) = build(call, &basis, &placing)?;
        let scratch = match self.scratch(&working, plan.scratch) {
            // No device memory is left, so work in host memory.
            Err(_) if !matches!(working, Working::Host) => {
                placing.on_devices = false;
                (plan, working) = build(call, &basis, &placing)?;
                self.scratch(&working, plan.scratch)
            }
            taken => taken,
        };
        // A call with wrong arguments does not count, so that the program can correct it.
        let first_tag = if among_neighbors {
            tags::of_neighbors()
        } else {
            tags::of_operation(self.next.fetch_add(1, Ordering::Relaxed))
        };
        shared.engine.count_collective(plan.scratch);
        shared.engine.count_host_copy_allocations(shared.pools.host.new_allocations());
        let on = self.communicator.clone();
        let registered = matches!(scratch, Ok(Block::Host(_)));
        let site = Site { scratch: 0, working, first_tag, settled: self.in_streams, registered };
        let turn = slots.filter(|_| plan.has_one_shot()).map(Slots::next_turn);
        let mut operation = Operation::new(shared.clone(), on, site, (plan, turn), scratch);
        if among_neighbors {
            operation.note_interruption(self.interrupted.clone());
            // Begin its messages now, in the order of the calls. The next poll returns an error again.
            let _ = operation.poll();
        }
        Ok(operation)
    }

    fn choice(&self) -> Result<&Choice, Error> {
        let on_devices = self.on_devices.load(Ordering::Relaxed);
        let known = &self.choices[usize::from(on_devices)];
        if let Some(choice) = known.get() {
            return Ok(choice);
        }
        // Operations between groups have one algorithm each, and so have those of one rank.
        let processes = self.communicator.group();
        let processes = if self.between_groups || processes.len() == 1 { &[] } else { processes };
        let one_device = self.one_device.load(Ordering::Relaxed);
        let choice = self.collectives.choice(processes, Expected { on_devices, one_device })?;
        Ok(known.get_or_init(|| choice))
    }

    fn scratch(&self, working: &Working, bytes: u64) -> Result<Block, Error> {
        if self.in_streams { Block::on_heap(bytes) } else { Block::take(&self.collectives.pools, working, bytes) }
    }

    /// Performs an operation, and waits for it.
    ///
    /// # Safety
    /// As [`start`](Self::start).
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`Operation::poll`].
    pub unsafe fn run(&self, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_blocking(call) }?.wait()
    }
}
