//! Examples and benchmarks of messages in the order of streams, with kernels of their own between the messages.

mod support;

use std::path::Path;
use std::time::Duration;

use support::clang;

/// Only a hang takes so long.
const LIMIT: Duration = Duration::from_secs(300);

fn run(ranks: u32, program: &Path, arguments: &[&str]) -> String {
    let mut command = support::mpirun(ranks);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(program).args(arguments);
    let run = support::finish_within(&mut command, LIMIT).assert_success();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    run.stdout
}

#[test]
fn libmps_example_relays_a_field_that_kernels_change() {
    if !clang::is_there() {
        return support::skip(clang::MISSING);
    }
    let said = run(2, &clang::program("mp/examples/relay.cu"), &["50", "1000"]);
    assert_eq!(said.matches("50 steps, 0 of 1000 cells are wrong").count(), 2, "{said}");
}

#[test]
fn the_halo_example_computes_the_same_for_every_way_and_number_of_ranks() {
    if !clang::is_there() {
        return support::skip(clang::MISSING);
    }
    let program = clang::halo();
    let checksum = |ranks, way: &str| {
        let said = run(ranks, &program, &[way, "20", "12", "9", "8"]);
        let sum = said.trim().split_once("checksum ").unwrap_or_else(|| panic!("{said}")).1.to_owned();
        assert!(said.contains(" us a step"), "{said}");
        assert_eq!(sum.len(), 16, "{said}");
        sum
    };
    let expected = checksum(1, "mpi");
    for (ranks, way) in [(1, "stream"), (2, "stream"), (2, "mpi"), (4, "stream"), (4, "mpi"), (8, "stream")] {
        assert_eq!(checksum(ranks, way), expected, "{ranks} ranks, {way}");
    }
}

#[test]
fn libmps_benchmarks_move_right_data_and_print_four_columns() {
    let program = clang::mp_bench();
    for pattern in ["pingpong", "sendrecv", "produce-consume", "put", "get"] {
        let options = ["--kernel", "1", "--batch", "3", "--sizes", "4,5000,300000"];
        let said = run(2, &program, &[&[pattern, "--check"], &options[..]].concat());
        assert!(said.contains(&format!("{pattern}: 12 columns are right")), "{said}");
        let said =
            run(2, &program, &[pattern, "--kernel", "1", "--batch", "3", "--sizes", "4,5000", "--seconds", "0.01"]);
        for size in ["4", "5000"] {
            let line = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let line = line.into_iter().find(|words| words.starts_with(&[pattern, size]));
            let figures: Vec<f64> = line.unwrap_or_default().iter().skip(2).flat_map(|word| word.parse()).collect();
            assert!(figures.len() == 4 && figures.iter().all(|figure| *figure > 0.0), "{said}");
        }
    }
    let said = run(2, &program, &["put", "--kernel", "0", "--sizes", "8", "--seconds", "0.01"]);
    assert!(said.contains("the columns with a kernel are left out: --kernel is 0"), "{said}");
}
