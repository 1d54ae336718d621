//! The members of a communicator, who agree on how its collective operations are performed.
//!
//! [`Members`] joins the state machine of an [`Agreement`] with the engine's messages. Under an MPI the members agree who
//! performs a call. In the library they agree for which memory algorithms are chosen: [`Performer::Host`] stands for host
//! memory.

mod notices;
mod proposal;
mod reach;
mod relayed;

use std::sync::{Arc, Weak};

use cableway_base::{Parameters, parameters};
use cableway_pml::{Communicator, Engine};
use parking_lot::Mutex;

pub use notices::Notices;
pub use reach::Reach;
use relayed::Relayed;

use crate::agreement::{Agreement, Notice, Performer};
use crate::call::{Call, Passed};
use crate::error::Error;
use crate::plan::one_shot::MOST_RANKS;
use crate::run::{Collectives, Group, Operation};
use crate::slots::{Slots, SlotsName};

/// The collective operations of one communicator, and the agreement of its members.
pub struct Members {
    this: Weak<Members>,
    group: Group,
    on: Arc<Communicator>,
    reach: Reach,
    agreement: Mutex<Agreement>,
    relayed: Relayed,
    /// The slots that this member has made or mapped.
    slots: Mutex<Option<Arc<Slots>>>,
    /// The members agree while they make calls.
    agrees: bool,
    collectives: Arc<Collectives>,
    notices: Arc<Notices>,
}

impl Members {
    /// Creates the operations of a communicator. Every member must do so. With `coll_performer=cableway` the members agree
    /// on slots alone, and with `coll_performer=mpi` on nothing.
    pub fn new(
        collectives: &Arc<Collectives>,
        notices: &Arc<Notices>,
        on: Arc<Communicator>,
        reach: Reach,
        parameters: &Parameters,
    ) -> Arc<Members> {
        let (number, size) = reach.number(&on);
        let agreement = match parameters.coll_performer {
            parameters::Performer::Cableway => Agreement::reached(number, size),
            _ => Agreement::new(number, size, parameters.coll_shared_limit as u64),
        };
        let agrees = match parameters.coll_performer {
            parameters::Performer::Auto => true,
            parameters::Performer::Cableway => matches!(reach, Reach::Within) && (2..=MOST_RANKS).contains(&size),
            parameters::Performer::Mpi => false,
        };
        let group = match reach {
            Reach::Within => Group::new(collectives.clone(), on.clone()),
            Reach::Between { .. } => Group::between(collectives.clone(), on.clone()),
        };
        let (collectives, notices, agreement) = (collectives.clone(), notices.clone(), Mutex::new(agreement));
        let relayed = Relayed::default();
        let members = Arc::new_cyclic(|this| {
            let this = this.clone();
            let slots = Mutex::default();
            Members { this, group, on, reach, agreement, relayed, slots, agrees, collectives, notices }
        });
        if agrees {
            members.notices.add(members.engine(), &members);
        }
        members
    }

    /// Returns the operations.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Says who performs a call, and counts it if all members make it. `bytes` is a size that is equal at all members, or
    /// the maximum. If that is undecided, the call must be counted again after progress.
    pub fn begin(&self, counted: bool, bytes: u64) -> Performer {
        let mut agreement = self.agreement.lock();
        let performer = if counted { agreement.begin(bytes) } else { agreement.performer(bytes) };
        if performer == Performer::Collectives && agreement.members_share_a_device() {
            self.group.share_a_device();
        }
        let uses_slots = performer == Performer::Collectives && agreement.uses_slots();
        drop(agreement);
        if uses_slots {
            self.slots.lock().iter().for_each(|slots| self.group.use_slots(slots));
        }
        // A member died, so no decision may come. Members that heard one use this crate. The call fails there, and so must
        // this one.
        if performer == Performer::Undecided && !self.all_live() { Performer::Collectives } else { performer }
    }

    /// Ends the agreement if this member leads it, and waits until no other member needs this one for it. Call this before
    /// the communicator is removed.
    pub fn leave(&self) {
        if !self.agrees {
            return;
        }
        self.agreement.lock().lose();
        let is_over = || self.relayed.is_empty() && !self.agreement.lock().has_notices();
        self.engine().wait_until(|| self.notices.send_all(self.engine(), self, is_over) || !self.all_live());
    }

    /// Notes that this process passes device memory.
    pub fn note_device_memory(&self, passed: Passed) {
        if !self.wants_to_know() {
            return;
        }
        let devices = self.engine().devices();
        let number = |address: *const u8| devices.number(devices.classify(address, 1).device?);
        let device = [passed.receive, passed.send].into_iter().find_map(number);
        self.make_slots();
        self.agreement.lock().want(device.unwrap_or(0));
        self.notices.send(self.engine(), self);
    }

