//! The table of MPI's calls (`calls.tsv`): complete, shown in `docs/open-mpi.md`, and true on device memory.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

struct Call {
    name: &'static str,
    /// Under 4.1, and under 5.0.
    served_by: [&'static str; 2],
    remark: &'static str,
}

impl Call {
    /// Returns the component that serves the call under the Open MPI of the tests, if that has the call.
    fn served_here(&self) -> Option<&'static str> {
        Some(self.served_by[usize::from(support::major_version() >= 5)]).filter(|&served_by| served_by != ABSENT)
    }

    /// Checks whether an intercepting function serves it.
    fn is_intercepted(&self) -> bool {
        self.served_here() == Some("intercept") || self.remark.starts_with("intercept:")
    }
}

fn table() -> Vec<Call> {
    let lines = include_str!("../calls.tsv").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.split('\t');
            let name = fields.next().unwrap();
            let served_by =
                [(); 2].map(|()| fields.next().expect("the component that serves the call under each version"));
            for by in served_by {
                assert!(SERVED_BY.iter().any(|(known, _)| *known == by), "{name}: {by}");
            }
            Call { name, served_by, remark: fields.next().unwrap_or_default() }
        })
        .collect()
}

const ABSENT: &str = "-";

/// The components that serve a call on device memory, and their text in the documentation.
const SERVED_BY: &[(&str, &str)] = &[
    ("pml", "messages, straight from and to device memory"),
    ("coll", "on the devices, once the ranks [have agreed](#collectives)"),
    ("local", "on the device"),
    (
        "osc",
        "directly where the [window is in device memory](#windows-in-device-memory), else through host copies of this \
         process's buffers",
    ),
    ("window", "may be [in device memory](#windows-in-device-memory)"),
    ("accelerator", "by Open MPI itself, through host copies piece by piece"),
    ("intercept", "through host copies, by [intercepted calls](#intercepted-calls)"),
    ("error", "refused with an error that says why"),
    ("none", "has no buffer that could be device memory"),
    (ABSENT, "no such call"),
];

/// The text after the names of collectives.
const FORMS: &str = ", with their non-blocking (`MPI_I...`) and persistent (`..._init`) forms";

/// Lists every function in MPI's headers that takes or returns an address.
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
        // Attributes with parentheses may precede the name.
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
fn every_call_with_an_address_is_in_the_table() {
    let found = prototypes();
    assert!(found.len() > 150 && found.contains("MPI_Send"), "the headers were not understood: {found:?}");
    let known: BTreeSet<_> =
        table().iter().filter(|call| call.served_here().is_some()).map(|call| call.name.to_owned()).collect();
    let missing: Vec<_> = found.difference(&known).collect();
    assert!(missing.is_empty(), "not in calls.tsv: {missing:?}");
}

/// Formats the table of the documentation: one row for calls that are served alike under each version. Of collectives
/// only the blocking form is listed.
fn section() -> String {
    let table = table();
    let mut text = "| calls | under Open MPI 4.1 | under 5.0 |\n|---|---|---|\n".to_owned();
    let mut done = Vec::new();
    for served_by in table.iter().map(|call| call.served_by) {
        if done.contains(&served_by) || served_by.iter().all(|by| ["none", ABSENT].contains(by)) {
            continue;
        }
        done.push(served_by);
        let calls = table.iter().filter(|call| call.served_by == served_by);
        let has_forms = served_by.contains(&"coll");
        let shown = calls.filter(|call| !has_forms || is_blocking(call.name));
        let names: Vec<_> = shown.map(|call| format!("`{}`", call.name.trim_start_matches("MPI_"))).collect();
        let [four, five] = served_by.map(|by| SERVED_BY.iter().find(|(known, _)| *known == by).unwrap().1);
        if !names.is_empty() {
            let forms = if has_forms { FORMS } else { "" };
            text +=
                &format!("| {}{forms} | {four} | {} |\n", names.join(" "), if four == five { "same" } else { five });
        }
    }
    text
}

fn is_blocking(name: &str) -> bool {
    !name.starts_with("MPI_I") && !name.ends_with("_init")
}

#[test]
fn the_documentation_shows_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/open-mpi.md");
    let page = std::fs::read_to_string(page).expect("the documentation is part of the checkout");
    let section = section();
    assert!(page.contains(&section), "docs/open-mpi.md does not have this:\n{section}");
}

/// The rows of a run.
struct Walked {
    passed: BTreeSet<String>,
    /// Those in which Open MPI's own modules worked on host copies, for a predefined type and operation.
    staged: BTreeSet<String>,
}

/// Runs `calls` with a driver.
fn walk(command: &mut Command, folder: &str, rows: &[String]) -> Walked {
    // Several runs at the same time write files, so each needs its own folder.
    let folder = support::scratch().join(format!("calls-{folder}"));
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written");
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).env("CALLS_FOLDER", folder).args(rows);
    // Thousands of calls, each of them several times.
    let run = support::finish_within(command, Duration::from_secs(900)).assert_success();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    let named = |what: &str| run.stdout.lines().filter_map(|line| line.strip_prefix(what)).map(str::to_owned).collect();
    Walked { passed: named("ok "), staged: named("staged ") }
}

/// Rows that are not in the table.
const READ_PAST_THE_END: &str = "MPI_File_read_at:short";
const SUPPORT: [&str; 2] = ["MPIX_Query_cuda_support", "MPIX_Query_rocm_support"];

