//! The table of MPI's calls (`calls.tsv`): complete, shown in the README, and true on device memory.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

struct Call {
    name: &'static str,
    /// Under 4.1 and under 5.0.
    served_by: [&'static str; 2],
    remark: &'static str,
}

impl Call {
    /// By whom under the Open MPI that runs the tests, if that has the call.
    fn served_here(&self) -> Option<&'static str> {
        Some(self.served_by[usize::from(support::major_version() >= 5)]).filter(|&served_by| served_by != ABSENT)
    }

    /// Whether only with the library preloaded.
    fn needs_preload(&self) -> bool {
        self.served_here() == Some("preload") || self.remark.starts_with("preload:")
    }
}

fn table() -> Vec<Call> {
    let lines = include_str!("../calls.tsv").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.split('\t');
            let name = fields.next().unwrap();
            let served_by = [(); 2].map(|()| fields.next().expect("who serves the call under each version"));
            for by in served_by {
                assert!(SERVED_BY.iter().any(|(known, _)| *known == by), "{name}: {by}");
            }
            Call { name, served_by, remark: fields.next().unwrap_or_default() }
        })
        .collect()
}

const ABSENT: &str = "-";

/// Who serves a call on device memory, and what the README says of it.
const SERVED_BY: &[(&str, &str)] = &[
    ("pml", "messages, straight from and to device memory"),
    ("coll", "through host copies; so are the non-blocking (`MPI_I...`) and persistent (`..._init`) forms"),
    ("osc", "through host copies of this process's buffers"),
    ("accelerator", "by Open MPI itself, through host copies piece by piece"),
    ("preload", "through host copies, with `libcableway_mpi.so` preloaded; without it they crash"),
    ("error", "refused with an error that says why (`MPI_Buffer_attach` with the library preloaded)"),
    ("none", "has no buffer that could be device memory"),
    (ABSENT, "no such call"),
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
    let found = prototypes();
    assert!(found.len() > 150 && found.contains("MPI_Send"), "the headers were not understood: {found:?}");
    let known: BTreeSet<_> =
        table().iter().filter(|call| call.served_here().is_some()).map(|call| call.name.to_owned()).collect();
    let missing: Vec<_> = found.difference(&known).collect();
    assert!(missing.is_empty(), "not in calls.tsv: {missing:?}");
}

/// The table as docs/open-mpi.md has it: calls that are served alike under each version. Of collectives the blocking form
/// stands for all.
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
        let shown = calls.filter(|call| !served_by.contains(&"coll") || is_blocking(call.name));
        let names: Vec<_> = shown.map(|call| format!("`{}`", call.name.trim_start_matches("MPI_"))).collect();
        let [four, five] = served_by.map(|by| SERVED_BY.iter().find(|(known, _)| *known == by).unwrap().1);
        if !names.is_empty() {
            text += &format!("| {} | {four} | {} |\n", names.join(" "), if four == five { "same" } else { five });
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
    let text = std::fs::read_to_string(&page).expect("there is a page about Open MPI");
    let section = section();
    assert!(text.contains(&section), "{} does not have this:\n{section}", page.display());
}

/// Runs the rows that the arguments ask for; their names.
fn walk(ranks: u32, preload: bool, rows: &[String]) -> BTreeSet<String> {
    // Walks run side by side, and each writes files.
    let folder = support::scratch().join(format!("calls-{ranks}-{preload}"));
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written");
    let mut command = support::mpirun(ranks);
    if preload {
        command.args(["-x", &format!("LD_PRELOAD={}", support::preloaded().display())]);
    }
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).env("CALLS_FOLDER", folder);
    command.arg(support::program("calls")).args(rows);
    // Thousands of calls, each several times.
    let run = support::finish_within(&mut command, Duration::from_secs(900)).assert_success();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    run.stdout.lines().filter_map(|line| line.strip_prefix("ok ")).map(str::to_owned).collect()
}

const READ_PAST_THE_END: &str = "MPI_File_read_at:short";

/// Those that need the library with it, and all others without.
fn every_row_works(ranks: u32) {
    let table = table();
    let mut preloaded: Vec<_> =
        table.iter().filter(|call| call.needs_preload()).map(|call| call.name.to_owned()).collect();
    // Reads that are asynchronous never come back from the end of a file under 5.0, not into host memory either, and it
    // reads into device memory by them. Under 4.1 nobody else says that device memory is understood.
    let another = if support::major_version() >= 5 { READ_PAST_THE_END } else { "MPIX_Query_cuda_support" };
    preloaded.push(another.to_owned());
    let others: Vec<_> = preloaded.iter().map(|name| format!("-{name}")).collect();
    let mut rows = walk(ranks, false, &others);
    rows.extend(walk(ranks, true, &preloaded));
    let ran = |name: &str| rows.contains(name) || rows.contains(&name.replace("_end", "_begin"));
    let idle: Vec<_> = table
        .iter()
        .filter(|call| call.served_here().is_some_and(|by| by != "none") && !ran(call.name))
        .map(|call| call.name)
        .collect();
    assert!(idle.is_empty(), "in the table, but not run: {idle:?}");
    for further in [READ_PAST_THE_END, "MPIX_Query_cuda_support"] {
        assert!(rows.contains(further), "{further} did not run");
    }
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

/// A line as `cableway ompi install` writes it.
#[test]
fn open_mpis_parameters_name_the_library_to_preload() {
    if support::major_version() >= 5 {
        return support::skip("Open MPI 5.0 takes no variables from its parameters' files");
    }
    let home = support::scratch().join("home-that-preloads");
    std::fs::create_dir_all(home.join(".openmpi")).expect("cargo's folder for tests can be written");
    let line = format!("-x LD_PRELOAD={}\n", support::preloaded().display());
    std::fs::write(home.join(".openmpi/mca-params.conf"), line).expect("just made");
    let mut command = support::mpirun(1);
    command.env("HOME", home).env("CABLEWAY_CUDA_LIBDIR", support::driver());
    // Beside others on the command line.
    command.args(["-x", "OTHER=1"]).arg(support::program("calls")).arg("MPI_Pack");
    let run = support::finish(&mut command).assert_success();
    assert!(run.stdout.contains("ok MPI_Pack"), "{run:?}");
}

#[test]
fn without_a_driver_everything_passes_through() {
    let mut command = support::mpirun(2);
    command.args(["-x", &format!("LD_PRELOAD={}", support::preloaded().display())]);
    support::finish(command.arg(support::program("ring"))).assert_success();
}

#[test]
fn too_little_host_memory_is_an_error_of_the_call() {
    let mut program = support::singleton(&support::program("calls"));
    program.env("CABLEWAY_CUDA_LIBDIR", support::driver()).env("CABLEWAY_STAGING_LIMIT", "4K");
    let run = support::finish(program.arg("MPI_Allreduce"));
    assert!(run.stderr.contains("staging_limit allows 4096 in all"), "{run:?}");
    // Open MPI ends it, as it does after an error that nobody handles. A signal would not be an exit.
    assert!(run.status.code().is_some_and(|code| code != 0), "{run:?}");
    assert!(!run.stdout.contains("ok MPI_Allreduce"), "{run:?}");
}
