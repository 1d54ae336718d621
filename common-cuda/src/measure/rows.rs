//! The measurement. It makes copies of a few bytes and of a few million bytes in its own stream, and times each from
//! the call until its end is detected. The fastest counts, because other work on the machine only makes copies slower.

use std::time::Duration;

use super::bench::{Bench, NoFigure};
use super::halt::Halt;
use crate::copies::{Workspace, issue};
use crate::copy::{Direction, RowCopy};
use crate::costs::text::{self, Key};
use crate::costs::{CopyCost, DeviceCosts, Known, PeerCosts};
use crate::location::DeviceIndex;

/// The sizes of copies for the latency and for the rate.
const FEW: usize = 8;
const MANY_TO_HOST: usize = 4 << 20;
const MANY: usize = 8 << 20;
/// Copies of each kind.
const FEW_TIMES: usize = 20;
const MANY_TIMES: usize = 4;
/// The number of attempts for a row with implausible figures, as on a busy machine.
const TRIES: usize = 5;
/// The number of copies that are issued together.
const TOGETHER: usize = 8;
/// Short rows of a 2-D copy, their length, and their distance on the device.
const ROWS: usize = 4096;
const ROW: usize = 8;
const ROW_DISTANCE: usize = 32;

/// Measures the rows that are unknown and can be measured.
pub(super) fn measure(
    workspace: &Workspace,
    device: DeviceIndex,
    key: &Key,
    mut costs: DeviceCosts,
    kernels: bool,
    halt: &Halt,
) -> DeviceCosts {
    let Ok(_scope) = workspace.context.enter() else { return costs };
    let bench = match Bench::new(workspace, device, halt) {
        Ok(bench) => bench,
        Err(failure) => {
            log::info!("device {}: copies cannot be measured: {}", device.0, workspace.context.driver.reason(failure));
            return costs;
        }
    };
    let own = bench.device_memory(device, 2 * MANY);
    let rows = Rows { bench: &bench, own: own.as_ref().map(|own| own.address).map_err(|ended| *ended) };
    rows.with_host(&mut costs);
    rows.fill(&mut costs.within, || rows.cost((rows.own? + MANY as u64, rows.own?), MANY));
    for (uuid, _) in &key.peers {
        rows.with_peer(*uuid, kernels, &mut costs);
    }
    costs.peers.retain(|peer| peer.push.is_settled() || peer.pull.is_settled());
    costs
}

/// Measures rows.
struct Rows<'b, 'c> {
    bench: &'b Bench<'c>,
    /// Memory of the device.
    own: Result<u64, NoFigure>,
}

impl Rows<'_, '_> {
    /// Fills in an unknown row.
    fn fill<T: Copy>(&self, row: &mut Known<T>, measure: impl Fn() -> Result<T, NoFigure>) {
        if row.is_settled() {
            return;
        }
        let mut figure = measure();
        for _ in 1..TRIES {
            if !matches!(figure, Err(NoFigure::Implausible)) {
                break;
            }
            figure = measure();
        }
        *row = figure.map_or_else(|ended| self.bench.row(ended), Known::Is);
    }

    /// Copies between the device and the host.
    fn with_host(&self, costs: &mut DeviceCosts) {
        let rows = [costs.to_host.is_settled(), costs.from_host.is_settled(), costs.call.is_settled()];
        if rows.into_iter().all(|settled| settled) && costs.rows_per_second.is_settled() {
            return;
        }
        let host = self.bench.host_memory(MANY_TO_HOST);
        let address = || host.as_ref().map(|host| host.address).map_err(|ended| *ended);
        self.fill(&mut costs.to_host, || self.cost((address()?, self.own?), MANY_TO_HOST));
        self.fill(&mut costs.from_host, || self.cost((self.own?, address()?), MANY_TO_HOST));
        let to_host =
            |pieces: &[RowCopy]| self.bench.fastest(FEW_TIMES, || self.issue(pieces, Direction::DeviceToHost));
        self.fill(&mut costs.call, || {
            let pieces = pieces((address()?, self.own?), TOGETHER, FEW);
            each_more(to_host(&pieces[..1])?, to_host(&pieces)?)
        });
        self.fill(&mut costs.rows_per_second, || {
            let [one] = pieces((address()?, self.own?), 1, ROW)[..] else { return Err(NoFigure::NotNow) };
            let rows = RowCopy { src_pitch: ROW_DISTANCE, rows: ROWS, ..one };
            let more = to_host(&[rows])?.saturating_sub(to_host(&[one])?);
            text::sane_rows((ROWS - 1) as f64 / more.as_secs_f64()).ok_or(NoFigure::Implausible)
        });
    }