/// The rows that ask whether device memory may be passed. Open MPI has the second one since 5.0.
fn queries() -> &'static [&'static str] {
    if support::major_version() >= 5 { &SUPPORT } else { &SUPPORT[..1] }
}

/// Lists the calls of the table that did not run.
fn idle<'t>(table: &'t [Call], rows: &BTreeSet<String>) -> Vec<&'t str> {
    let ran = |name: &str| rows.contains(name) || rows.contains(&name.replace("_end", "_begin"));
    let served = table.iter().filter(|call| call.served_here().is_some_and(|by| by != "none"));
    served.map(|call| call.name).filter(|name| !ran(name)).collect()
}

fn every_row_works(ranks: u32) {
    let rows = walk(support::mpirun(ranks).arg(support::program("calls")), &ranks.to_string(), &[]).passed;
    let table = table();
    let idle = idle(&table, &rows);
    assert!(idle.is_empty(), "in the table, but not run: {idle:?}");
    for &further in queries().iter().chain([&READ_PAST_THE_END]) {
        assert!(rows.contains(further), "{further} did not run");
    }
}

/// Runs the rows of intercepting functions: all of them, or those with these names.
fn intercepted_rows_work(command: &mut Command, folder: &str, only: &[&str]) {
    let mut table: Vec<Call> = table().into_iter().filter(Call::is_intercepted).collect();
    table.retain(|call| only.is_empty() || only.contains(&call.name));
    let mut names: Vec<String> = table.iter().map(|call| call.name.to_owned()).collect();
    names.extend(queries().iter().map(|&name| name.to_owned()));
    let rows = walk(command, folder, &names).passed;
    let idle = idle(&table, &rows);
    assert!(idle.is_empty() && queries().iter().all(|&name| rows.contains(name)), "not run: {idle:?}");
}

/// A process without `mpirun`, in which nothing can be preloaded.
#[test]
fn intercepted_rows_work_without_mpirun() {
    let mut program = support::singleton(&support::program("calls"));
    intercepted_rows_work(program.env("OMPI_MCA_pml", "cableway"), "singleton", &[]);
}

#[test]
fn intercepted_rows_work_with_the_preload_library() {
    let mut command = support::mpirun(2);
    command.args(["--mca", "pml_cableway_intercept", "no"]);
    command.args(["-x", &format!("LD_PRELOAD={}", support::preloaded().display())]);
    intercepted_rows_work(command.arg(support::program("calls")), "preloaded", &[]);
}

#[test]
fn intercepted_rows_work_under_slurm() {
    let slurm = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/slurm/run");
    let mut command = support::singleton(&slurm);
    command.env("OMPI_MCA_pml", "cableway");
    command.args(["srun", "--mpi=pmix", "-n", "2", "--overcommit"]).arg(support::program("calls"));
    let began = support::finish(Command::new(&slurm).arg("true"));
    if began.status.code() == Some(77) {
        return support::skip(began.stdout.lines().next_back().unwrap_or("no reason was given"));
    }
    intercepted_rows_work(&mut command, "slurm", &["MPI_Pack", "MPI_Sendrecv_replace", "MPI_File_write"]);
}

#[test]
fn collectives_run_on_the_devices() {
    let table = table();
    let on_device = |call: &&Call| call.served_here().is_some_and(|by| ["coll", "local"].contains(&by));
    let calls: Vec<&Call> = table.iter().filter(on_device).collect();
    assert!(calls.len() >= 64, "three forms of twenty-one operations, and one more: {}", calls.len());
    let names: Vec<String> = calls.iter().map(|call| call.name.to_owned()).collect();
    let mut command = support::mpirun(2);
    // The ranks need not agree first.
    command.args(["--mca", "pml_cableway_coll_performer", "cableway"]);
    let Walked { passed, staged } = walk(command.arg(support::program("calls")), "devices", &names);
    for name in &names {
        assert!(passed.contains(name), "{name} did not run");
        assert!(!staged.contains(name), "{name} made host copies");
    }
    for operation in
        ["Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv"]
    {
        let row = format!("MPI_{operation}:inter");
        assert!(passed.contains(&row) && !staged.contains(&row), "{row} did not run, or made host copies");
    }
    // Otherwise the counter counts nothing.
    assert!(staged.contains("MPI_Allreduce:inter"), "{staged:?}");
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
fn calls_pass_through_without_a_driver() {
    let preload = format!("LD_PRELOAD={}", support::preloaded().display());
    let preloaded: [&[&str]; 2] = [&[], &["-x", &preload]];
    for options in preloaded {
        let mut command = support::mpirun(2);
        support::finish(command.args(options).arg(support::program("ring"))).assert_success();
    }
}

#[test]
fn exceeding_staging_limit_is_an_error() {
    let mut program = support::singleton(&support::program("calls"));
    program.env("CABLEWAY_CUDA_LIBDIR", support::driver()).env("CABLEWAY_STAGING_LIMIT", "4K");
    // Open MPI's modules get copies on the host.
    program.env("OMPI_MCA_pml_cableway_coll_performer", "mpi");
    let run = support::finish(program.arg("MPI_Allreduce"));
    assert!(run.stderr.contains("staging_limit allows 4096 in all"), "{run:?}");
    // Open MPI ends the program, as after any error without a handler. The status must not be a signal.
    assert!(run.status.code().is_some_and(|code| code != 0), "{run:?}");
    assert!(!run.stdout.contains("ok MPI_Allreduce"), "{run:?}");
}
