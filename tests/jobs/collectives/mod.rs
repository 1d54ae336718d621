//! Collective operations of the library.

mod dying;
mod ends;
mod mistakes;
mod model;
mod neighbors;
mod nodes;
mod one_shot;
mod overlap;
mod peer_access;
mod questions;
mod random;
mod rooms;
mod storm;
mod types;

use std::error::Error;

use crate::support::{Driver, NO_DRIVER, Role, Test, finish, over, role_job, transports};

/// Kernels are launched by graphs: always, or until the driver refuses it, in the middle of an operation.
const BY_GRAPHS: [&[(&str, &str)]; 3] = [
    &[SLOW_LAUNCHES],
    &[SLOW_LAUNCHES, ("SIM_CUDA_FAIL", "cuGraphLaunch:701:30+")],
    &[SLOW_LAUNCHES, ("SIM_CUDA_FAIL", "cuGraphExecKernelNodeSetParams:400:40+")],
];
const SLOW_LAUNCHES: (&str, &str) = ("SIM_CUDA_SLOW", "cuLaunchKernel:200");

pub(crate) const TESTS: &[Test] = &[
    ("collectives::every_operation_gives_the_results_of_a_model", || with_every_driver("collectives_in_turn", &[])),
    ("collectives::random_sequences_give_the_results_of_a_model", || with_every_driver("collectives_at_random", &[])),
    ("collectives::large_algorithms_give_the_results_of_a_model", || {
        let with = ["coll_segment=512", "coll_device_limit=1"];
        with_every_driver("collectives_at_random", &["coll_algorithm=direct", with[0], with[1]]);
        for algorithm in ["ring", "rabenseifner"] {
            every_size("collectives_at_random", &[&format!("coll_algorithm={algorithm}"), with[0], with[1]]);
        }
    }),
    ("collectives::peer_access_gives_the_results_of_a_model", || {
        let mapped = ["coll_algorithm=peer_access", "device_ipc_open_size=1"];
        for role in ["collectives_in_turn", "collectives_at_random", "collectives_types", "collectives_overlap"] {
            with_every_driver(role, &mapped);
        }
        with_every_driver("collectives_at_random", &["coll_algorithm=peer_access", "device_protocols=copy"]);
        for graphs in BY_GRAPHS {
            let named = mapped.map(|set| ["--set", set]).concat();
            one_shot::jobs("collectives_in_turn", &named, graphs);
        }
        // Where a kernel cannot be launched, other mechanisms do its work.
        for failing in [1, 4, 9] {
            let fault = format!("cuGraphCreate:801,cuLaunchKernel:701:{failing}");
            let named = mapped.map(|set| ["--set", set]).concat();
            one_shot::jobs("collectives_at_random", &named, &[("SIM_CUDA_FAIL", &fault)]);
        }
    }),
    ("collectives::peer_access_moves_no_data_by_messages", || {
        let driver = Driver::find().folder.to_string_lossy().into_owned();
        let named: &[&str] = &["--set", "coll_algorithm=peer_access"];
        // Without a name, members agree on it because they pass device memory.
        for (ranks, named) in [(2, named), (4, named), (2, &[]), (4, &[])] {
            let all = [named, &["--set", "btl=sm,self", crate::support::libdir_option(), &driver]].concat();
            let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
            let mut job = role_job(ranks, &options(&all), "collectives_peer_access");
            let finished = finish(job.env("SIM_CUDA_DEVICES", "4")).assert_success();
            finished.stdout.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| println!("{line}"));
        }
    }),
    ("collectives::one_shot_gives_the_results_of_a_model", || {
        for role in ["collectives_in_turn", "collectives_at_random", "collectives_types", "collectives_overlap"] {
            one_shot::jobs(role, &["--set", "coll_algorithm=one_shot"], &[]);
        }
    }),
    ("collectives::little_data_moves_through_slots", || {
        one_shot::jobs("collectives_one_shot", &[], &[]);
        one_shot::jobs("collectives_one_shot", &[], &[("SIM_CUDA_KERNEL_DELAY_US", "100")]);
        one_shot::jobs("collectives_one_shot", &[], &[("SIM_CUDA_FAIL", "cuMemHostRegister:801")]);
        // Without kernels, the host does their work.
        one_shot::jobs("collectives_one_shot", &["--set", "device_kernels=no"], &[]);
        for graphs in BY_GRAPHS {
            one_shot::jobs("collectives_one_shot", &[], graphs);
        }
        for failing in 20..26 {
            let fault = format!("cuGraphCreate:801,cuLaunchKernel:701:{failing}");
            one_shot::jobs("collectives_one_shot", &[], &[("SIM_CUDA_FAIL", &fault)]);
        }
    }),
    ("collectives::kernels_that_were_late_are_launched_again", || {
        one_shot::jobs("collectives_one_shot_late", &[], &[])
    }),
    ("collectives::a_rank_that_dies_within_one_shot_ends_it", one_shot::dying),
    ("collectives::a_rank_that_leaves_before_one_shot_ends_it", || {
        one_shot::jobs("collectives_one_shot_leaves", &[], &[]);
    }),
    ("collectives::a_forked_child_has_no_slots", || one_shot::jobs("collectives_one_shot_forks", &[], &[])),
    ("collectives::host_memory_is_not_asked_about", questions::jobs),
    ("collectives::algorithms_over_nodes_give_the_results_of_a_model", nodes::jobs),
    ("collectives::explained_choices_are_those_that_are_made", nodes::choices),
    ("collectives::operations_overlap_with_each_other_and_messages", || with_every_driver("collectives_overlap", &[])),
    ("collectives::neighbours_exchange_data", || with_every_driver("collectives_neighbors", &[])),
    ("collectives::ranks_agree_beside_exchanges_of_some", || {
        one_shot::jobs("collectives_beside_neighbors", &[], &[]);
    }),
    ("collectives::threads_use_their_own_communicators", || with_every_driver("collectives_threads", &[])),
    ("collectives::random_operations_of_threads_on_random_communicators", storm::jobs),
    ("collectives::every_type_is_reduced", || with_every_driver("collectives_types", &[])),
    ("collectives::errors_name_the_mistake", || {
        for btl in transports() {
            finish(&mut role_job(2, &options(&over(&btl)), "collectives_mistakes")).assert_success();
        }
    }),
    ("collectives::a_rank_that_dies_ends_the_operation_of_all", || dies("collectives_dies")),
    ("collectives::a_rank_that_dies_within_an_operation_ends_it", || dies("collectives_dies_within")),
    ("collectives::a_rank_that_dies_within_any_operation_ends_it", || dying::jobs(&[])),
    ("collectives::a_rank_that_dies_within_peer_access_ends_it", || dying::jobs(&["coll_algorithm=peer_access"])),
    ("collectives::an_operation_survives_ranks_that_leave", || every_size("collectives_leave", &[])),
    ("collectives::a_panic_ends_operations_under_way", || every_size("collectives_panic", &[])),
];

