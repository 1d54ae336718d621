//! What this process tells all others of its node.

use cableway_base::Parameters;
use cableway_btl::{Btl, Cost};

use super::host_costs::{Kept, Rows, worst};
use crate::wire::{NodeCard, RouteCost};

/// Returns the card of this process: its node, what its transports are expected to cost, and what earlier jobs measured.
/// `rank` counts only for tests, which name the node of each.
pub(crate) fn card<'b>(
    parameters: &Parameters,
    kept: &Kept,
    btls: impl Iterator<Item = &'b dyn Btl> + Clone,
    rank: u32,
) -> NodeCard {
    let best = |here: bool| {
        let costs = btls.clone().filter_map(|btl| btl.expected(here)).map(route);
        costs.min_by_key(|cost| (cost.latency, cost.each)).unwrap_or_default()
    };
    // Times were measured over shared memory.
    let shared_memory = btls.clone().any(|btl| btl.expected(true).is_some() && btl.expected(false).is_none());
    NodeCard {
        node: named(&parameters.pml_nodes, rank).or_else(boot),
        within: best(true),
        between: best(false),
        measured: if shared_memory { measured(kept) } else { NodeCard::default().measured },
    }
}

fn route(cost: Cost) -> RouteCost {
    let each = (1e12 / cost.bytes_per_second.max(1.0)).ceil();
    RouteCost { latency: cost.fixed.as_nanos().try_into().unwrap_or(u32::MAX), each: each as u32 }
}

fn measured(kept: &Kept) -> [u32; 12] {
    let rows: Rows = worst(kept);
    let best = |row: [Option<f32>; 5]| row.into_iter().flatten().fold(f32::INFINITY, f32::min);
    rows.map(best).map(|each| if each.is_finite() { each.ceil() as u32 } else { 0 })
}

/// Returns the node that the list names for a rank.
fn named(list: &str, rank: u32) -> Option<[u8; 16]> {
    let node: u32 = list.split(',').nth(rank as usize)?.trim().parse().ok()?;
    let mut identity = *b"node for a test.";
    identity[12..].copy_from_slice(&node.to_le_bytes());
    Some(identity)
}

/// Returns the identity of this boot of the node.
fn boot() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_name_the_node_of_each_rank() {
        let node = |rank| named("0, 1,0,x", rank);
        assert!(node(0).is_some() && node(0) == node(2) && node(0) != node(1) && node(1).is_some());
        assert_eq!((node(3), node(4), named("", 0)), (None, None, None));
    }

    #[test]
    fn a_node_is_named_by_its_boot() {
        assert_eq!(boot(), boot());
        assert!(boot().is_some_and(|boot| boot != [0; 16]));
    }
}
