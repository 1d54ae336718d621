//! Reductions of device memory.

use super::Devices;
use crate::copies::{CopyQueue, KernelRun};
use crate::copy::Order;
use crate::error::DeviceError;
use crate::kernels::{Class, Folding};
use crate::location::Location;
use crate::reduction::{Element, MOST_DESTINATIONS, MOST_SOURCES, ReduceOperation, Reduction};

impl Devices {
    /// Checks whether kernels in the context of the device memory at `at` make such reductions. The first call for some
    /// kind of operation loads them, which may wait until the device has nothing else to do. Returns false if the
    /// operation does not apply to such elements, if kernels are switched off, or if the driver refuses.
    pub fn can_reduce(&self, at: &Location, operation: ReduceOperation, element: Element) -> bool {
        self.has_reducers(at, operation, element, CopyQueue::has_class)
    }

    /// Checks the same, but loads the kernels only while the default stream is idle and that is not held off. Until then it
    /// returns false.
    pub fn can_reduce_now(&self, at: &Location, operation: ReduceOperation, element: Element) -> bool {
        self.has_reducers(at, operation, element, CopyQueue::has_class_now)
    }

    fn has_reducers(
        &self,
        at: &Location,
        operation: ReduceOperation,
        element: Element,
        load: impl Fn(&CopyQueue, Class) -> bool,
    ) -> bool {
        let class = Class::of(operation, element);
        operation.applies_to(element)
            && at.on_device()
            && self.platform_at(at).is_some_and(|platform| {
                platform.settings.kernels && platform.queue(at).is_ok_and(|queue| load(&queue, class))
            })
    }

    /// Begins a reduction by a kernel in the context of the device memory at `at`, after the work that `order` names.
    /// Returns `None` if no kernel can make it now, also because an element is not aligned: then the caller reduces on
    /// the host. The kernel is loaded as for [`can_reduce`](Self::can_reduce).
    ///
    /// # Safety
    /// Kernels in the context of `at` can access all memory of the reduction: memory of the device, mapped memory of
    /// other devices, registered host memory at its device address. It stays allocated until the run is over or
    /// dropped. Each destination is exactly one of the sources or overlaps none, and overlaps no other destination. What is
    /// kept overlaps nothing else.
    /// Meanwhile no one else writes the sources or accesses the destinations. A forgotten run is never over.
    ///
    /// # Errors
    /// There are fewer than two or too many sources, no or too many destinations, `at` is host memory, its context is destroyed, or the calling
    /// thread captures a graph.
    pub unsafe fn reduce(
        &self,
        at: &Location,
        order: Order,
        reduction: &Reduction<'_>,
    ) -> Result<Option<KernelRun>, DeviceError> {
        let Reduction { operation, element, count, destinations, sources, .. } = *reduction;
        let object = || format!("{operation:?} of {count} {element:?} of {} sources", sources.len());
        if !(2..=MOST_SOURCES).contains(&sources.len()) {
            let reason = format!("a reduction has 2 to {MOST_SOURCES} sources; reduce in several steps");
            return Err(DeviceError { call: "reduce", object: object(), reason });
        }
        if !(1..=MOST_DESTINATIONS).contains(&destinations.len()) {
            let reason = format!("a reduction has 1 to {MOST_DESTINATIONS} destinations; copy the result to others");
            return Err(DeviceError { call: "reduce", object: object(), reason });
        }
        let platform = self.need_at(at, "reduce", object)?;
        let queue = platform.queue_to_enter(at)?;
        if !platform.settings.kernels || !operation.applies_to(element) || !reduction.is_aligned() {
            return Ok(None);
        }
        if count == 0 {
            return Ok(Some(KernelRun::DONE));
        }
        platform.registrations.settle(&queue.workspace.context);
        // SAFETY: the caller's promise.
        unsafe { queue.begin(Class::of(operation, element), order, Folding::new(reduction)) }
    }
}
