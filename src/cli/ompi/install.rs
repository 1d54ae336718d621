//! Installs and removes the component.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::component::{Component, PRELOAD, all_names};
use super::extensions;
use super::files::{failure, link, put, remove};
use super::host::OpenMpi;
use super::place::Place;
use super::selection::Selection;
use super::settings;

/// A header that reports support of both vendors' device memory. It includes Open MPI's own header of the same name.
const MPI_EXT: &str = "\
/* Written by `cableway ompi install`: with its component this MPI takes device memory.
 * Put this folder before Open MPI's own (-I), for programs that look at the macros as they are compiled. */
#include_next <mpi-ext.h>
#undef MPIX_CUDA_AWARE_SUPPORT
#define MPIX_CUDA_AWARE_SUPPORT 1
#undef MPIX_ROCM_AWARE_SUPPORT
#define MPIX_ROCM_AWARE_SUPPORT 1
";

/// Installs the given component, or the one built for this Open MPI.
pub(super) fn install(open_mpi: &OpenMpi, place: &Place, given: Option<&Path>) -> Result<(), String> {
    let component = match given {
        Some(path) => Component::read(path)?,
        None => Component::beside_this_executable(open_mpi.version)?,
    };
    if !component.built_for.runs_in(open_mpi.version) {
        return Err(format!(
            "{} was built for Open MPI {}, and {} belongs to {}: install the component built for that version",
            component.path.display(),
            component.built_for,
            open_mpi.ompi_info.display(),
            open_mpi.version
        ));
    }

    // One file, and links to it: several files would each have their own engine.
    put(&place.object(), &fs::read(&component.path).map_err(|e| failure("reading", &component.path, e))?)?;
    let preload = component.path.with_file_name(PRELOAD);
    if let Ok(bytes) = fs::read(&preload) {
        put(&place.preload(), &bytes)?;
    }
    let extensions = extensions::install(place, &component.path)?;
    put(&place.headers().join("mpi-ext.h"), MPI_EXT.as_bytes())?;
    fs::create_dir_all(&place.components).map_err(|error| failure("making", &place.components, error))?;
    for name in component.names() {
        link(&place.components.join(name), &place.object())?;
    }
    let selected = select(open_mpi, place)?;

    println!("installed {} (for Open MPI {})", place.object().display(), component.built_for);
    println!("{selected}");
    println!("{}", place.preload_in_words());
    extensions.iter().for_each(|sentence| println!("{sentence}"));
    println!(
        "compile programs that read MPIX_CUDA_AWARE_SUPPORT or MPIX_ROCM_AWARE_SUPPORT with -I{}",
        place.headers().display()
    );
    println!("`cableway ompi status` checks the installation, `cableway ompi uninstall` removes it");
    Ok(())
}

/// Removes the files that [`install`] created, and nothing else.
pub(super) fn uninstall(place: &Place) -> Result<(), String> {
    let mut removed = Vec::new();
    for name in all_names() {
        let path = place.components.join(name);
        // Keep files of other origin under these names: they are not links to the component.
        if fs::read_link(&path).is_ok_and(|target| place.components.join(target) == place.object()) {
            remove(&path, &mut removed)?;
        }
    }
    for path in
        [place.object(), place.preload(), place.headers().join("mpi-ext.h")].into_iter().chain(extensions::files(place))
    {
        remove(&path, &mut removed)?;
    }
    match fs::read_to_string(&place.settings) {
        Ok(text) if settings::has_ours(&text) => {
            let rest = settings::without(&text);
            if rest == text {
                return Err(format!(
                    "the line '# cableway: end' is missing in {}: remove the lines after '# cableway: begin' by hand",
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
        Err(error) => return Err(failure("reading", &place.settings, error)),
    }
    // Remove folders only if they are empty.
    let others = [place.headers(), place.store.clone(), place.components.clone()];
    for folder in extensions::folders(place).into_iter().chain(others) {
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

/// Adds Cableway's lines to Open MPI's parameter file, and returns a sentence about their effect.
///
/// Open MPI prefers the component to other PMLs, and uses another one if it cannot run. If a setting names other PMLs,
/// the component must be named, too.
fn select(open_mpi: &OpenMpi, place: &Place) -> Result<String, String> {
    let text = match fs::read_to_string(&place.settings) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failure("reading", &place.settings, error)),
    };
    let mut lines = Vec::new();
    if open_mpi.version.major >= 5 {
        // mpirun of some distributions (Debian) sets the short name of the search path in its ranks' environment to
        // PMIx's own. The long name belongs to Open MPI alone and overrides that.
        lines.push(format!("opal_mca_base_component_path = {}", place.components.display()));
    }
    let text = write_lines(place, &text, &lines)?;

    let selection = Selection::read(&open_mpi.framework("pml").0);
    if selection.leaves_a_choice() || selection.is_from_environment() {
        return Ok("Open MPI prefers it from now on; jobs in which it cannot run use another pml".to_owned());
    }
    lines.insert(0, "pml = cableway".to_owned());
    write_lines(place, &text, &lines)?;
    Ok(format!(
        "selected it in {} in place of {selection}; Open MPI aborts jobs in which it cannot run",
        place.settings.display()
    ))
}

/// Writes these lines as the component's section to Open MPI's parameter file and returns the new content. `text` is the
/// present content. Removes the file if the new content is empty.
fn write_lines(place: &Place, text: &str, lines: &[String]) -> Result<String, String> {
    let fresh = settings::with(text, lines);
    match fresh.as_str() {
        same if same == text => {}
        "" => remove(&place.settings, &mut Vec::new())?,
        fresh => put(&place.settings, fresh.as_bytes())?,
    }
    Ok(fresh)
}
