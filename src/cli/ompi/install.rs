//! Laying the component out, and taking it away.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::component::{Component, PRELOAD, all_names};
use super::files::{link, put, remove, trouble};
use super::host::OpenMpi;
use super::place::Place;
use super::selection::Selection;
use super::settings;

/// Answers for the library what is true with the component. The library's own header is the next of its name.
const MPI_EXT: &str = "\
/* Written by `cableway ompi install`: with its component this MPI takes device memory.
 * Put this folder before Open MPI's own (-I), for programs that look at the macro as they are compiled. */
#include_next <mpi-ext.h>
#undef MPIX_CUDA_AWARE_SUPPORT
#define MPIX_CUDA_AWARE_SUPPORT 1
";

/// Lays out the given component, or the one that fits.
pub(super) fn install(open_mpi: &OpenMpi, place: &Place, given: Option<&Path>) -> Result<(), String> {
    let component = match given {
        Some(path) => Component::read(path)?,
        None => Component::beside_this_executable(open_mpi.version)?,
    };
    if !component.built_for.runs_in(open_mpi.version) {
        return Err(format!(
            "{} was built for Open MPI {}, and {} belongs to {}: each needs a component of its own",
            component.path.display(),
            component.built_for,
            open_mpi.ompi_info.display(),
            open_mpi.version
        ));
    }

    // One file, and names that lead to it: of several files, each would carry an engine of its own.
    put(&place.object(), &fs::read(&component.path).map_err(|e| trouble("reading", &component.path, e))?)?;
    let preload = component.path.with_file_name(PRELOAD);
    if let Ok(bytes) = fs::read(&preload) {
        put(&place.preload(), &bytes)?;
    }
    put(&place.headers().join("mpi-ext.h"), MPI_EXT.as_bytes())?;
    fs::create_dir_all(&place.components).map_err(|error| trouble("making", &place.components, error))?;
    for name in component.names() {
        link(&place.components.join(name), &place.object())?;
    }
    let selected = select(open_mpi, place)?;

    println!("installed {} (for Open MPI {})", place.object().display(), component.built_for);
    println!("{selected}");
    println!("{}", place.preload_in_words());
    println!("for programs that look at MPIX_CUDA_AWARE_SUPPORT, compile with -I{}", place.headers().display());
    println!("`cableway ompi status` says whether all is well, `cableway ompi uninstall` undoes this");
    Ok(())
}

/// Takes away what [`install`] laid out, and nothing else.
pub(super) fn uninstall(place: &Place) -> Result<(), String> {
    let mut removed = Vec::new();
    for name in all_names() {
        let path = place.components.join(name);
        // What somebody else put there under our name leads elsewhere.
        if fs::read_link(&path).is_ok_and(|target| place.components.join(target) == place.object()) {
            remove(&path, &mut removed)?;
        }
    }
    for path in [place.object(), place.preload(), place.headers().join("mpi-ext.h")] {
        remove(&path, &mut removed)?;
    }
    match fs::read_to_string(&place.settings) {
        Ok(text) if settings::has_ours(&text) => {
            let rest = settings::without(&text);
            if rest == text {
                return Err(format!(
                    "the line '# cableway: end' is missing in {}: remove what lies after '# cableway: begin' by hand",
                    place.settings.display()
                ));
            }
            if rest.is_empty() {
                remove(&place.settings, &mut removed)?;
            } else {
                put(&place.settings, rest.as_bytes())?;
                println!("removed its lines from {}", place.settings.display());
            }
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(trouble("reading", &place.settings, error)),
    }
    // Folders only if nothing is left in them.
    for folder in [place.headers(), place.store.clone(), place.components.clone()] {
        let _ = fs::remove_dir(folder);
    }
    if removed.is_empty() {
        println!("nothing is installed in {}", place.components.display());
    } else {
        for path in removed {
            println!("removed {}", path.display());
        }
    }
    Ok(())
}

/// Writes our lines into Open MPI's parameters, and says what they do.
///
/// Open MPI prefers the component wherever it finds it, and goes on without it where it cannot run. Only if somebody has
/// named other PMLs, the component must be named, too.
fn select(open_mpi: &OpenMpi, place: &Place) -> Result<String, String> {
    let text = match fs::read_to_string(&place.settings) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(trouble("reading", &place.settings, error)),
    };
    let mut lines = Vec::new();
    if open_mpi.version.major >= 5 {
        // mpirun sets the search path in its ranks' environment to PMIx's own (Debian does), under its short name.
        // The long name, which Open MPI alone knows, wins over that.
        lines.push(format!("opal_mca_base_component_path = {}", place.components.display()));
    }
    let text = write_lines(place, &text, &lines)?;

    let selection = Selection::read(&open_mpi.framework("pml").0);
    if selection.leaves_a_choice() || selection.is_from_environment() {
        return Ok("Open MPI prefers it from now on; a job in which it cannot run goes on under another pml".to_owned());
    }
    lines.insert(0, "pml = cableway".to_owned());
    write_lines(place, &text, &lines)?;
    Ok(format!(
        "selected it in {} in place of {selection}; Open MPI ends a job in which it cannot run",
        place.settings.display()
    ))
}

/// Puts these lines, as the component's, into Open MPI's parameter file, and returns what is in the file then. The text is
/// what is in it now. A file that would be empty is removed.
fn write_lines(place: &Place, text: &str, lines: &[String]) -> Result<String, String> {
    let fresh = settings::with(text, lines);
    match fresh.as_str() {
        same if same == text => {}
        "" => remove(&place.settings, &mut Vec::new())?,
        fresh => put(&place.settings, fresh.as_bytes())?,
    }
    Ok(fresh)
}
