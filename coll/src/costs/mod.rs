//! The model of costs by which algorithms are chosen.
//!
//! All ranks must choose alike. So the model uses only figures that are equal on all ranks: what each process published
//! when it started ([`NodeCard`]), parameters, and constants. Times are whole picoseconds, so that all ranks calculate
//! the same.

mod simulation;

use std::time::Duration;

use cableway_base::Parameters;
use cableway_pml::{NodeCard, RouteCost};

pub(crate) use simulation::predict;

/// A time in picoseconds.
pub(crate) type Picoseconds = u64;

/// The cost of some bytes: a fixed time, and one for each 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) fixed: Picoseconds,
    /// For each KiB.
    pub(crate) each: Picoseconds,
}

impl Line {
    pub(crate) fn of(&self, bytes: u64) -> Picoseconds {
        self.fixed.saturating_add(self.transfer(bytes))
    }

    /// Returns the time of the bytes alone.
    pub(crate) fn transfer(&self, bytes: u64) -> Picoseconds {
        (u128::from(bytes) * u128::from(self.each) / 1024).try_into().unwrap_or(u64::MAX)
    }

    /// A fixed time, and the time of each byte.
    const fn new(fixed: Picoseconds, each: Picoseconds) -> Line {
        Line { fixed, each: each.saturating_mul(1024) }
    }

    fn with_rate(latency: Duration, bytes_per_second: usize) -> Line {
        let fixed = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
        Line { fixed, each: 1024 * 1_000_000_000_000 / (bytes_per_second as u64).max(1) }
    }
}

/// The number of size classes with measured costs, the first one for messages of up to 32 KiB.
const CLASSES: usize = 12;
const SMALLEST: u64 = 16 << 10;

/// What the steps of a plan cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prices {
    /// Messages within a node, by size.
    within: [Line; CLASSES],
    /// Messages between nodes.
    between: Line,
    /// A reduction, by the bytes of all its sources.
    pub(crate) reduce: Line,
    /// A copy within a process.
    pub(crate) copy: Line,
    /// A reduction by peer access, by the bytes that come to a rank.
    pub(crate) exchange: Line,
    /// The same through slots, of data that is reduced or not, by the bytes that come to a rank.
    pub(crate) reduced_one_shot: Line,
    pub(crate) moved_one_shot: Line,
    /// The processor's time to start a step and to see its end.
    pub(crate) step: Picoseconds,
}

/// Estimates where no process knows better: messages of transports without an estimate, and the processor's work.
const WITHIN: Line = Line::new(1_000_000, 100);
const BETWEEN: Line = Line::new(25_000_000, 1000);
const REDUCE: Line = Line::new(50_000, 80);
const COPY: Line = Line::new(50_000, 100);
const STEP: Picoseconds = 200_000;
/// Each KiB that a kernel of one block takes from slots in host memory, on an H200, and that it also reduces.
const MOVED_ONE_SHOT: Picoseconds = 330 * 1024;
const REDUCED_ONE_SHOT: Picoseconds = 600 * 1024;
/// The processor's time for a step on device memory, which calls the driver.
const DEVICE_STEP: Picoseconds = 1_500_000;

impl Prices {
    /// Returns the prices of work on host memory, from the cards of all ranks.
    pub(crate) fn of_host(cards: &[NodeCard]) -> Prices {
        let route = |of: fn(&NodeCard) -> RouteCost, estimate: Line| {
            let known = |part: fn(RouteCost) -> u32| {
                median(cards.iter().map(of).filter(|route| *route != RouteCost::default()).map(part))
            };
            let (latency, each) = (known(|route| route.latency), known(|route| route.each));
            latency.zip(each).map_or(estimate, |(latency, each)| Line::new(u64::from(latency) * 1000, each.into()))
        };
        let within = route(|card| card.within, WITHIN);
        let measured: [Option<u32>; CLASSES] = std::array::from_fn(|class| {
            median(cards.iter().map(|card| card.measured[class]).filter(|&each| each != 0))
        });
        // A size that was not measured costs what the nearest one does.
        let nearest = |class: usize| {
            let known = measured.iter().enumerate().filter_map(|(at, each)| Some((at.abs_diff(class), (*each)?)));
            known.min_by_key(|(distance, _)| *distance).map(|(_, each)| Line::new(within.fixed, each.into()))
        };
        Prices {
            within: std::array::from_fn(|class| nearest(class).unwrap_or(within)),
            between: route(|card| card.between, BETWEEN),
            reduce: REDUCE,
            copy: COPY,
            exchange: within,
            reduced_one_shot: within,
            moved_one_shot: within,
            step: STEP,
        }
    }

