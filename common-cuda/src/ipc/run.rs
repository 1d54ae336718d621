//! Runs: adjacent pieces of physical memory that one buffer spans (`PyTorch`'s expandable segments).
//!
//! An export of a run covers the pieces of one buffer, and serves every later buffer within it. A later message uses
//! the run only if the pieces of its own buffer still have the same ids. Other pieces of the run may be unmapped; later
//! messages that use them detect that.

use std::ops::Range;

use ahash::AHashSet;

use super::piece::{self, Piece, say_once, warn_refused};
use super::table::{Known, Table};
use super::{MOST_PIECES, RUN};
use crate::devices::Devices;
use crate::exported::{ExportKind, Exported, NoExport};
use crate::location::Location;
use crate::platform::Platform;

impl Table {
    /// Returns a run around the addresses, the first of which lies in memory at `at` that is passed by descriptor.
    /// Returns `None` if there is no such run, with one line that says why.
    pub(super) fn run(
        &mut self,
        devices: &Devices,
        most: usize,
        at: &Location,
        addresses: &Range<u64>,
    ) -> Option<&mut Known> {
        let platform = devices.platform_at(at)?;
        let number = match self.known_run(devices, addresses) {
            Some(number) => number,
            None => {
                let pieces = pieces(platform, at, addresses)?;
                if self.is_refused(&pieces) {
                    return None;
                }
                let exported = export(platform, at, &pieces);
                self.make_room(devices, most);
                self.numbers += 1;
                let number = RUN | self.numbers;
                let exported = exported.map(|exported| Exported { buffer_id: number, ..exported });
                self.known.insert(number, Known { pieces, at: *at, exported, told: AHashSet::new(), used: 0 });
                number
            }
        };
        let known = self.known.get_mut(&number)?;
        known.used = self.uses;
        known.exported.is_some().then_some(known)
    }

    /// Returns the number of a run that contains the addresses, if their pieces are unchanged.
    fn known_run(&self, devices: &Devices, addresses: &Range<u64>) -> Option<u64> {
        let holds = |known: &&Known| {
            known.exported.is_some_and(|exported| {
                known.pieces.len() > 1
                    && exported.base <= addresses.start
                    && addresses.end <= exported.base.saturating_add(exported.len)
            })
        };
        let meant = |piece: &&Piece| piece.base < addresses.end && addresses.start < piece.base + piece.len;
        let still = |known: &&Known| known.pieces.iter().filter(meant).all(|piece| piece.is_there(devices));
        let known = self.known.values().filter(holds).find(still)?;
        known.exported.map(|exported| exported.buffer_id)
    }

    /// Checks whether an export of these pieces has failed before.
    fn is_refused(&self, pieces: &[Piece]) -> bool {
        self.known.values().any(|known| known.exported.is_none() && known.pieces == pieces)
    }
}

/// Lists the adjacent pieces that the addresses lie in.
fn pieces(platform: &Platform, at: &Location, addresses: &Range<u64>) -> Option<Vec<Piece>> {
    let (mut pieces, mut next) = (Vec::new(), addresses.start);
    while next < addresses.end {
        if pieces.len() == MOST_PIECES {
            say_once("cuda/ipc/pieces", || {
                format!(
                    "a message from or to more than {MOST_PIECES} pieces of memory of virtual memory management is \
                     copied through the host"
                )
            });
            return None;
        }
        let address = std::ptr::with_exposed_provenance(next as usize);
        let (base, len) = platform.allocation_at(at, address)?;
        let (base, len, buffer_id) = (base as u64, len as u64, platform.buffer_id(address)?);
        // The first piece may begin before the addresses.
        let begins = if pieces.is_empty() { base <= next } else { base == next };
        next = base.checked_add(len).filter(|end| begins && *end > next)?;
        pieces.push(Piece { base, len, buffer_id });
    }
    (pieces.len() > 1).then_some(pieces)
}

/// Exports all pieces, without the run's number. Returns `None`, with a warning, if a piece has no export.
#[cold]
fn export(platform: &Platform, at: &Location, pieces: &[Piece]) -> Option<Exported> {
    let mut whole: Option<Exported> = None;
    for piece in pieces {
        let address = std::ptr::with_exposed_provenance(piece.base as usize);
        let exported = match piece::export(platform, at, address, piece.buffer_id) {
            Ok(exported) => Some(exported).filter(|exported| exported.kind == ExportKind::Descriptor),
            Err(NoExport::Kind) => None,
            Err(NoExport::Refused(error)) => {
                warn_refused("cuda/ipc/export", &error);
                return None;
            }
        };
        let Some(exported) = exported else {
            cableway_base::warn_once("cuda/ipc/mixed", || {
                "device memory is copied through the host, because a part of a message's was not made to be shared by \
                 file descriptor, or is on another device than the rest"
                    .to_owned()
            });
            return None;
        };
        if (exported.base, exported.len) != (piece.base, piece.len) {
            return None;
        }
        match &mut whole {
            None => whole = Some(exported),
            Some(whole) => whole.len += exported.len,
        }
    }
    whole
}
