//! Accumulates by kernels, which combine elements where they are.

use cableway_common_cuda::{Devices, KernelRun, Location, MemoryClass, Order, Reduction};

use super::operand::Operand;
use super::{Change, device_failed};
use crate::osc::exposure::Reached;
use crate::osc::host::{Host, KernelReduction};
use crate::osc::wire::Combine;
use crate::refusal::Refusal;

/// A kernel for an accumulate whose elements lie together in a device's memory.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    at: Location,
    /// Of the first element.
    address: usize,
    reduction: KernelReduction,
    count: u64,
}

impl Kernel {
    /// Finds a kernel for an accumulate of a run of device memory at `at`.
    pub(super) fn find(
        host: &dyn Host,
        devices: &Devices,
        at: &Location,
        reached: &Reached,
        change: &Change,
    ) -> Option<Kernel> {
        let &Change::Combine(Combine::Reduce { operation, element }) = change else { return None };
        let reduction = host.kernel(operation, element)?;
        let size = reduction.element.size();
        let (address, len) = reached.run()?;
        if !address.addr().is_multiple_of(reduction.element.alignment()) {
            return None;
        }
        let reaches = at.class == MemoryClass::Managed || devices.kernel_reaches(at, address);
        let can = reaches && devices.can_reduce_now(at, reduction.operation, reduction.element);
        can.then(|| Kernel { at: *at, address: address.expose_provenance(), reduction, count: len / size as u64 })
    }

    /// Returns whether both run in one stream, so that one is made after the other.
    pub(super) fn shares_stream(&self, other: &Kernel) -> bool {
        (self.at.device, self.at.context) == (other.at.device, other.at.context)
    }

    /// Returns the location of the elements.
    pub(super) fn at(&self) -> &Location {
        &self.at
    }

    /// Begins to combine the data with the elements, whose values before go to `before`. Returns `None` if no kernel can do
    /// that now.
    ///
    /// # Safety
    /// The window's memory is valid until the run is over or dropped, and so is that of both operands, which nobody else uses.
    /// Nobody else accesses the elements as those of accumulates, but kernels that [share the stream](Self::shares_stream).
    pub(super) unsafe fn begin(
        &self,
        devices: &Devices,
        order: Order,
        data: &Operand,
        before: Option<&Operand>,
    ) -> Result<Option<KernelRun>, Refusal> {
        let &Kernel { ref at, address, reduction: KernelReduction { operation, element }, count } = self;
        let Some(data) = data.kernel_address(devices, at) else { return Ok(None) };
        let kept = match before.map(|before| before.kernel_address(devices, at)) {
            Some(None) => return Ok(None),
            kept => kept.flatten(),
        };
        let elements: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
        let (destinations, sources) = (&[elements], &[elements.cast_const(), data.cast_const()]);
        let reduction = Reduction { operation, element, count, destinations, sources, kept };
        // SAFETY: the caller's promise; kernels of the context reach the elements, and both operands at these addresses.
        unsafe { devices.reduce(at, order, &reduction) }.map_err(|error| device_failed(&error))
    }
}
