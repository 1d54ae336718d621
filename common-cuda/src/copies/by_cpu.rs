//! Small copies by loads and stores of the CPU, through a mapping of the device's memory.

use std::sync::atomic::Ordering;

use super::gathered::Gathered;
use super::mechanism::{Entry, Mechanism, Progress};
use super::workspace::Workspace;
use crate::copy::{Direction, Order};
use crate::driver::Failure;
use crate::location::MemoryClass;

/// A copy is complete as soon as it has begun.
#[derive(Default)]
pub(super) struct ByCpu;

impl Mechanism for ByCpu {
    fn suits(&self, workspace: &Workspace, copies: &Gathered) -> bool {
        let [piece] = copies.pieces[..] else { return false };
        piece.rows == 1
            && copies.bytes == piece.width
            && workspace.mapping.may_copy(copies.direction, piece.width)
            && copies.at.class == MemoryClass::Device
            && copies.at.context == workspace.context.id
            // With no copy under way, the earlier batches of the operation are complete. With copies under way, streams
            // overlap them, which a CPU cannot.
            && workspace.under_way.load(Ordering::Acquire) == 0
    }

    fn begin(&mut self, workspace: &Workspace, copies: &mut Gathered, entry: &mut Entry<'_>) -> Result<(), Failure> {
        let piece = copies.pieces[0];
        let ready = || match copies.order {
            Order::None => Ok(workspace.context.alive()),
            Order::Synchronised | Order::AfterDefaultStream => entry.may_begin(),
        };
        // SAFETY: one row between host memory and an allocation of the context's own, both valid and left alone by the
        // promise of the caller that added it.
        if unsafe { workspace.mapping.copy(&piece, copies.direction, ready) }? {
            copies.pieces.clear();
        }
        Ok(())
    }

    fn poll(&mut self, _: &Workspace, _: &mut Gathered) -> Result<Progress, Failure> {
        Ok(Progress::Done)
    }

    fn abandon(&mut self, _: &Workspace, _: Direction) {}

    fn clear(&mut self) {}
}
