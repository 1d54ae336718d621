//! Exchanges of little data by kernels, through slots in shared host memory.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Devices;
use super::stream_words::{StreamWords, WordsFile, register};
use crate::copies::KernelRun;
use crate::copy::Order;
use crate::error::DeviceError;
use crate::kernels::{Class, Folding};
use crate::location::Location;
use crate::mapping_gate::Gate;
use crate::memory::MappedFile;
use crate::one_shot::{MOST_SLOTS, OneShot, SlotWords};
use crate::reduction::Reduction;

/// Slots as the CPU accesses them.
pub struct HostSlots {
    memory: MappedFile,
    count: usize,
}

/// Slots as kernels of one context access them.
pub struct DeviceSlots {
    /// Present until it is dropped.
    words: Option<StreamWords>,
    gate: Arc<Gate>,
}

impl WordsFile {
    /// Maps the file for this process's CPUs.
    ///
    /// # Errors
    /// The system refused.
    pub fn map(&self) -> io::Result<HostSlots> {
        Ok(HostSlots { memory: MappedFile::new(self.as_fd(), self.len())?, count: self.count })
    }
}

impl SlotWords for HostSlots {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }
}

impl HostSlots {
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: within the mapping, which is aligned to a page, lives as long as `self` and is accessed atomically.
        unsafe { AtomicU64::from_ptr(self.memory.address::<u64>().add(index)) }
    }
}

impl DeviceSlots {
    /// Checks whether kernels in the context of the device memory at `at` access the slots.
    pub fn are_for(&self, devices: &Devices, at: &Location) -> bool {
        let queue = devices.platform_at(at).and_then(|platform| platform.queue_to_enter(at).ok());
        self.words.as_ref().zip(queue).is_some_and(|(words, queue)| words.is_of(&queue))
    }
}

impl Drop for DeviceSlots {
    fn drop(&mut self) {
        // The driver may wait for streams of the context.
        if let Some(words) = self.words.take() {
            self.gate.close(move || drop(words));
        }
    }
}

impl Devices {
    /// Registers slots with the driver, for kernels in the context of the device memory at `at`. Returns `None` while that is
    /// held off, so that a later call may try again.
    ///
    /// # Errors
    /// The driver does not register host memory.
    pub fn register_slots(&self, at: &Location, file: &WordsFile) -> Result<Option<DeviceSlots>, DeviceError> {
        let platform = self.need_at(at, "register_slots", || "slots of collectives".to_owned())?;
        let gate = &self.state.mapping_gate;
        let Some(_opening) = gate.enter() else { return Ok(None) };
        let queue = platform.queue(at)?;
        let context = &queue.workspace.context;
        let registered = register(&queue, file);
        let words = registered.map_err(|failure| context.error(failure, format!("context {}", context.id)))?;
        Ok(Some(DeviceSlots { words: Some(words), gate: gate.clone() }))
    }

    /// Checks whether kernels in the context of the device memory at `at` can exchange data that is not reduced. They are
    /// loaded as for [`can_reduce`](Self::can_reduce).
    pub fn can_exchange(&self, at: &Location) -> bool {
        self.platform_at(at).is_some_and(|platform| {
            platform.settings.kernels && platform.queue(at).is_ok_and(|queue| queue.has_class(Class::OneShot))
        })
    }

    /// Begins an exchange by a kernel in the context of the device memory at `at`, after the work that `order` names. The
    /// kernel also makes the reduction, if there is one, whose sources may be where data of other ranks goes. Returns `None`
    /// if no kernel can do it now.
    ///
    /// The kernel stores this rank's data at once, and waits some tens of microseconds for that of other ranks. If a line of
    /// that has not come then, the run ends, has reduced nothing, and [was late](KernelRun::was_late). So call this
    /// again once all data [has come](OneShot::has_come).
    ///
    /// # Safety
    /// As [`reduce`](Self::reduce), for all memory of the exchange and the reduction. The slots are those of the layout.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce). There are more than [`MOST_SLOTS`] ranks.
    pub unsafe fn exchange(
        &self,
        at: &Location,
        order: Order,
        slots: &DeviceSlots,
        shot: &OneShot<'_>,
        reduction: Option<&Reduction<'_>>,
    ) -> Result<Option<KernelRun>, DeviceError> {
        let object = || format!("an exchange of {} ranks", shot.receives.len());
        if shot.receives.len() > MOST_SLOTS || shot.sends.len() > MOST_SLOTS || shot.me >= shot.receives.len() {
            let reason = format!("an exchange has at most {MOST_SLOTS} ranks; use messages for more");
            return Err(DeviceError { call: "exchange", object: object(), reason });
        }
        let platform = self.need_at(at, "exchange", object)?;
        let queue = platform.queue_to_enter(at)?;
        let Some(words) = slots.words.as_ref().filter(|words| words.is_of(&queue)) else { return Ok(None) };
        let (class, folding) = match reduction.filter(|reduction| reduction.count != 0) {
            None => (Class::OneShot, Folding::NOTHING),
            Some(reduction) if !reduction.operation.applies_to(reduction.element) || !reduction.is_aligned() => {
                return Ok(None);
            }
            Some(reduction) => (Class::of(reduction.operation, reduction.element), Folding::new(reduction)),
        };
        platform.registrations.settle(&queue.workspace.context);
        // SAFETY: the caller's promise.
        unsafe { queue.begin(class, order, folding.after(shot, words.device_address(0))) }
    }
}
