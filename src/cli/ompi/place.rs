//! The folders of an installation.

use std::path::PathBuf;

use super::component::PRELOAD;
use super::host::OpenMpi;

/// The folders of an installation for one user, or for all users of one Open MPI.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder that Open MPI searches for components. It gets links.
    pub(super) components: PathBuf,
    /// The folder that the links lead to. It gets the object file, the libraries and the headers.
    pub(super) store: PathBuf,
    /// The parameter file of Open MPI.
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

    /// The folder of an `mpi-ext.h` that reports CUDA support.
    pub(super) fn headers(&self) -> PathBuf {
        self.store.join("include")
    }

    /// The preload library. It exists only if it was built before the installation.
    pub(super) fn preload(&self) -> PathBuf {
        self.store.join(PRELOAD)
    }

    /// Describes the purpose of the preload library, and how a job uses it.
    pub(super) fn preload_in_words(&self) -> String {
        let what = "the component redirects calls such as MPI_Pack itself, but those of functions that a program looks \
                    up before MPI_Init";
        if self.preload().is_file() {
            format!("{what}: for these, mpirun -x LD_PRELOAD={} (or export LD_PRELOAD)", self.preload().display())
        } else {
            format!(
                "{what}: for these, {PRELOAD} is not installed; this builds it, for the next install: cargo build \
                 --release -p cableway-ompi-preload"
            )
        }
    }
}
