//! `cableway explain --collective`: the predicted times of an operation's algorithms.

use std::num::NonZeroU32;

use cableway::{CollectiveQuestion, EXPLAINED_COLLECTIVES, Prediction, World, parse_size};
use clap::Args;

use super::super::{Failure, output};

#[derive(Args)]
pub(super) struct Options {
    /// Collective operation to explain instead of messages. With --src device or --dst device its data is in device
    /// memory
    #[arg(long, value_parser = EXPLAINED_COLLECTIVES, conflicts_with_all = ["operation", "size", "strided", "irregular", "measure"])]
    collective: Option<String>,

    /// Ranks of the operation
    #[arg(long, requires = "collective", default_value = "2", value_name = "N", value_parser = clap::value_parser!(u32).range(2..=65536))]
    ranks: u32,

    /// Nodes, which the ranks fill evenly
    #[arg(long, requires = "collective", default_value = "1", value_name = "M")]
    nodes: NonZeroU32,

    /// Bytes of data; of an allgather, those of all ranks together
    #[arg(long, requires = "collective", default_value = "1M", value_name = "B", value_parser = parse_bytes)]
    bytes: u64,
}

impl Options {
    /// Checks what clap does not.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let &Options { ranks, nodes, .. } = self;
        if nodes.get() <= ranks {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{ranks} ranks cannot be on {nodes} nodes: name fewer nodes (--nodes) or more ranks (--ranks)"
        )))
    }

    /// Returns the operation to explain.
    pub(super) fn operation(&self) -> Option<&str> {
        self.collective.as_deref()
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text)
}

/// Prints the times of all algorithms, the fastest first, and marks the one that is chosen.
pub(super) fn print(
    world: &World,
    operation: &str,
    options: &Options,
    on_devices: bool,
    json: bool,
) -> Result<(), Failure> {
    let &Options { ranks, nodes, bytes, .. } = options;
    let question = CollectiveQuestion { operation, ranks, nodes: nodes.get(), bytes, on_devices };
    let Some(mut rows) = world.communicator().explain_collective(question)? else {
        return Err(Failure::usage(format!("{operation} has no algorithms to choose from")));
    };
    rows.sort_by_key(|row| row.time);
    if json {
        return output::print(&rows.iter().map(object).collect::<String>());
    }
    let memory = if on_devices { "device" } else { "host" };
    let on = if nodes.get() == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    let mut text = format!("# {operation} of {bytes} bytes in {memory} memory, {ranks} ranks on {on}\n");
    let origin = match (on_devices, cableway::host_times(world.parameters())) {
        (true, _) => "estimates of messages between devices".to_owned(),
        (false, Some((path, times))) if !times.is_empty() => format!("what was measured: {}", path.display()),
        _ => "estimates: nothing was measured yet".to_owned(),
    };
    text += &format!("# Times within a node are predicted from {origin}\n");
    let width = rows.iter().map(|row| row.algorithm.len()).max().unwrap_or(0);
    for row in &rows {
        let mark = if row.chosen { "  chosen" } else { "" };
        text += &format!("  {:width$}  {:>12.2} us{mark}\n", row.algorithm, row.time.as_secs_f64() * 1e6);
    }
    output::print(&text)
}

fn object(row: &Prediction) -> String {
    let time = row.time.as_secs_f64() * 1e6;
    format!("{}\n", serde_json::json!({ "algorithm": row.algorithm, "predicted_us": time, "chosen": row.chosen }))
}
