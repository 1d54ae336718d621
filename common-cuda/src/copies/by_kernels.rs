//! Copies by kernels that are launched for one operation: blocks, packing, and several plain copies at once.

use super::gathered::Gathered;
use super::mechanism::{Entry, Mechanism, Progress};
use super::workspace::Workspace;
use crate::copy::{BlockCopy, Direction, Order, RowCopy, Within};
use crate::driver::Failure;
use crate::kernels::{Jobs, Pieces, Strides, Track, Work};
use crate::memory::Packing;

/// The kernels' part of one operation. Its copies are kept, so that copy engines can make them if the kernels find no
/// room on the device.
#[derive(Default)]
pub(super) struct ByKernels {
    jobs: Jobs,
    pieces: Vec<RowCopy>,
    blocks: Vec<BlockCopy>,
    stretches: Vec<Packing>,
}

impl Mechanism for ByKernels {
    fn suits(&self, _: &Workspace, copies: &Gathered) -> bool {
        copies.direction.is_on_devices() || !copies.stretches.is_empty()
    }

    fn begin(&mut self, workspace: &Workspace, copies: &mut Gathered, entry: &mut Entry<'_>) -> Result<(), Failure> {
        entry.enter()?;
        workspace.load_kernels(false);
        self.launch(workspace, copies).inspect_err(|_| self.jobs.withdraw(&workspace.context, &workspace.kernels))
    }

    #[inline]
    fn poll(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<Progress, Failure> {
        if self.jobs.is_empty() {
            return Ok(Progress::Done);
        }
        let (context, patience) = (&*workspace.context, workspace.settings.patience);
        if self.jobs.look(context, &workspace.kernels)? {
            return Ok(Progress::Done);
        }
        if !self.jobs.are_late(&workspace.kernels, patience) {
            return Ok(Progress::Pending);
        }
        self.jobs.revoke();
        log::debug!("context {}: no room for a kernel in {patience:?}; copy engines do its work", context.id);
        self.put_back(workspace, copies)?;
        Ok(Progress::PutBack)
    }

    fn abandon(&mut self, workspace: &Workspace, _: Direction) {
        self.jobs.withdraw(&workspace.context, &workspace.kernels);
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.blocks.clear();
        self.stretches.clear();
    }
}

impl ByKernels {
    /// Launches kernels for suitable copies, if possible, and leaves the other pieces to copy engines.
    fn launch(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<(), Failure> {
        let able = workspace.settings.kernels && workspace.kernels.ready();
        let order = copies.order;
        self.jobs.set_track(match copies.direction {
            Direction::WithinDevice => Track::WithinDevice,
            _ => Track::Common,
        });
        let plain = copies.pieces.len();
        for blocks in copies.blocks.drain(..) {
            let strides = if able { Strides::new(&blocks) } else { None };
            if self.run(workspace, order, strides.map(Work::Strided))? {
                self.blocks.push(blocks);
            } else {
                copies.pieces.extend(blocks.rows());
            }
        }
        for stretch in copies.stretches.drain(..) {
            let packed = if able { stretch.for_kernel(workspace, copies.direction) } else { None };
            if self.run(workspace, order, packed.map(Work::Packed))? {
                self.stretches.push(stretch);
            } else if stretch.wants_kernel(copies.direction) {
                return Err(Failure::NO_KERNEL);
            } else {
                copies.pieces.extend(stretch.rows());
            }
        }
        if able && plain != 0 && copies.pieces.len() == plain && suits_a_kernel(workspace, copies) {
            let mut pieces = Box::new(Pieces::NOTHING);
            let fit = copies.pieces.iter().all(|piece| pieces.push(piece.dst, piece.src, piece.width as u64));
            if fit && self.run(workspace, order, Some(Work::Pieces(pieces)))? {
                std::mem::swap(&mut self.pieces, &mut copies.pieces);
            }
        }
        Ok(())
    }

    /// Launches a job. Returns false if there is nothing to launch, or no launch is possible now.
    fn run(&mut self, workspace: &Workspace, order: Order, work: Option<Work>) -> Result<bool, Failure> {
        let Some(mut work) = work else { return Ok(false) };
        let after = workspace.waits(order).then_some(&*workspace.default_stream);
        self.jobs.launch(&workspace.context, &workspace.kernels, &mut work, after)
    }

    /// Returns the copies of revoked jobs to the list for copy engines. Repeated copies are harmless, since no caller
    /// uses the memory before the operation completes.
    fn put_back(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<(), Failure> {
        copies.pieces.append(&mut self.pieces);
        copies.pieces.extend(self.blocks.iter().flat_map(BlockCopy::rows));
        for stretch in &self.stretches {
            if stretch.wants_kernel(copies.direction) {
                copies.lost = true;
            } else {
                copies.pieces.extend(stretch.rows());
            }
        }
        let _scope = workspace.context.enter()?;
        self.jobs.order(&workspace.context, workspace.streams.of(copies.direction)?)?;
        copies.order = Order::None;
        Ok(())
    }

    /// Destroys the jobs' objects in their context, which is current.
    pub(super) fn destroy(&mut self, workspace: &Workspace) {
        self.jobs.destroy(&workspace.context);
    }
}

/// Checks whether a kernel makes the plain copies faster than copy engines, as measured on the device, or else on
/// H200s.
///
/// Between two H200s, windows of 64 messages take the same time both ways from 512 KiB on. Windows of less than eight
/// are faster by copy engines. Within one H200, the driver launches a kernel for each copy. One kernel for several
/// copies is always faster there: 3.3 times with messages of 8 bytes, three times with 1 MiB. For a single copy it is
/// slower: 12 us from its launch to the word that says it is done, against 8 us for the driver's kernel and the query
/// of its end.
fn suits_a_kernel(workspace: &Workspace, copies: &Gathered) -> bool {
    /// Checks whether a kernel suits copies between devices.
    const SEVERAL: usize = 5;
    let (pieces, settings) = (&copies.pieces, &workspace.settings);
    let count = pieces.len();
    if count < 2 || !pieces.iter().all(|piece| piece.rows == 1) {
        return false;
    }
    match copies.reachable {
        Some(Within::OneDevice) => true,
        Some(Within::OneNode) => {
            let bytes: usize = pieces.iter().map(|piece| piece.width).sum();
            let measured = || workspace.costs()?.kernel_is_faster(count, bytes as u64);
            let faster = if settings.kernel_limit_set { None } else { measured() };
            faster.unwrap_or_else(|| count >= SEVERAL && bytes / count <= settings.kernel_limit)
        }
        None => false,
    }
}
