//! Finds which C files use which: functions and variables that one defines and the other names.
//!
//! Headers do not count: they only declare what a C file defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::modules::Files;

/// Reads all C files below a folder.
pub(crate) fn read(folder: &Path) -> Files {
    let mut paths = Vec::new();
    list(folder, &mut paths);
    paths.sort();
    let texts: Vec<String> = paths.iter().map(|path| code(&std::fs::read_to_string(path).unwrap())).collect();
    let mut owners: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (file, text) in texts.iter().enumerate() {
        for name in definitions(text) {
            owners.entry(name).or_default().insert(file);
        }
    }
    let uses = |(file, text): (usize, &String)| {
        let used = identifiers(text).filter_map(|name| owners.get(name)).filter(|owners| !owners.contains(&file));
        used.flatten().copied().collect()
    };
    let names = paths.iter().map(|path| path.strip_prefix(folder).unwrap().to_string_lossy().into_owned());
    Files { names: names.collect(), uses: texts.iter().enumerate().map(uses).collect() }
}

fn list(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "c") {
            paths.push(path);
        }
    }
}

/// Removes comments, directives of the preprocessor, and what stands in quotes.
fn code(text: &str) -> String {
    let mut left = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        left += before;
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    left += rest;
    let left = left.replace("\\\n", " ");
    let lines = left.lines().filter(|line| !line.trim_start().starts_with('#'));
    let unquoted = |line: &str| line.split('"').step_by(2).collect::<String>();
    lines.map(unquoted).collect::<Vec<_>>().join("\n")
}

/// Returns the names of the functions and variables that are defined for other files.
fn definitions(text: &str) -> Vec<&str> {
    let (mut found, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        depth += i32::from(character == '{') - i32::from(character == '}');
        let is_over = depth == 0 && (character == ';' || character == '}');
        if is_over {
            found.extend(defined(&text[begin..=at]));
            begin = at + 1;
        }
    }
    found
}

/// Returns the name that a declaration outside of functions defines.
fn defined(declaration: &str) -> Option<&str> {
    let head = &declaration[..declaration.find(['{', '=', ';'])?];
    let first = identifiers(head).next()?;
    let is_macro = !first.contains(|character: char| character.is_ascii_lowercase());
    let is_type = matches!(first, "enum" | "struct") && !head.contains(['(', '*', '=']);
    if is_macro || is_type || matches!(first, "static" | "extern" | "typedef") {
        return None;
    }
    match head.split_once('(') {
        // A declaration.
        Some(_) if !declaration.contains('{') => None,
        Some((before, _)) => identifiers(before).last(),
        None => identifiers(head.split('[').next()?).last(),
    }
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_').filter(|word| !word.is_empty())
}

#[test]
fn definitions_for_other_files_are_found() {
    let text = code(
        "/* int no; */\n#define NO(x) \\\n  int no\nint one(void);\nstatic int no(void) { return two; }\nint two[3] = {1, 2};\n\
         struct three *three(int a)\n{\n    call(\"int no\");\n}\nCALL(no);\nbool four;\nEXPORT(no)\nstatic int no(void) {}\nstruct no { int a; };\nextern int no;",
    );
    assert_eq!(definitions(&text), ["two", "three", "four"]);
}
