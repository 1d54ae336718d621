//! Algorithms over nodes, and how algorithms are chosen. The ranks run on one machine, and a setting for tests says which
//! node each counts as.

use cableway::{ReduceOperation, World};
use serde_json::Value;

use super::{NO_DRIVER, Outcome, finish, options, over, role_job};
use crate::support::cableway;

/// Runs the operations of the model over nodes of several shapes: even ones, ones with different numbers of ranks, and
/// ones whose ranks do not follow each other.
pub(super) fn jobs() {
    let driver = crate::support::Driver::find().options();
    for (ranks, nodes) in [(4, "0,0,1,1"), (4, "0,1,0,1"), (4, "0,1,1,1"), (5, "2,0,1,0,2")] {
        let shape = format!("pml_nodes={nodes}");
        let sets = ["coll_algorithm=hierarchical", "coll_segment=512", "coll_device_limit=1", &shape];
        let sets = sets.iter().flat_map(|set| ["--set", set]).map(str::to_owned);
        let all = [over("tcp"), sets.collect()].concat();
        let mut on_hosts = role_job(ranks, &options(&all), "collectives_in_turn");
        finish(on_hosts.env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER)).assert_success();
        let all = [all, driver.clone()].concat();
        finish(&mut role_job(ranks, &options(&all), "collectives_at_random")).assert_success();
    }
}

/// Returns the choices of a job of four ranks: one line each.
fn chosen(sets: &[&str]) -> Vec<String> {
    let sets = sets.iter().flat_map(|set| ["--set", set]).map(str::to_owned);
    let all = [over("tcp"), sets.collect()].concat();
    let mut job = role_job(4, &options(&all), "collectives_choices");
    let finished = finish(job.env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER)).assert_success();
    finished.stdout.lines().map(str::to_owned).collect()
}

/// One rank reports each choice once, the setting makes nodes of ranks, and the command explains the same choices.
pub(super) fn choices() {
    let named = chosen(&["coll_algorithm=hierarchical", "pml_nodes=0,0,1,1"]);
    assert_eq!(named.len(), 4 * 2, "{named:#?}");
    let over_nodes = |line: &String| line.contains("4 ranks on 2 nodes: hierarchical");
    assert!(named.iter().all(over_nodes), "{named:#?}");

    let one_node = chosen(&[]);
    assert_eq!(one_node.len(), 4 * 2, "{one_node:#?}");
    for line in &one_node {
        let (operation, rest) = line.split_once(" of ").expect("an operation");
        let bytes = rest.split(' ').next().expect("a size");
        let mut command = cableway();
        command.args(["explain", "--format", "json", "--btl", "tcp", "--collective", operation, "--bytes", bytes]);
        let explained = finish(command.args(["--ranks", "4"])).assert_success().stdout;
        let rows: Vec<Value> = explained.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        let marked: Vec<&Value> = rows.iter().filter(|row| row["chosen"] == true).collect();
        assert_eq!(marked.len(), 1, "{explained}");
        let algorithm = marked[0]["algorithm"].as_str().expect("a name");
        assert!(line.contains(&format!("4 ranks on 1 node: {algorithm} ")), "{line}\n{explained}");
        assert!(rows.iter().all(|row| row["predicted_us"].as_f64() >= marked[0]["predicted_us"].as_f64()));
    }
}

/// Prints the choices that this rank reports.
struct Printed;

impl log::Log for Printed {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("cableway_coll")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            println!("{}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Performs each operation with little and with much data, several times each.
pub(super) fn choose() -> Outcome {
    log::set_logger(&Printed)?;
    log::set_max_level(log::LevelFilter::Debug);
    let world = World::init()?;
    let on = world.communicator();
    let same = on.dup()?;
    for bytes in [64, 1 << 18] {
        for on in [on, &same, on] {
            let (mut data, mut all) = (vec![on.rank(); bytes / 4], vec![0_u32; bytes / 4]);
            on.allreduce(&data[..], &mut all[..], ReduceOperation::Max)?;
            on.reduce(&data[..], ReduceOperation::Max, 1, Some(&mut all[..]))?;
            on.broadcast(&mut data[..], 2)?;
            on.allgather(&data[..bytes / 16], &mut all[..])?;
            if data.iter().any(|&value| value != 2) || all.iter().any(|&value| value != 2) {
                return Err(format!("wrong data after {bytes} bytes").into());
            }
        }
    }
    Ok(on.barrier()?)
}