pub(crate) const ROLES: &[Role] = &[
    ("collectives_in_turn", random::in_turn),
    ("collectives_at_random", random::at_random),
    ("collectives_overlap", overlap::overlap),
    ("collectives_neighbors", neighbors::neighbors),
    ("collectives_beside_neighbors", neighbors::beside),
    ("collectives_threads", overlap::threads),
    ("collectives_choices", nodes::choose),
    ("collectives_storm", storm::storm),
    ("collectives_types", types::types),
    ("collectives_mistakes", mistakes::mistakes),
    ("collectives_peer_access", peer_access::moves_nothing_by_messages),
    ("collectives_one_shot", one_shot::role),
    ("collectives_one_shot_late", one_shot::late),
    ("collectives_one_shot_dies", one_shot::dies),
    ("collectives_one_shot_leaves", one_shot::leaves),
    ("collectives_one_shot_forks", one_shot::forks),
    ("collectives_questions", questions::in_host_memory),
    ("collectives_dies", || ends::dies(false)),
    ("collectives_dies_within", || ends::dies(true)),
    ("collectives_dying", dying::role),
    ("collectives_leave", ends::leave),
    ("collectives_panic", ends::panics),
];

type Outcome = Result<(), Box<dyn Error>>;

fn options(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// Runs jobs of 1 to 4 ranks, with host memory only and with device memory, too.
fn with_every_driver(role: &str, sets: &[&str]) {
    let driver = Driver::find().options();
    every_size(role, sets);
    let sets: Vec<String> = sets.iter().flat_map(|set| ["--set", set]).map(str::to_owned).collect();
    for btl in transports() {
        for ranks in 1..=4 {
            let all = [over(&btl), sets.clone(), driver.clone()].concat();
            finish(&mut role_job(ranks, &options(&all), role)).assert_success();
        }
    }
}

/// Runs jobs of 1 to 4 ranks without a device driver.
fn every_size(role: &str, sets: &[&str]) {
    let sets: Vec<String> = sets.iter().flat_map(|set| ["--set", set]).map(str::to_owned).collect();
    for btl in transports() {
        for ranks in 1..=4 {
            let all = [over(&btl), sets.clone()].concat();
            finish(role_job(ranks, &options(&all), role).env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER)).assert_success();
        }
    }
}

/// Rank 1 dies. The others must hear of it.
fn dies(role: &str) {
    for btl in transports() {
        let all = [vec!["--keep-going".to_owned()], over(&btl)].concat();
        let finished = finish(&mut role_job(3, &options(&all), role));
        let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
        assert_eq!(survived, 2, "{btl}: {finished:#?}");
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}