    /// Notes whether a call passes device memory.
    pub fn note_memory(&self, call: &Call<'_>) {
        let devices = self.engine().devices();
        if devices.expected() && self.wants_to_know() {
            let passed = call.passed();
            // In place, one of them is null.
            let on_device = |address: &*const u8| !address.is_null() && devices.on_device(*address, 1);
            if [passed.receive, passed.send].iter().any(on_device) {
                self.note_device_memory(passed);
            }
        }
    }

    /// Makes slots if this member leads the agreement, and the members may be on one node.
    fn make_slots(&self) {
        let (number, size) = self.reach.number(&self.on);
        let mut slots = self.slots.lock();
        if number != 0 || slots.is_some() || size > MOST_RANKS || !matches!(self.reach, Reach::Within) {
            return;
        }
        match Slots::new(size as usize) {
            Ok(made) => {
                let name = made.name();
                *slots = Some(Arc::new(made));
                drop(slots);
                self.agreement.lock().note_slots(Some(name));
            }
            Err(error) => log::info!("little data of collectives is not exchanged through slots: {error}"),
        }
    }

    /// Maps the slots that the leading member has made, if they are on this node.
    fn map_slots(&self, name: Option<SlotsName>) {
        let mut slots = self.slots.lock();
        if slots.as_ref().map(|slots| slots.name()) != name {
            let open = |name| Slots::open(name, self.on.group().len());
            let opened = name.and_then(|name| open(name).inspect_err(|error| log::debug!("no slots: {error}")).ok());
            *slots = opened.map(Arc::new);
        }
        let mapped = name.filter(|_| slots.is_some());
        drop(slots);
        self.agreement.lock().note_slots(mapped);
    }

    /// Checks whether it still matters which memory this process passes.
    fn wants_to_know(&self) -> bool {
        self.agrees && !self.agreement.lock().has_device()
    }

    /// Begins an operation, with algorithms for device memory once the members have agreed on them. So a member that calls
    /// this may wait once for the others' progress.
    ///
    /// # Safety
    /// As [`Group::start`].
    ///
    /// # Errors
    /// As [`Group::start`].
    pub unsafe fn start(&self, call: &Call<'_>) -> Result<Operation, Error> {
        self.prepare(call);
        // SAFETY: the caller's promise.
        let started = unsafe { self.group.start(call) };
        self.note_started(call, started)
    }

    /// Begins an operation as [`start`](Self::start) does, which all members wait for: see [`Group::start_blocking`].
    ///
    /// # Safety
    /// As [`Group::start`].
    ///
    /// # Errors
    /// As [`Group::start`].
    pub unsafe fn start_blocking(&self, call: &Call<'_>) -> Result<Operation, Error> {
        self.prepare(call);
        // SAFETY: the caller's promise.
        let started = unsafe { self.group.start_blocking(call) };
        self.note_started(call, started)
    }

    /// Has the members agree for which memory algorithms are chosen, and counts the call.
    fn prepare(&self, call: &Call<'_>) {
        self.note_memory(call);
        let counted = is_counted(call);
        let bytes = call.equal_bytes();
        let mut performer = self.begin(counted, bytes);
        if performer == Performer::Undecided {
            self.engine().wait_until(|| {
                // A wait may ask again once it is over, and a call is counted once.
                if performer == Performer::Undecided {
                    performer = self.begin(counted, bytes);
                }
                performer != Performer::Undecided
            });
        }
        self.group.expect_devices(performer == Performer::Collectives);
    }

    fn note_started(&self, call: &Call<'_>, started: Result<Operation, Error>) -> Result<Operation, Error> {
        if is_counted(call) && started.is_err() {
            // The group does not count it either.
            self.agreement.lock().retract();
        }
        started
    }

    /// Takes a notice of another member.
    fn receive(&self, notice: Notice) {
        match notice {
            Notice::Want => self.make_slots(),
            Notice::Propose { slots, .. } if self.agreement.lock().expects_proposal() => self.map_slots(slots),
            _ => {}
        }
        let mut agreement = self.agreement.lock();
        agreement.receive(notice);
        let has_no_slots = agreement.has_no_slots();
        drop(agreement);
        if has_no_slots {
            *self.slots.lock() = None;
        }
    }

    fn all_live(&self) -> bool {
        let engine = self.engine();
        let own = match &self.reach {
            Reach::Between { own: Some(own), .. } => engine.check_members(own).is_ok(),
            _ => true,
        };
        own && engine.check_members(&self.on).is_ok()
    }

    fn engine(&self) -> &Engine {
        self.collectives.engine()
    }
}

/// Returns whether all members make a call. Only ranks with data for each other make an exchange with neighbours.
fn is_counted(call: &Call<'_>) -> bool {
    !matches!(call, Call::ReduceLocal(_) | Call::Neighbors { .. })
}
