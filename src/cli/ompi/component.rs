//! The component's file: its path, and the Open MPI that it was built for.

use std::fs;
use std::path::{Path, PathBuf};

use super::host::Version;

/// The preload library, for calls that the component cannot redirect. It lies beside the component's file, if it exists.
pub(super) const PRELOAD: &str = "libcableway_mpi.so";

/// The frameworks that have a component in some version of Open MPI.
const FRAMEWORKS: [&str; 4] = ["pml", "coll", "osc", "accelerator"];

/// Precedes the version in the file; the shim writes it (`ompi/shim/common/built_for.c`).
const BUILT_FOR: &[u8] = b"cableway component for Open MPI ";

/// The file of a component.
#[derive(Debug)]
pub(super) struct Component {
    pub(super) path: PathBuf,
    pub(super) built_for: Version,
    /// The frameworks for which the file holds a component.
    pub(super) frameworks: Vec<&'static str>,
}

impl Component {
    /// Reads the version and the frameworks from the file.
    pub(super) fn read(path: &Path) -> Result<Component, String> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let built_for = find(&bytes, BUILT_FOR)
            .map(|at| &bytes[at + BUILT_FOR.len()..])
            .map(|rest| String::from_utf8_lossy(&rest[..rest.len().min(16)]).into_owned())
            .and_then(|text| Version::parse(&text))
            .ok_or_else(|| format!("{} is not a component of cableway", path.display()))?;
        let frameworks = FRAMEWORKS
            .into_iter()
            .filter(|name| find(&bytes, format!("\0mca_{name}_cableway_component\0").as_bytes()).is_some())
            .collect();
        Ok(Component { path: path.to_owned(), built_for, frameworks })
    }

    /// Finds the component for an Open MPI in the folders that packages and builds use.
    pub(super) fn beside_this_executable(version: Version) -> Result<Component, String> {
        let executable = std::env::current_exe().map_err(|error| format!("this executable: {error}"))?;
        let executable = executable.canonicalize().unwrap_or(executable);
        let here = executable.parent().unwrap_or(Path::new("/"));
        Self::among(&[here.to_owned(), here.join("../lib/cableway")], version)
    }

    fn among(folders: &[PathBuf], version: Version) -> Result<Component, String> {
        let mut others = Vec::new();
        for path in folders.iter().flat_map(|folder| candidates(folder)) {
            match Component::read(&path) {
                Ok(component) if component.built_for.runs_in(version) => return Ok(component),
                Ok(component) => others.push(format!("{} is for {}", path.display(), component.built_for)),
                Err(error) => others.push(error),
            }
        }
        let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        Err(format!(
            "there is no component for Open MPI {version} in {}{}; build one in a checkout with that Open MPI's mpicc: \
             cargo build --release -p cableway-ompi",
            folders.join(" or "),
            if others.is_empty() { String::new() } else { format!(" ({})", others.join("; ")) }
        ))
    }

    /// Returns the names under which Open MPI looks for the component.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.frameworks.iter().map(|framework| link_name(framework))
    }
}

fn link_name(framework: &str) -> String {
    format!("mca_{framework}_cableway.so")
}

/// Returns all names that any version has used, to remove them.
pub(super) fn all_names() -> [String; 4] {
    FRAMEWORKS.map(link_name)
}

fn candidates(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libcableway_ompi") && name.ends_with(".so")
        })
        .collect();
    found.sort();
    found
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("cableway-component-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_says_what_it_is_for() {
        let folder = folder("read");
        let file = folder.join("libcableway_ompi.so");
        fs::write(&file, b"..\0mca_pml_cableway_component\0..cableway component for Open MPI 5.0.7\0").unwrap();
        let component = Component::read(&file).unwrap();
        assert_eq!((component.built_for.to_string(), component.frameworks.as_slice()), ("5.0.7".into(), &["pml"][..]));
        fs::write(&file, b"something else").unwrap();
        assert!(Component::read(&file).unwrap_err().contains("not a component of cableway"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_one_for_the_version_is_taken() {
        let folder = folder("among");
        for version in ["4.1.4", "5.0.7"] {
            let text = format!("\0mca_pml_cableway_component\0cableway component for Open MPI {version}\0");
            fs::write(folder.join(format!("libcableway_ompi-{version}.so")), text).unwrap();
        }
        let among = |text| Component::among(std::slice::from_ref(&folder), Version::parse(text).unwrap());
        assert_eq!(among("5.0.2").unwrap().built_for.to_string(), "5.0.7");
        assert_eq!(among("4.1.6").unwrap().built_for.to_string(), "4.1.4");
        let error = among("3.1.0").unwrap_err();
        assert!(error.contains("is for 4.1.4") && error.contains("cargo build"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
