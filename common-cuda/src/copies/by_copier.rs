//! Small copies between devices by the kernel that stays for a while.

use super::gathered::Gathered;
use super::mechanism::{Entry, Mechanism, Progress};
use super::workspace::Workspace;
use crate::copier::{self, Posted};
use crate::copy::{Direction, Order, RowCopy, Within};
use crate::driver::Failure;

/// The copier's part of one operation.
#[derive(Default)]
pub(super) struct ByCopier {
    posted: Posted,
    pieces: Vec<RowCopy>,
}

impl Mechanism for ByCopier {
    fn suits(&self, workspace: &Workspace, copies: &Gathered) -> bool {
        workspace.settings.copier
            && copies.reachable == Some(Within::OneNode)
            && copies.direction == Direction::DeviceToDevice
            && copies.bytes <= copier::MOST
            && copies.is_plain()
    }

    fn begin(&mut self, workspace: &Workspace, copies: &mut Gathered, entry: &mut Entry<'_>) -> Result<(), Failure> {
        let copier = &workspace.copier;
        // The kernel waits for no stream, so the default stream must be idle where an order is required.
        if copier.runs() && entry.may_begin()? && copier.post(&copies.pieces, &mut self.posted) {
            std::mem::swap(&mut self.pieces, &mut copies.pieces);
            return Ok(());
        }
        entry.enter()?;
        copier.want();
        Ok(())
    }

    #[inline]
    fn poll(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<Progress, Failure> {
        if !self.posted.any() {
            return Ok(Progress::Done);
        }
        Ok(match workspace.copier.look(&mut self.posted)? {
            copier::Progress::Pending => Progress::Pending,
            copier::Progress::Done => Progress::Done,
            // Finished copies are repeated, which is harmless.
            copier::Progress::Lost => {
                copies.pieces.append(&mut self.pieces);
                copies.order = Order::None;
                Progress::PutBack
            }
        })
    }

    fn abandon(&mut self, workspace: &Workspace, _: Direction) {
        workspace.copier.forget(&mut self.posted);
    }

    fn clear(&mut self) {
        self.pieces.clear();
    }
}
