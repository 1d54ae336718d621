//! Tests of the documentation: links have targets, and documented parameters exist.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use cableway::Parameters;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the pages by their paths from the root, or `None` outside of a checkout. Results are records, so they are
/// excluded.
fn pages() -> Option<Vec<PathBuf>> {
    let output = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().ok()?;
    let listed = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let pages = listed.lines().filter(|path| !path.starts_with("benches/results/")).map(PathBuf::from);
    let pages: Vec<_> = pages.filter(|path| root().join(path).is_file()).collect();
    assert!(pages.iter().any(|page| page == Path::new("README.md")), "{pages:?}");
    Some(pages)
}

fn text(page: &Path) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// Returns the lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns the targets of inline links.
fn links(text: &str) -> Vec<&str> {
    let after = prose(text).flat_map(|line| line.split("](").skip(1));
    after.filter_map(|rest| rest.split(')').next()).collect()
}

/// Returns the anchors of headings, as code hosts name them.
fn anchors(text: &str) -> HashSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(slug).collect()
}

/// Resolves `..` in a path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn links_have_targets() {
    let Some(pages) = pages() else {
        println!("skipped: this is no checkout");
        return;
    };
    let mut dead = Vec::new();
    for page in &pages {
        let text_here = text(page);
        for link in links(&text_here).into_iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => normal(&page.parent().unwrap_or(Path::new("")).join(file)),
            };
            let exists = root().join(&target).exists();
            let has_anchor = || anchor.is_empty() || anchors(&text(&target)).contains(anchor);
            if !exists || !has_anchor() {
                dead.push(format!("{}: ({link})", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// Names that begin like parameters but are not.
const OTHERS: &[&str] = &["device_mpi"];

/// Returns the names on the page that look like parameters: in code, with the prefixes of parameters.
fn named(text: &str) -> HashSet<String> {
    // Keep paths whole, so that the name of a file is not taken for a parameter.
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_/.".contains(c);
    let words = text.split(|c| !is_part(c)).map(|word| {
        let word = word.strip_prefix("CABLEWAY_").map_or_else(|| word.to_owned(), str::to_ascii_lowercase);
        word.strip_prefix("pml_cableway_").map_or(word.clone(), str::to_owned)
    });
    const BEGINNINGS: &[&str] =
        &["btl_self_", "btl_sm_", "btl_tcp_", "btl_openib_", "device_", "pml_", "peer_timeout", "staging_limit"];
    words.filter(|word| BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))).collect()
}

#[test]
fn documented_parameters_exist() {
    let Some(pages) = pages() else {
        println!("skipped: this is no checkout");
        return;
    };
    let known: HashSet<&str> = Parameters::ROWS.iter().map(|row| row.name).chain(OTHERS.iter().copied()).collect();
    let mut unknown = Vec::new();
    for page in &pages {
        // Decisions may mention removed parameters.
        if page.starts_with("docs/decisions") {
            continue;
        }
        let names = named(&text(page));
        let strange = names.iter().filter(|name| !name.ends_with('_') && !known.contains(name.as_str()));
        unknown.extend(strange.map(|name| format!("{}: {name}", page.display())));
    }
    assert!(unknown.is_empty(), "documented parameters that do not exist:\n{}", unknown.join("\n"));
}

#[test]
fn dead_links_and_unknown_parameters_are_found() {
    let text = "# A heading, here\n\n[a](#a-heading-here) [b](b.md#c)\n```\n[no](link)\n```\n`device_gone=1` CABLEWAY_BTL_SM_GONE";
    assert_eq!(links(text), ["#a-heading-here", "b.md#c"]);
    assert!(anchors(text).contains("a-heading-here"));
    assert_eq!(named(text), ["device_gone", "btl_sm_gone"].map(str::to_owned).into());
    assert_eq!(normal(Path::new("docs/decisions/../x/./y")), Path::new("docs/x/y"));
}
