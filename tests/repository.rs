//! What must hold of the repository itself: arrows between crates point one way, and nothing names a machine's paths.

use std::path::Path;
use std::process::Command;

/// Package, and which of ours it may use. Whoever is not named here must be added, with thought.
const ARROWS: &[(&str, &[&str])] = &[
    ("cableway-base", &[]),
    ("cableway-common-cuda", &["cableway-base"]),
    ("cableway-datatype", &["cableway-common-cuda", "cableway-base"]),
    ("cableway-btl", &["cableway-common-cuda", "cableway-base"]),
    ("cableway-btl-self", &["cableway-btl", "cableway-common-cuda", "cableway-base"]),
    ("cableway-btl-sm", &["cableway-btl", "cableway-common-cuda", "cableway-base"]),
    ("cableway-btl-tcp", &["cableway-btl", "cableway-common-cuda", "cableway-base"]),
    ("cableway-btl-openib", &["cableway-btl", "cableway-common-cuda", "cableway-base"]),
    // The contract, never a concrete transport.
    ("cableway-pml", &["cableway-btl", "cableway-datatype", "cableway-common-cuda", "cableway-base"]),
    (
        "cableway",
        &[
            "cableway-base",
            "cableway-common-cuda",
            "cableway-datatype",
            "cableway-btl",
            "cableway-btl-self",
            "cableway-btl-sm",
            "cableway-btl-tcp",
            "cableway-btl-openib",
            "cableway-pml",
            // It starts programs, ours among them, and calls nothing of ours.
            "cableway-compare",
        ],
    ),
    (
        "cableway-ompi",
        &[
            "cableway-base",
            "cableway-common-cuda",
            "cableway-datatype",
            "cableway-btl",
            "cableway-btl-self",
            "cableway-btl-sm",
            "cableway-btl-tcp",
            "cableway-btl-openib",
            "cableway-pml",
        ],
    ),
    // Preloaded into programs: it has to be small, and knows the component by a table of functions alone.
    ("cableway-ompi-preload", &[]),
    ("cableway-compare", &[]),
    // The driver double is no help if it shares code with what it tests.
    ("sim-cuda", &[]),
    ("test-nodes", &["cableway-base", "cableway-common-cuda", "cableway-btl", "sim-cuda"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What a tool prints; none where it is not on this machine, or this is no checkout.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn crates_use_only_what_lies_below_them() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let Some(metadata) = said(&cargo, &["metadata", "--no-deps", "--offline", "--format-version", "1"]) else {
        println!("skipped: no cargo, or no checkout");
        return;
    };
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: Vec<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let (_, allowed) =
            ARROWS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name} has no row"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            // Tests may use what they like of ours.
            let shipped = dependency["kind"].as_str() != Some("dev");
            assert!(!shipped || !ours.contains(&used) || allowed.contains(&used), "{name} uses {used}");
        }
    }
}

#[test]
fn no_committed_file_names_a_path_of_somebodys_machine() {
    let Some(files) = said("git", &["ls-files"]) else {
        println!("skipped: no git, or no checkout");
        return;
    };
    // Put together here, so that this file passes its own test.
    let forbidden = ["home", "root", "work", "Users"].map(|folder| format!("/{folder}/"));
    let mut found = Vec::new();
    for file in files.lines() {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            if forbidden.iter().any(|folder| names(line, folder)) {
                found.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Whether an absolute path that begins so is on the line: relative ones and addresses have something before it.
fn names(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !matches!(before, '.' | '_' | '-' | '}' | '/'))
    })
}

#[test]
fn absolute_paths_are_told_from_relative_ones() {
    let folder = ["", "work", ""].join("/");
    assert!(names(&format!("cd {folder}x"), &folder));
    assert!(!names(&format!("docs{folder}x and ..{folder}x and ${{ROOT}}{folder}x"), &folder));
}
