//! Reports whether Open MPI will use the component, and the remedy if not.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cableway::{Devices, DriverFacts, Parameters};

use super::applications;
use super::component::{Component, PRELOAD, all_names};
use super::host::OpenMpi;
use super::place::Place;
use super::selection::Selection;

/// One line of the report.
struct Finding {
    good: bool,
    about: &'static str,
    text: String,
    /// The remedy; empty if nothing needs to be done.
    remedy: String,
}

impl Finding {
    fn good(about: &'static str, text: impl Into<String>) -> Self {
        Finding { good: true, about, text: text.into(), remedy: String::new() }
    }

    fn bad(about: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { good: false, about, text: text.into(), remedy: remedy.into() }
    }
}

/// Prints the report. Returns true if everything is right.
pub(super) fn print(open_mpi: &OpenMpi, place: &Place) -> bool {
    let (listed, complaints) = open_mpi.framework("pml");
    let findings = [
        version(open_mpi),
        installed(open_mpi, place),
        loadable(&listed, &complaints),
        selected(&listed, place),
        driver(),
        preload(place),
        headers(place),
    ];
    let mut text = String::new();
    for finding in &findings {
        let mark = if finding.good { "ok" } else { "NO" };
        let _ = writeln!(text, "{mark}  {:<10} {}", finding.about, finding.text);
        if !finding.remedy.is_empty() {
            let _ = writeln!(text, "    {:<10} -> {}", "", finding.remedy);
        }
    }
    text.push('\n');
    text.push_str(&applications::table());
    print!("{text}");
    findings.iter().all(|finding| finding.good)
}

fn version(open_mpi: &OpenMpi) -> Finding {
    let text = format!("{} ({})", open_mpi.version, open_mpi.ompi_info.display());
    match (open_mpi.version.major, open_mpi.version.minor) {
        (4, 1) | (5, 0) => Finding::good("Open MPI", text),
        _ => Finding::bad("Open MPI", text, "the component is for Open MPI 4.1 and 5.0; name one with --prefix"),
    }
}

fn installed(open_mpi: &OpenMpi, place: &Place) -> Finding {
    let about = "component";
    let component = match Component::read(&place.object()) {
        Ok(component) => component,
        Err(error) => return Finding::bad(about, error, "cableway ompi install"),
    };
    let text = format!("{}, for Open MPI {}", place.object().display(), component.built_for);
    if !component.built_for.runs_in(open_mpi.version) {
        let text = format!("{text}, but this one is {}", open_mpi.version);
        return Finding::bad(about, text, "cableway ompi install, with a component for this version");
    }
    let leads_there =
        |name: &String| fs::canonicalize(place.components.join(name)).ok() == fs::canonicalize(place.object()).ok();
    match component.names().find(|name| !leads_there(name)) {
        None => Finding::good(about, text),
        Some(name) => {
            let text =
                format!("{} does not lead to {}", place.components.join(name).display(), place.object().display());
            Finding::bad(about, text, "cableway ompi install")
        }
    }
}

/// Returns whether `ompi_info`, which loads components like programs, lists it.
fn loadable(listed: &str, complaints: &str) -> Finding {
    let about = "loadable";
    if lists_component(listed) {
        return Finding::good(about, "ompi_info lists it");
    }
    match why_refused(complaints) {
        Some(complaint) => Finding::bad(about, complaint, "a component built for this Open MPI; see above"),
        None => Finding::bad(
            about,
            "ompi_info does not list it",
            "cableway ompi install; an Open MPI that was built without dlopen loads no component from outside",
        ),
    }
}

fn lists_component(listed: &str) -> bool {
    listed.lines().any(|line| line.starts_with("mca:pml:cableway:version"))
}

/// Returns the loader's error about a component's file, or, if it was loaded, the component's message about this Open
/// MPI.
fn why_refused(complaints: &str) -> Option<&str> {
    let of_loader = |name: &String| {
        let unable = format!("unable to open {}: ", name.trim_end_matches(".so"));
        complaints.lines().find_map(|line| Some(line.split_once(&unable)?.1.trim().trim_end_matches(" (ignored)")))
    };
    let of_component = || complaints.lines().find_map(|line| Some(line.split_once("] cableway: ")?.1.trim()));
    all_names().iter().find_map(of_loader).or_else(of_component)
}

fn selected(listed: &str, place: &Place) -> Finding {
    let about = "selected";
    let selection = Selection::read(listed);
    if !lists_component(listed) {
        Finding::bad(about, "Open MPI does not find it", "cableway ompi install")
    } else if selection.leaves_a_choice() {
        Finding::good(about, "by its priority; if it cannot run, Open MPI uses another pml")
    } else if selection.requires_the_component() {
        Finding::good(about, format!("{selection}; if it cannot run, Open MPI ends the job"))
    } else if selection.is_from_environment() {
        Finding::bad(about, selection.to_string(), "unset OMPI_MCA_pml")
    } else {
        let remedy = format!("cableway ompi install, or the line `pml = cableway` in {}", place.settings.display());
        Finding::bad(about, selection.to_string(), remedy)
    }
}

fn driver() -> Finding {
    let about = "driver";
    let parameters = Parameters::from_environment().unwrap_or_default();
    let devices = Devices::open(&parameters);
    match devices.initialise().and_then(|()| devices.facts()) {
        Ok(facts) => {
            let described = |driver: &DriverFacts| {
                let DriverFacts { vendor, version, path, simulated, .. } = driver;
                let simulated = if *simulated { ", simulated" } else { "" };
                let count = facts.devices.iter().filter(|device| device.vendor == *vendor).count();
                format!("{} {version}, {count} {vendor} device(s), {}{simulated}", vendor.interface(), path.display())
            };
            let all: Vec<String> = facts.drivers.iter().map(described).collect();
            Finding::good(about, all.join("; "))
        }
        Err(error) => Finding::bad(
            about,
            error.to_string(),
            "install the driver of NVIDIA's or AMD's devices, or name the folder of libcuda.so.1 in CABLEWAY_CUDA_LIBDIR \
             or that of libamdhip64.so in CABLEWAY_HIP_LIBDIR; without one, programs that use no device run all the same",
        ),
    }
}

/// Never a fault, because few programs need it.
fn preload(place: &Place) -> Finding {
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    let ours = preloaded.split([':', ' ']).find(|name| Path::new(name).file_name().is_some_and(|name| name == PRELOAD));
    Finding::good(
        "preload",
        match ours {
            Some(path) => format!("LD_PRELOAD={path} is set here"),
            None => format!("not set here; {}", place.preload_in_words()),
        },
    )
}

fn headers(place: &Place) -> Finding {
    if place.headers().join("mpi-ext.h").is_file() {
        let text =
            format!("-I{} has MPIX_CUDA_AWARE_SUPPORT and MPIX_ROCM_AWARE_SUPPORT say 1", place.headers().display());
        Finding::good("headers", text)
    } else {
        Finding::bad("headers", "there is no corrected mpi-ext.h", "cableway ompi install")
    }
}
