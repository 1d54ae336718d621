//! Packing by a kernel, if copy engines would need a call for each block or be slow with short rows.

use std::ops::Range;

use cableway_common_cuda::{Completion, DeviceError, Direction, EngineWork, Order, Packing, Spread};

use super::copier::Copier;

/// The convertor's state for kernels: the message's blocks, and the default stream.
#[derive(Default)]
pub(super) struct ByKernel {
    /// The message's blocks. `None` before they were computed, or if no kernel supports them.
    spread: Option<Spread>,
    looked: bool,
    /// True if the work is done that the default stream had when the message began. Kernels are launched only then: a
    /// job that waits for that stream looks like one without room on the device.
    settled: bool,
}

impl ByKernel {
    /// Launches a kernel that moves the packed bytes `range`. Returns `None` if copy engines must do it. `order` is the
    /// work to wait for, and whether a batch of this convertor has waited for it already.
    ///
    /// # Safety
    /// As [`super::DeviceSide::transfer`].
    pub(super) unsafe fn transfer<const PACK: bool>(
        &mut self,
        copier: &Copier<'_>,
        range: &Range<u64>,
        (order, ordered): (Order, bool),
    ) -> Result<Option<Completion>, DeviceError> {
        let Some(layout) = copier.message.layout else { return Ok(None) };
        let devices = copier.devices;
        if !self.looked {
            let address = layout.span(copier.message.count).map(|span| copier.message.at(span.0));
            let reached = address.is_some_and(|address| devices.kernel_reaches(copier.location, address));
            self.spread = reached.then(|| layout.spread(copier.message.count, devices)).flatten();
            self.looked = true;
        }
        let Some(spread) = &self.spread else { return Ok(None) };
        let (packed, len) = (copier.packed, range.end - range.start);
        if !devices.kernel_packs(copier.location, packed, len as usize, engine_work(spread, len)) {
            return Ok(None);
        }
        // A caller that requires no order before any batch has waited knows that the stream is idle.
        self.settled |= order == Order::None && !ordered;
        if !self.settled {
            // If this thread captures a stream, the copy engines report the error.
            self.settled = devices.ask_default_stream(copier.location).unwrap_or(false);
        }
        if !self.settled {
            return Ok(None);
        }
        let direction = if PACK { Direction::DeviceToHost } else { Direction::HostToDevice };
        let mut batch = devices.batch(copier.location, direction, Order::None)?;
        let user = copier.message.base;
        // SAFETY: the caller's promise.
        unsafe {
            let (position, unpack, by_engines) = (range.start, !PACK, true);
            batch.copy_packed(Packing { user, spread: spread.clone(), position, packed, len, unpack, by_engines });
        }
        batch.finish().map(Some)
    }
}

/// Estimates the work of copy engines that move `len` packed bytes.
fn engine_work(spread: &Spread, len: u64) -> EngineWork {
    match spread {
        Spread::Regular(strided) => {
            let rows = len.div_ceil(strided.block);
            let (count, stride) = strided.dimensions[0];
            let one_call = u64::try_from(stride).is_ok_and(|stride| stride >= strided.block);
            EngineWork { calls: if one_call { rows.div_ceil(count) } else { rows }, rows }
        }
        Spread::Listed(list, extent) => {
            let rows = len.saturating_mul(list.blocks()).div_ceil(list.size());
            // In an element that is repeated often, each block takes one call for all repetitions.
            let calls = if *extent > 0 { rows.min(list.blocks()) } else { rows };
            EngineWork { calls, rows }
        }
    }
}

#[cfg(test)]
mod tests {
    use cableway_common_cuda::{BlockList, Devices, Strided};

    use super::*;

    #[test]
    fn copy_engines_take_one_call_for_regular_rows_and_one_for_each_other_block() {
        let vector = Strided { offset: 0, block: 8, dimensions: [(1000, 32), (1, 0), (1, 0)] };
        assert_eq!(engine_work(&Spread::Regular(vector), 8000), EngineWork { calls: 1, rows: 1000 });
        let plane = Strided { dimensions: [(10, 32), (100, 1000), (1, 0)], ..vector };
        assert_eq!(engine_work(&Spread::Regular(plane), 4000), EngineWork { calls: 50, rows: 500 });
        let back = Strided { dimensions: [(1000, -32), (1, 0), (1, 0)], ..vector };
        assert_eq!(engine_work(&Spread::Regular(back), 80), EngineWork { calls: 10, rows: 10 });
        let blocks: Vec<(i64, u64)> = (0..100).map(|i| (i * i * 8, 8)).collect();
        let list = Spread::Listed(BlockList::new(&Devices::none(), &blocks).unwrap(), 80_000);
        assert_eq!(engine_work(&list, 400), EngineWork { calls: 50, rows: 50 });
        assert_eq!(engine_work(&list, 8000), EngineWork { calls: 100, rows: 1000 });
    }
}
