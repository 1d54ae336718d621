//! Finds which C files use which: functions and variables that one defines and the other names, also by a macro or an
//! inline function of a header. What headers declare does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::modules::Files;

/// Reads all C files and headers below a folder.
pub(crate) fn read(folder: &Path) -> Files {
    let mut paths = Vec::new();
    list(folder, &mut paths);
    paths.sort();
    let read = |path: &PathBuf| Text::new(&std::fs::read_to_string(path).unwrap());
    let is_header = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "h");
    let (headers, sources): (Vec<_>, Vec<_>) = paths.iter().partition(is_header);
    // By the names of macros and inline functions: what they name.
    let mut expansions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for header in &headers {
        let Text { code, macros } = read(header);
        let inline = declarations(&code).filter_map(inline);
        for (name, body) in macros.into_iter().chain(inline) {
            expansions.entry(name).or_default().extend(body);
        }
    }
    let texts: Vec<Text> = sources.iter().map(|path| read(path)).collect();
    let mut owners: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (file, text) in texts.iter().enumerate() {
        for name in declarations(&text.code).filter_map(defined) {
            owners.entry(name).or_default().insert(file);
        }
    }
    let uses = |(file, text): (usize, &Text)| {
        let used = text.names(&expansions);
        let used = used.iter().filter_map(|name| owners.get(name)).filter(|owners| !owners.contains(&file));
        used.flatten().copied().collect()
    };
    let names = sources.iter().map(|path| path.strip_prefix(folder).unwrap().to_string_lossy().into_owned());
    Files { names: names.collect(), uses: texts.iter().enumerate().map(uses).collect() }
}

fn list(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "c" || extension == "h") {
            paths.push(path);
        }
    }
}

/// A file without comments and what stands in quotes.
struct Text {
    code: String,
    /// The macros that it defines, and what their bodies name.
    macros: Vec<(String, BTreeSet<String>)>,
}

impl Text {
    fn new(text: &str) -> Text {
        let mut left = String::new();
        let mut rest = text;
        while let Some((before, comment)) = rest.split_once("/*") {
            left += before;
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        }
        left += rest;
        let left = left.replace("\\\n", " ");
        let unquoted = |line: &str| line.split('"').step_by(2).collect::<String>();
        let (directives, code): (Vec<&str>, Vec<&str>) =
            left.lines().partition(|line| line.trim_start().starts_with('#'));
        let defined = directives.iter().filter_map(|line| line.trim_start().strip_prefix("#define "));
        let macros = defined.map(|line| {
            let line = unquoted(line);
            let mut words = identifiers(&line).map(str::to_owned);
            (words.next().unwrap_or_default(), words.collect())
        });
        let code = code.into_iter().map(unquoted).collect::<Vec<_>>().join("\n");
        Text { code, macros: macros.collect() }
    }

    /// Returns all names in it, and those behind the macros and inline functions that it names.
    fn names(&self, expansions: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
        let bodies = self.macros.iter().flat_map(|(_, body)| body.iter().cloned());
        let mut open: Vec<String> = words(&self.code).into_iter().chain(bodies).collect();
        let mut found = BTreeSet::new();
        while let Some(name) = open.pop() {
            open.extend(expansions.get(&name).into_iter().flatten().filter(|&name| !found.contains(name)).cloned());
            found.insert(name);
        }
        found
    }
}

/// Returns the names in a text. `OBJ_NEW(x)` and `OBJ_CLASS(x)` of Open MPI name the class of `x`.
fn words(text: &str) -> BTreeSet<String> {
    let classes = ["OBJ_NEW(", "OBJ_CLASS("].into_iter().flat_map(|call| {
        let calls = text.split(call).skip(1);
        calls.filter_map(|rest| Some(class_of(identifiers(rest).next()?)))
    });
    identifiers(text).map(str::to_owned).chain(classes).collect()
}

fn class_of(name: &str) -> String {
    format!("{name}_class")
}

/// Returns what stands outside of functions, one declaration at a time.
fn declarations(text: &str) -> impl Iterator<Item = &str> {
    let (mut found, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        depth += i32::from(character == '{') - i32::from(character == '}');
        let declaration = &text[begin..=at];
        // Types and initial values end with a semicolon, functions with their body.
        let is_function = declaration.split('{').next().is_some_and(|head| head.contains('(') && !head.contains('='));
        if depth == 0 && (character == ';' || (character == '}' && is_function)) {
            found.push(declaration);
            begin = at + 1;
        }
    }
    found.into_iter()
}

