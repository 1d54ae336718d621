//! Where an installation lies.

use std::fs;
use std::path::PathBuf;

use super::component::PRELOAD;
use super::host::{OpenMpi, Version};

/// For one user, or for all users of one Open MPI.
#[derive(Debug)]
pub(super) struct Place {
    /// What Open MPI searches; gets the names of the components.
    pub(super) components: PathBuf,
    /// What they lead to: the one object file, and what comes with it.
    pub(super) store: PathBuf,
    /// Open MPI's parameters.
    pub(super) settings: PathBuf,
}

impl Place {
    pub(super) fn of_user() -> Result<Place, String> {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let home = PathBuf::from(home.ok_or("HOME is not set; name an Open MPI with --prefix")?);
        let own = home.join(".openmpi");
        Ok(Place {
            components: own.join("components"),
            store: own.join("cableway"),
            settings: own.join("mca-params.conf"),
        })
    }

    pub(super) fn of_prefix(open_mpi: &OpenMpi) -> Place {
        Place {
            components: open_mpi.components.clone(),
            store: open_mpi.components.join("cableway"),
            settings: open_mpi.settings.join("openmpi-mca-params.conf"),
        }
    }

    pub(super) fn object(&self) -> PathBuf {
        self.store.join("libcableway_ompi.so")
    }

    /// Holds an `mpi-ext.h` that says what is true with the component.
    pub(super) fn headers(&self) -> PathBuf {
        self.store.join("include")
    }

    /// The library for what no component reaches; there only if there was one to install.
    pub(super) fn preload(&self) -> PathBuf {
        self.store.join(PRELOAD)
    }

    /// A line for Open MPI's parameters by which `mpirun` gives that library to its processes. 4.1 understands such lines,
    /// and `mpirun -x` on the command line wins over them. Its parameter for such variables (`mca_base_env_list`) is left
    /// alone: with it set, `mpirun -x` refuses to run.
    pub(super) fn preload_setting(&self, version: Version) -> Option<String> {
        let preload = self.preload();
        // A list's separators would end the name.
        let plain = !preload.to_string_lossy().contains(|c: char| c.is_whitespace() || c == ';');
        (version.major < 5 && plain && preload.is_file()).then(|| format!("-x LD_PRELOAD={}", preload.display()))
    }

    /// What that library is for, and how a job gets it.
    pub(super) fn preload_in_words(&self, version: Version) -> String {
        let unreached = unreached(version);
        let settings = fs::read_to_string(&self.settings).unwrap_or_default();
        if self.preload_setting(version).is_some_and(|line| settings.lines().any(|present| present == line)) {
            format!(
                "mpirun has its processes preload {}, for {unreached} on device memory, as {} says (processes that \
                 something else starts need LD_PRELOAD in their environment)",
                self.preload().display(),
                self.settings.display()
            )
        } else if self.preload().is_file() {
            format!(
                "for {unreached} on device memory: mpirun -x LD_PRELOAD={} (or export LD_PRELOAD)",
                self.preload().display()
            )
        } else {
            format!(
                "without {PRELOAD}, {unreached} crash on device memory; this builds it, for the next install: \
                 cargo build --release -p cableway-ompi-preload"
            )
        }
    }
}

/// The calls that no component reaches.
fn unreached(version: Version) -> &'static str {
    if version.major < 5 {
        "MPI_File_*, MPI_Pack, MPI_Unpack and MPI_Sendrecv_replace"
    } else {
        "MPI_Pack and MPI_Unpack, and their external forms,"
    }
}