    /// Returns the prices of work on device memory. The costs of devices were measured by each process for itself, and
    /// are not known to the others. So these are the estimates among the parameters.
    pub(crate) fn on_devices(&self, parameters: &Parameters) -> Prices {
        let direct = Line::with_rate(parameters.device_direct_latency, parameters.device_direct_rate);
        let staged = Line::with_rate(parameters.device_staged_latency, parameters.device_staged_rate);
        Prices {
            within: [direct; CLASSES],
            between: Line {
                fixed: self.between.fixed.saturating_add(staged.fixed),
                each: self.between.each.max(staged.each),
            },
            reduce: direct,
            copy: direct,
            exchange: direct,
            // The estimate includes a handshake, of an offer and an answer.
            reduced_one_shot: Line { fixed: direct.fixed.saturating_sub(2 * DEVICE_STEP), each: REDUCED_ONE_SHOT },
            moved_one_shot: Line { fixed: direct.fixed.saturating_sub(2 * DEVICE_STEP), each: MOVED_ONE_SHOT },
            step: self.step.max(DEVICE_STEP),
        }
    }

    /// Returns the cost of copies from a device to host memory and back, around the host's work.
    pub(crate) fn through_host(parameters: &Parameters) -> Line {
        Line::with_rate(parameters.device_staged_latency, parameters.device_staged_rate)
    }

    /// Returns the cost of a message.
    pub(crate) fn message(&self, bytes: u64, within_node: bool) -> &Line {
        let class = ((bytes / SMALLEST).max(1).ilog2() as usize).min(CLASSES - 1);
        if within_node { &self.within[class] } else { &self.between }
    }
}

/// Returns the lower median.
fn median(figures: impl Iterator<Item = u32>) -> Option<u32> {
    let mut figures: Vec<u32> = figures.collect();
    figures.sort_unstable();
    figures.get(figures.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns prices of random proportions.
    pub(crate) fn random(mut below: impl FnMut(u64) -> u64) -> Prices {
        let mut line = |fixed: u64, each: u64| Line::new(below(fixed), below(each));
        let within = line(20_000_000, 500);
        let between = line(50_000_000, 2000);
        let (reduce, copy) = (line(10_000_000, 300), line(10_000_000, 300));
        Prices {
            within: [within; CLASSES],
            between,
            reduce,
            copy,
            exchange: copy,
            reduced_one_shot: copy,
            moved_one_shot: copy,
            step: below(1_000_000),
        }
    }

    fn card(latency: u32, measured: &[(usize, u32)]) -> NodeCard {
        let mut card = NodeCard::default();
        card.within = RouteCost { latency, each: 50 };
        measured.iter().for_each(|&(class, each)| card.measured[class] = each);
        card
    }

    #[test]
    fn the_median_card_counts_and_unmeasured_sizes_cost_what_near_ones_do() {
        let cards = [card(100, &[(2, 70), (9, 200)]), card(900, &[]), card(300, &[(2, 90)]), card(400, &[(2, 80)])];
        let prices = Prices::of_host(&cards);
        assert_eq!(*prices.message(1, true), Line::new(300_000, 80));
        assert_eq!(*prices.message(64 << 10, true), Line::new(300_000, 80));
        assert_eq!(*prices.message(16 << 20, true), Line::new(300_000, 200));
        assert_eq!(*prices.message(1 << 40, true), Line::new(300_000, 200));
        assert_eq!(*prices.message(1 << 40, false), BETWEEN);
        let reversed: Vec<NodeCard> = cards.iter().rev().copied().collect();
        assert_eq!(Prices::of_host(&reversed), prices, "the order of the ranks does not matter");
        assert_eq!(*Prices::of_host(&[NodeCard::default()]).message(1, true), WITHIN);
    }

    #[test]
    fn times_do_not_overflow() {
        let line = Line::new(u64::MAX, u64::MAX);
        assert_eq!((line.of(u64::MAX), Line::new(0, 1_000_000).of(1 << 50) > 0), (u64::MAX, true));
    }
}
