//! Rules of the repository: crates, and files of a crate, use each other in one direction only, and no file contains
//! the path of a user's machine.

#[path = "repository/lengths.rs"]
mod lengths;
#[path = "repository/modules.rs"]
mod modules;
#[path = "repository/sources.rs"]
mod sources;

use std::path::Path;
use std::process::Command;

use modules::Files;

/// Each package, and the packages of this workspace that it may use. Add new packages here.
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
    ("cableway-coll", &["cableway-pml", "cableway-datatype", "cableway-common-cuda", "cableway-base"]),
    // Opens the transports for both hosts of the engine.
    (
        "cableway-transports",
        &[
            "cableway-btl-self",
            "cableway-btl-sm",
            "cableway-btl-tcp",
            "cableway-btl-openib",
            "cableway-btl",
            "cableway-common-cuda",
            "cableway-base",
        ],
    ),
    (
        "cableway",
        &[
            "cableway-base",
            "cableway-common-cuda",
            "cableway-datatype",
            "cableway-btl",
            // For the verbs section of `cableway info`.
            "cableway-btl-openib",
            "cableway-pml",
            "cableway-coll",
            "cableway-transports",
            // It starts programs, including Cableway's, but uses none of its packages.
            "cableway-compare",
        ],
    ),
    // The library in C: nothing below the Rust library.
    ("cableway-capi", &["cableway"]),
    (
        "cableway-ompi",
        &[
            "cableway-base",
            "cableway-common-cuda",
            "cableway-datatype",
            "cableway-btl",
            "cableway-pml",
            "cableway-coll",
            "cableway-transports",
            "cableway-ompi-intercept",
        ],
    ),
    (
        "cableway-coll-mpich",
        &[
            "cableway-base",
            "cableway-common-cuda",
            "cableway-datatype",
            "cableway-btl",
            "cableway-pml",
            "cableway-coll",
            "cableway-transports",
        ],
    ),
    // It is preloaded into programs, so it must be small. It calls the component through a table of functions only.
    ("cableway-ompi-intercept", &[]),
    ("cableway-ompi-preload", &["cableway-ompi-intercept"]),
    // They find the component in the process, and link nothing of it.
    ("cableway-ompi-find", &[]),
    ("cableway-ompi-mpix", &["cableway-ompi-find"]),
    ("cableway-ompi-mp", &["cableway-ompi-find"]),
    ("cableway-compare", &[]),
    // The simulated driver must not share code with what it tests.
    ("sim-cuda", &[]),
    ("sim-hip", &[]),
    ("test-nodes", &["cableway-base", "cableway-common-cuda", "cableway-btl", "sim-cuda", "sim-hip"]),
];

/// Crates in layers, the lowest first, by their root files. A file uses only files of its own and of lower layers.
const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "common-cuda/src/lib.rs",
        &[
            &[
                "code_objects.rs",
                "copy.rs",
                "costs",
                "direct.rs",
                "error.rs",
                "exported.rs",
                "facts.rs",
                "host_ranges.rs",
                "loader.rs",
                "location.rs",
                "mapping_counts.rs",
                "mapping_gate.rs",
                "memo.rs",
                "one_shot.rs",
                "reduction.rs",
                "settings.rs",
                "strided.rs",
                "turns.rs",
                "word_operation.rs",
            ],
            // The seam, and the vendors below it.
            &["driver"],
            &["cuda", "hip", "double", "double.rs"],
            &["context"],
            &["order.rs"],
            &["memory"],
            &["copier", "cpu_mapping", "kernels"],
            &["copies"],
            &["measure"],
            &["platform"],
            &["devices"],
            &["ipc"],
            &["lib.rs"],
        ],
    ),
    (
        "pml/src/lib.rs",
        &[
            &["refusal.rs", "status.rs", "abort.rs", "error.rs", "buffer.rs", "wire"],
            &["core"],
            &["protocol"],
            &["tag"],
            &["am"],
            &["shapes"],
            &["rma"],
            &["stream"],
            &["osc"],
            &["lib.rs", "fuzzing.rs"],
        ],
    ),
    (
        "coll/src/lib.rs",
        &[
            &["error.rs", "function.rs", "call.rs", "random.rs"],
            &["plan"],
            &["slots.rs"],
            &["costs"],
            &["choice"],
            &["placing.rs", "staged.rs", "by_function.rs", "build", "explain.rs"],
            &["reduce"],
            &["run"],
            &["agreement"],
            &["members"],
            &["lib.rs", "fuzzing.rs"],
        ],
    ),
    (
        "mpich/src/lib.rs",
        &[
            &["boundary.rs", "guard.rs"],
            &["cards.rs"],
            &["modex.rs"],
            &["process.rs"],
            &["types.rs", "groups.rs"],
            &["calls.rs"],
            &["entries.rs"],
            &["lib.rs"],
        ],
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a tool's output, or `None` if the machine lacks it or this is not a checkout.
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
            // Tests may use any package of the workspace.
            let shipped = dependency["kind"].as_str() != Some("dev");
            assert!(!shipped || !ours.contains(&used) || allowed.contains(&used), "{name} uses {used}");
        }
    }
}