    /// Copies between the device and another.
    fn with_peer(&self, uuid: [u8; 16], kernels: bool, costs: &mut DeviceCosts) {
        let place = costs.peers.iter().position(|peer| peer.device == uuid);
        let place = place.unwrap_or_else(|| {
            costs.peers.push(PeerCosts { device: uuid, push: Known::Nothing, pull: Known::Nothing });
            costs.peers.len() - 1
        });
        let together = costs.several.is_settled() && (costs.kernel.is_settled() || !kernels);
        let peer = &mut costs.peers[place];
        if peer.push.is_settled() && peer.pull.is_settled() && together {
            return;
        }
        let other = self.index_of(uuid).and_then(|other| self.bench.device_memory(other, MANY));
        let address = || other.as_ref().map(|other| other.address).map_err(|ended| *ended);
        self.fill(&mut peer.push, || self.cost((address()?, self.own?), MANY));
        self.fill(&mut peer.pull, || self.cost((self.own?, address()?), MANY));
        self.fill(&mut costs.several, || {
            let pieces = pieces((address()?, self.own?), TOGETHER, FEW);
            let driver = self.bench.workspace.context.driver;
            let stream = self.bench.stream()?;
            let one = self.copy((address()?, self.own?), FEW, FEW_TIMES)?;
            // As messages issue them: by one call if the driver has it.
            // SAFETY: the bench owns memory of this size and keeps it until the stream is idle.
            let together = || unsafe { driver.copy_together(&pieces, stream) };
            let batch = || together().or_else(|_| self.issue(&pieces, Direction::DeviceToDevice));
            each_more(one, self.bench.fastest(FEW_TIMES, batch)?)
        });
        if kernels {
            self.fill(&mut costs.kernel, || {
                let ends = (address()?, self.own?);
                let kernel = |bytes, times| self.bench.kernel(times, &pieces(ends, TOGETHER, bytes / TOGETHER));
                line((TOGETHER * FEW, kernel(TOGETHER * FEW, FEW_TIMES)?), (MANY, kernel(MANY, MANY_TIMES)?))
            });
        }
    }

    fn index_of(&self, uuid: [u8; 16]) -> Result<DeviceIndex, NoFigure> {
        let driver = self.bench.workspace.context.driver;
        let mut indices = (0_u32..).map(DeviceIndex).map_while(|index| Some((index, driver.uuid(index).ok()?)));
        indices.find(|(_, found)| *found == uuid).map(|(index, _)| index).ok_or(NoFigure::NotNow)
    }

    fn issue(&self, pieces: &[RowCopy], direction: Direction) -> Result<(), crate::driver::Failure> {
        let (context, stream) = (&self.bench.workspace.context, self.bench.stream()?);
        // SAFETY: the bench owns memory of this size and keeps it until the stream is idle.
        pieces.iter().try_for_each(|piece| unsafe { issue(context, piece, direction, stream) })
    }

    /// Measures the cost of copies of so many bytes from one address to another.
    fn cost(&self, ends: (u64, u64), bytes: usize) -> Result<CopyCost, NoFigure> {
        line((FEW, self.copy(ends, FEW, FEW_TIMES)?), (bytes, self.copy(ends, bytes, MANY_TIMES)?))
    }

    fn copy(&self, (to, from): (u64, u64), bytes: usize, times: usize) -> Result<Duration, NoFigure> {
        let pieces = pieces((to, from), 1, bytes);
        self.bench.fastest(times, || self.issue(&pieces, Direction::DeviceToDevice))
    }
}

/// Copies of the same size, adjacent on both sides.
fn pieces((to, from): (u64, u64), count: usize, bytes: usize) -> Vec<RowCopy> {
    let piece = |index: usize| {
        let dst = std::ptr::with_exposed_provenance_mut(to as usize + index * bytes);
        RowCopy::run(dst, std::ptr::with_exposed_provenance(from as usize + index * bytes), bytes)
    };
    (0..count).map(piece).collect()
}

/// Returns the time of each further copy among [`TOGETHER`].
fn each_more(one: Duration, all: Duration) -> Result<Duration, NoFigure> {
    let more = all.saturating_sub(one) / (TOGETHER as u32 - 1);
    if more.is_zero() { Err(NoFigure::Implausible) } else { Ok(more) }
}

/// Returns the line through the times of a few bytes and of many.
fn line(few: (usize, Duration), many: (usize, Duration)) -> Result<CopyCost, NoFigure> {
    let seconds = many.1.saturating_sub(few.1).as_secs_f64();
    let bytes_per_second = (many.0 - few.0) as f64 / seconds;
    text::sane(CopyCost { latency: few.1, bytes_per_second }).ok_or(NoFigure::Implausible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_figures_are_rejected() {
        let us = Duration::from_micros;
        let cost = line((8, us(7)), (8 << 20, us(29))).unwrap();
        assert_eq!(cost.latency, us(7));
        assert!((380e9..382e9).contains(&cost.bytes_per_second), "{cost:?}");
        for implausible in [line((8, us(7)), (8 << 20, us(7))), line((8, us(9)), (8 << 20, us(7)))] {
            assert!(matches!(implausible, Err(NoFigure::Implausible)));
        }
        assert_eq!(each_more(us(7), us(14)).unwrap(), us(1));
        assert!(matches!(each_more(us(7), us(7)), Err(NoFigure::Implausible)));
    }
}
