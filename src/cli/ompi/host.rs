//! The Open MPI of this machine, as its `ompi_info` describes it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An installed Open MPI.
#[derive(Debug)]
pub(super) struct OpenMpi {
    pub(super) ompi_info: PathBuf,
    pub(super) version: Version,
    /// The folder of its own components.
    pub(super) components: PathBuf,
    /// The folder of its settings for all users.
    pub(super) settings: PathBuf,
}

/// A version such as 5.0.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) release: u32,
}

impl Version {
    /// Reads the first three numbers of a text and ignores the rest.
    pub(super) fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Version { major: next()?, minor: next()?, release: next().unwrap_or(0) })
    }

    /// Returns whether a component built for `self` runs in the other version: within 4.1, and within 5.0.
    pub(super) fn runs_in(self, other: Version) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.release)
    }
}

impl OpenMpi {
    /// Finds the Open MPI in a prefix, or the first one on `PATH`.
    pub(super) fn find(prefix: Option<&Path>) -> Result<OpenMpi, String> {
        let ompi_info = match prefix {
            Some(prefix) => prefix.join("bin/ompi_info"),
            None => on_path("ompi_info").ok_or(
                "there is no ompi_info on PATH: install Open MPI (apt-get install openmpi-bin) or name its folder \
                 with --prefix",
            )?,
        };
        let said = run(&ompi_info, &["--parsable", "--version"])?;
        let version = said
            .lines()
            .find_map(|line| line.strip_prefix("ompi:version:full:").or_else(|| line.strip_prefix("Open MPI v")))
            .and_then(Version::parse)
            .ok_or_else(|| format!("{} names no version", ompi_info.display()))?;
        let path = |what: &str| -> Result<PathBuf, String> {
            let said = run(&ompi_info, &["--parsable", "--path", what])?;
            let line = said.lines().find_map(|line| line.strip_prefix(&format!("path:{what}:")));
            line.map(PathBuf::from).ok_or_else(|| format!("{} names no {what}", ompi_info.display()))
        };
        Ok(OpenMpi { components: path("pkglibdir")?, settings: path("sysconfdir")?, ompi_info, version })
    }

    /// Returns the stdout and stderr of `ompi_info` about one framework, with the errors of components it cannot load.
    pub(super) fn framework(&self, name: &str) -> (String, String) {
        let output = Command::new(&self.ompi_info)
            .args(["--parsable", "--level", "9", "--param", name, "all"])
            .env("OMPI_MCA_mca_base_component_show_load_errors", "1")
            .output();
        output.map_or_else(
            |error| (String::new(), error.to_string()),
            |output| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (text(&output.stdout), text(&output.stderr))
            },
        )
    }
}

fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}: {}", program.display(), output.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let version = |text| Version::parse(text).unwrap();
        assert_eq!(version("5.0.7"), Version { major: 5, minor: 0, release: 7 });
        assert_eq!(version("4.1.4rc1"), Version { major: 4, minor: 1, release: 4 });
        assert_eq!(version("5.1"), Version { major: 5, minor: 1, release: 0 });
        assert_eq!(Version::parse("five"), None);
        assert!(version("4.1.4").runs_in(version("4.1.6")));
        assert!(!version("4.1.4").runs_in(version("5.0.7")));
    }

    #[test]
    fn a_folder_without_open_mpi_is_named() {
        let error = OpenMpi::find(Some(Path::new("/nonexistent"))).unwrap_err();
        assert!(error.contains("/nonexistent/bin/ompi_info"), "{error}");
    }
}