#[test]
fn files_of_a_crate_use_each_other_in_one_direction() {
    let Some(targets) = targets() else {
        println!("skipped: no cargo, or no checkout");
        return;
    };
    let (mut wrong, mut pairs) = (Vec::new(), 0);
    for target in &targets {
        let files = Files::read(Path::new(target));
        let target = Path::new(target).strip_prefix(root()).map_or(&**target, |below| below.to_str().unwrap());
        let circles = files.circles();
        pairs += circles.iter().filter(|circle| is_pair(target, circle)).count();
        let circles = circles.into_iter().filter(|circle| !is_pair(target, circle) && !is_module_and_part(circle));
        wrong.extend(circles.map(|circle| format!("{target}: files use each other in a circle: {circle:?}")));
        if let Some((_, layers)) = LAYERS.iter().find(|(known, _)| *known == target) {
            let layer =
                |file: &str| layers.iter().position(|folders| folders.iter().any(|folder| lies_in(file, folder)));
            let missing = files.names.iter().filter(|file| layer(file).is_none());
            wrong.extend(missing.map(|file| format!("{target}: {file} is in no layer")));
            let upwards = files.arrows().filter(|(from, to)| layer(from) < layer(to));
            wrong.extend(upwards.map(|(from, to)| format!("{target}: {from} uses {to}, which is in a layer above")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(pairs, PAIRS.len(), "a pair is no circle any more: take it out of the list");
}

/// Pairs of files whose types need each other.
const PAIRS: &[(&str, [&str; 2])] = &[
    // A caller holds its operations, and an operation posts by its caller.
    ("pml/src/lib.rs", ["rma/caller.rs", "rma/operation.rs"]),
    // An engine holds services, and a service is polled with its engine.
    ("pml/src/lib.rs", ["tag/engine.rs", "tag/services.rs"]),
    // A stream knows what it captures, and a capture the streams that it holds.
    ("tests/sim-cuda/src/lib.rs", ["capture.rs", "stream.rs"]),
];

/// Returns whether two files are one of the pairs above.
fn is_pair(target: &str, circle: &[&str]) -> bool {
    PAIRS.iter().any(|&(root, pair)| root == target && (circle == pair || circle == [pair[1], pair[0]]))
}

/// Returns whether they are a module and one of the files of that module.
fn is_module_and_part(circle: &[&str]) -> bool {
    let &[one, other] = circle else { return false };
    let holds = |file: &str, inner: &str| {
        let folder = file.strip_suffix("/mod.rs").or(file.strip_suffix(".rs"));
        folder.is_some_and(|folder| inner != file && inner.starts_with(&format!("{folder}/")))
    };
    holds(one, other) || holds(other, one)
}

#[test]
fn a_module_and_its_parts_may_use_each_other() {
    for circle in [["a/mod.rs", "a/b.rs"], ["a/b.rs", "a.rs"], ["a/mod.rs", "a/b/mod.rs"]] {
        assert!(is_module_and_part(&circle), "{circle:?}");
    }
    for circle in
        [&["a/b.rs", "a/c.rs"][..], &["a.rs", "ab/c.rs"], &["a/mod.rs", "b/mod.rs"], &["a.rs", "a/b.rs", "a/c.rs"]]
    {
        assert!(!is_module_and_part(circle), "{circle:?}");
    }
}

#[test]
fn c_files_use_each_other_in_one_direction() {
    for (folder, least) in [("ompi/shim", 50), ("mpich/shim", 1)] {
        let files = sources::read(&root().join(folder));
        assert!(files.arrows().count() >= least, "{folder}: the files are read");
        assert_eq!(files.circles(), [] as [Vec<&str>; 0], "{folder}: files use each other in a circle");
    }
}

fn lies_in(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the root files of all libraries and programs.
fn targets() -> Option<Vec<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let metadata = said(&cargo, &["metadata", "--no-deps", "--offline", "--format-version", "1"])?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).ok()?;
    let mut found = Vec::new();
    for package in metadata["packages"].as_array()? {
        for target in package["targets"].as_array()? {
            let kind = target["kind"][0].as_str()?;
            if !matches!(kind, "test" | "example" | "bench" | "custom-build") {
                found.push(target["src_path"].as_str()?.to_owned());
            }
        }
    }
    Some(found)
}

#[test]
fn circles_and_reexports_are_found() {
    let files = Files::read(&root().join("tests/repository/example/lib.rs"));
    assert_eq!(files.circles(), [vec!["a.rs", "b/mod.rs", "b/inner.rs"]]);
    let arrows: Vec<_> = files.arrows().collect();
    assert!(arrows.contains(&("a.rs", "b/inner.rs")), "through a re-export: {arrows:?}");
    assert!(arrows.contains(&("b/mod.rs", "a.rs")), "in a macro: {arrows:?}");
    assert!(!arrows.iter().any(|&(from, _)| from == "lib.rs"), "a re-export is no use: {arrows:?}");
}

#[test]
fn source_files_are_short() {
    let Some(files) = said("git", &["ls-files"]) else {
        println!("skipped: no git, or no checkout");
        return;
    };
    let mut wrong = Vec::new();
    for file in files.lines() {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        if lengths::is_source(file, &text) {
            wrong.extend(lengths::complaint(file, text.lines().count()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_committed_file_contains_a_users_path() {
    let Some(files) = said("git", &["ls-files"]) else {
        println!("skipped: no git, or no checkout");
        return;
    };
    // The text is composed here, so that this file passes its own test.
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

/// Returns whether the line contains an absolute path with this beginning. Relative paths and addresses have other text
/// before it.
fn names(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !matches!(before, '.' | '_' | '-' | '}' | '/'))
    })
}

#[test]
fn absolute_and_relative_paths_are_distinguished() {
    let folder = ["", "work", ""].join("/");
    assert!(names(&format!("cd {folder}x"), &folder));
    assert!(!names(&format!("docs{folder}x and ..{folder}x and ${{ROOT}}{folder}x"), &folder));
}