/// Returns a declaration without calls of macros before it, which need no semicolon.
fn bare(declaration: &str) -> &str {
    let trimmed = declaration.trim_start();
    let name = identifiers(trimmed).next().unwrap_or_default();
    let is_macro = !name.is_empty() && !name.contains(|character: char| character.is_ascii_lowercase());
    let after = trimmed.strip_prefix(name).filter(|after| is_macro && after.starts_with('('));
    let Some(after) = after else { return trimmed };
    let mut depth = 0;
    let end = after.char_indices().find(|&(_, character)| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        depth == 0
    });
    match end.map(|(at, _)| after[at + 1..].trim_start()) {
        Some(rest) if !rest.is_empty() && rest != ";" => bare(rest),
        _ => trimmed,
    }
}

/// Returns the name that a declaration outside of functions defines for other files.
fn defined(declaration: &str) -> Option<String> {
    let declaration = bare(declaration);
    if let Some(instance) = declaration.strip_prefix("OBJ_CLASS_INSTANCE(") {
        return identifiers(instance).next().map(class_of);
    }
    let head = &declaration[..declaration.find(['{', '=', ';'])?];
    let first = identifiers(head).next()?;
    let is_macro = !first.contains(|character: char| character.is_ascii_lowercase());
    let has_value = declaration[head.len()..].starts_with('=');
    let is_type = matches!(first, "enum" | "struct") && !head.contains(['(', '*', '[']) && !has_value;
    if is_macro || is_type || matches!(first, "static" | "extern" | "typedef") {
        return None;
    }
    let name = match head.split_once('(') {
        // A declaration.
        Some(_) if !declaration.contains('{') => None,
        Some((before, _)) => identifiers(before).last(),
        None => identifiers(head.split('[').next()?).last(),
    };
    name.map(str::to_owned)
}

/// Returns the name of an inline function, and what it names.
fn inline(declaration: &str) -> Option<(String, BTreeSet<String>)> {
    let (head, body) = bare(declaration).split_once('{')?;
    let name = head.strip_prefix("static inline ")?.split('(').next()?;
    Some((identifiers(name).last()?.to_owned(), words(body)))
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_').filter(|word| !word.is_empty())
}

#[test]
fn definitions_for_other_files_are_found() {
    let Text { code, macros } = Text::new(
        "/* int no; */\n#define MACRO(x) \\\n  int inner(x)\nint one(void);\nstatic int no(void) { return two; }\n\
         int two[3] = {1, 2};\nstruct three *three(int a)\n{\n    call(\"int no\");\n}\nCALL(no);\nbool four;\n\
         EXPORT(no)\nstatic int no(void) {}\nEXPORT(a, (b))\nint five(void) { if (x) { y(); } }\nstruct no { int a; };\nenum { no = 1 };\n\
         extern int no;\nstatic struct no { int a; } *no;\nOBJ_CLASS_INSTANCE(six, parent, NULL, NULL);\n\
         static inline int seven(void) { return OBJ_NEW(eight)->nine; }\nconst struct table ten = {.call = no};",
    );
    let found: Vec<_> = declarations(&code).filter_map(defined).collect();
    assert_eq!(found, ["two", "three", "four", "five", "six_class", "ten"]);
    let names: Vec<_> = macros.iter().map(|(name, body)| (&**name, body.contains("inner"))).collect();
    assert_eq!(names, [("MACRO", true)]);
    let (name, body) = declarations(&code).find_map(inline).unwrap();
    assert!(name == "seven" && body.contains("eight_class") && body.contains("nine"), "{name}: {body:?}");
}

#[test]
fn uses_behind_macros_and_inline_functions_are_found() {
    let expansions = BTreeMap::from([("OUTER".to_owned(), words("inner(x)")), ("inner".to_owned(), words("deep++"))]);
    let names = Text::new("static void f(void) { OUTER(1); }").names(&expansions);
    assert!(["OUTER", "inner", "deep"].iter().all(|&name| names.contains(name)), "{names:?}");
}
