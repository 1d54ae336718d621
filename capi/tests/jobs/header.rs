//! The header by itself, and what the library exports.

use std::collections::BTreeSet;
use std::process::Command;

use crate::support::{C, CPP, Language, Test, file, has, library_folder, skip};

pub(crate) const TESTS: &[Test] = &[
    ("the_header_compiles_alone", the_header_compiles_alone),
    ("only_the_functions_of_the_header_are_exported", only_the_functions_of_the_header_are_exported),
    ("the_library_has_its_name", the_library_has_its_name),
];

/// The header, and its parts by themselves.
const HEADERS: [&str; 5] = [
    "include/cableway.h",
    "include/cableway_active.h",
    "include/cableway_collective.h",
    "include/cableway_one_sided.h",
    "include/cableway_stream.h",
];

/// Every standard that the header is for, without any other header before it.
fn the_header_compiles_alone() {
    let in_c = ["-std=c99", "-std=c11", "-std=gnu17"].map(|standard| Language { standard, ..C });
    let in_cpp = ["-std=c++11", "-std=c++17", "-std=c++20"].map(|standard| Language { standard, ..CPP });
    for language in in_c.into_iter().chain(in_cpp) {
        let Some(mut compile) = language.compile() else { continue };
        let kind = if language.compiler == "cc" { "c" } else { "c++" };
        compile.args(["-fsyntax-only", "-x", kind]);
        for header in HEADERS {
            compile.arg(file(header));
        }
        let output = compile.output().expect("the compiler is there");
        assert!(output.status.success(), "{compile:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn said(command: &str, arguments: &[&str]) -> Option<String> {
    if !has(command) {
        skip(&format!("there is no {command} to look into the library"));
        return None;
    }
    let library = library_folder().join("libcableway.so");
    let output = Command::new(command).args(arguments).arg(library).output().expect("the command is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the functions that the header declares: words with the prefix before a parenthesis, outside of comments.
fn declared() -> BTreeSet<String> {
    let text = |header| std::fs::read_to_string(file(header)).expect("the header is there");
    let header = HEADERS.map(text).concat();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let code = header.lines().filter(|line| !line.starts_with([' ', '/', '#']));
    let calls = code.filter_map(|line| line.split_once('(').map(|(before, _)| before));
    let names = calls.filter_map(|before| before.rsplit(|c| !is_part(c)).next());
    names.filter(|name| name.starts_with("cableway_")).map(str::to_owned).collect()
}

fn only_the_functions_of_the_header_are_exported() {
    let Some(symbols) = said("nm", &["-D", "--defined-only"]) else { return };
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect();
    let declared = declared();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(exported, declared);
}

fn the_library_has_its_name() {
    let Some(dynamic) = said("readelf", &["-d"]) else { return };
    assert!(dynamic.contains("[libcableway.so.0]"), "{dynamic}");
    for needed in ["libcuda", "libamdhip64", "libibverbs", "libpmix", "libmpi"] {
        assert!(!dynamic.contains(needed), "the library needs {needed}:\n{dynamic}");
    }
}
