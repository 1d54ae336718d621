//! The table of MPI's calls (`calls.tsv`): complete, shown in the README, and true on device memory.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The table is of 4.1; 5.0 has other calls, and serves some in another way.
fn of_another_version() -> bool {
    let another = support::major_version() != 4;
    if another {
        support::skip("the table of calls is of Open MPI 4.1");
    }
    another
}

struct Call {
    name: &'static str,
    served_by: &'static str,
}

fn table() -> Vec<Call> {
    let lines = include_str!("../calls.tsv").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.split('\t');
            let (name, served_by) = (fields.next().unwrap(), fields.next().expect("who serves the call"));
            assert!(SERVED_BY.iter().any(|(known, _)| *known == served_by), "{name}: {served_by}");
            Call { name, served_by }
        })
        .collect()
}

/// Who serves a call on device memory, and what the README says of it.
const SERVED_BY: &[(&str, &str)] = &[
    ("pml", "messages, straight from and to device memory"),
    ("coll", "collectives, through host copies; each also non-blocking (`MPI_I...`) and persistent (`MPIX_..._init`)"),
    ("osc", "one-sided, on this process's buffers, through host copies"),
    ("preload", "through host copies, with `libcableway_mpi.so` preloaded; without it they crash"),
    ("error", "refused with an error that says why (`MPI_Buffer_attach` with the library preloaded)"),
    ("none", "has no buffer that could be device memory"),
];

/// Every function of MPI's headers that takes or gives an address.
fn prototypes() -> BTreeSet<String> {
    let source = support::scratch().join("headers.c");
    std::fs::write(&source, "#include <mpi.h>\n#include <mpi-ext.h>\n")
        .expect("cargo's folder for tests can be written");
    let output = Command::new("mpicc").args(["-E", "-P"]).arg(&source).output().expect("mpicc can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found = BTreeSet::new();
    for statement in text.split(';').filter(|statement| !statement.contains("typedef")) {
        let words = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        // Attributes, which have parentheses too, may stand before the name.
        for (at, _) in words.match_indices('(') {
            let name = words[..at].trim().rsplit([' ', '*']).next().unwrap_or_default();
            if name.starts_with("MPI_") || name.starts_with("MPIX_") {
                if words[at..].replace(' ', "").contains("void*") {
                    found.insert(name.to_owned());
                }
                break;
            }
        }
    }
    found
}

#[test]
fn every_call_that_takes_an_address_is_in_the_table() {
    if of_another_version() {
        return;
    }
    let found = prototypes();
    assert!(found.len() > 150 && found.contains("MPI_Send"), "the headers were not understood: {found:?}");
    let known: BTreeSet<_> = table().iter().map(|call| call.name.to_owned()).collect();
    let missing: Vec<_> = found.difference(&known).collect();
    assert!(missing.is_empty(), "not in calls.tsv: {missing:?}");
}

/// The table as the README has it. Of collectives the blocking form stands for all.
fn section() -> String {
    let mut text = "| served by | calls |\n|---|---|\n".to_owned();
    for &(served_by, remark) in SERVED_BY.iter().filter(|(served_by, _)| *served_by != "none") {
        let all = table();
        let calls = all.iter().filter(|call| call.served_by == served_by);
        let shown = calls.filter(|call| served_by != "coll" || is_blocking(call.name));
        let names: Vec<_> = shown.map(|call| format!("`{}`", call.name.trim_start_matches("MPI_"))).collect();
        text += &format!("| {remark} | {} |\n", names.join(" "));
    }
    text
}

fn is_blocking(name: &str) -> bool {
    !name.starts_with("MPI_I") && !name.starts_with("MPIX_")
}

#[test]
fn the_readme_shows_the_table() {
    let readme =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).expect("there is a README");
    let section = section();
    assert!(readme.contains(&section), "the README does not have this:\n{section}");
}

/// Runs the rows whose names begin so; their names.
fn walk(ranks: u32, rows: &str) -> BTreeSet<String> {
    // Walks run side by side, and each writes files.
    let folder = support::scratch().join(format!("calls-{ranks}-{rows}"));
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written");
    let mut command = support::mpirun(ranks);
    command.args(["-x", &format!("LD_PRELOAD={}", support::preloaded().display())]);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).env("CALLS_FOLDER", folder);
    command.arg(support::program("calls")).arg(rows);
    // Thousands of calls, each several times.
    let run = support::finish_within(&mut command, Duration::from_secs(900)).assert_success();
    run.stdout.lines().filter_map(|line| line.strip_prefix("ok ")).map(str::to_owned).collect()
}

fn every_row_works(ranks: u32) {
    if of_another_version() {
        return;
    }
    let rows = walk(ranks, "");
    let ran = |name: &str| rows.contains(name) || rows.contains(&name.replace("_end", "_begin"));
    let idle: Vec<_> =
        table().iter().filter(|call| call.served_by != "none" && !ran(call.name)).map(|call| call.name).collect();
    assert!(idle.is_empty(), "in the table, but not run: {idle:?}");
}

#[test]
fn every_row_works_in_one_process() {
    every_row_works(1);
}

#[test]
fn every_row_works_between_two_processes() {
    every_row_works(2);
}

#[test]
fn every_row_works_among_three_processes() {
    every_row_works(3);
}

#[test]
fn without_a_driver_everything_passes_through() {
    let mut command = support::mpirun(2);
    command.args(["-x", &format!("LD_PRELOAD={}", support::preloaded().display())]);
    support::finish(command.arg(support::program("ring"))).assert_success();
}

#[test]
fn too_little_host_memory_is_an_error_of_the_call() {
    if of_another_version() {
        return;
    }
    let run = || {
        let mut command = support::mpirun(1);
        command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).env("CABLEWAY_STAGING_LIMIT", "4K");
        let run = support::finish(command.arg(support::program("calls")).arg("MPI_Allreduce"));
        run.stdout + &run.stderr
    };
    // mpirun 4.1 now and then loses a process's last words, and Open MPI's own on its end.
    let heard = |said: &String| said.contains("staging_limit allows 4096 in all");
    let said = (0..5).map(|_| run()).find(heard).unwrap_or_else(run);
    assert!(heard(&said), "{said}");
    assert!(!said.contains("ok MPI_Allreduce") && !said.contains("Signal:"), "{said}");
}
