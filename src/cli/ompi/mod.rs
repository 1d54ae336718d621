//! `cableway ompi`: installs, checks and removes the component for Open MPI.

mod applications;
mod component;
mod extensions;
mod files;
mod host;
mod install;
mod place;
mod selection;
mod settings;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::Failure;
use host::OpenMpi;
use place::Place;

/// Returns the component's file for the Open MPI that is first on `PATH`, or an error that names what is missing.
pub(super) fn component_for_this_machine() -> Result<PathBuf, String> {
    let open_mpi = OpenMpi::find(None)?;
    Ok(component::Component::beside_this_executable(open_mpi.version)?.path)
}

/// Have an unmodified Open MPI send device memory
#[derive(Args)]
pub(super) struct Ompi {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install the component where Open MPI finds and prefers it
    Install {
        #[command(flatten)]
        wanted: Wanted,
        /// The component's file [default: the one beside this executable or in ../lib/cableway]
        #[arg(long, value_name = "FILE")]
        component: Option<PathBuf>,
    },
    /// Check whether Open MPI uses the component, and print what to do if it does not
    Status {
        #[command(flatten)]
        wanted: Wanted,
    },
    /// Remove the files and settings of `install`
    Uninstall {
        #[command(flatten)]
        wanted: Wanted,
    },
}

/// The users to install for.
#[derive(Args)]
struct Wanted {
    /// Install for all users of the Open MPI in this folder (/usr for the distribution's)
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    prefix: Option<PathBuf>,
    /// Install for this user, in ~/.openmpi (the default)
    #[arg(long)]
    user: bool,
}

impl Wanted {
    fn open_mpi(&self) -> Result<OpenMpi, Failure> {
        OpenMpi::find(self.prefix.as_deref()).map_err(|error| Failure::failed(1, error))
    }

    /// Returns the folders of the installation. With a prefix, the Open MPI there names them.
    fn place(&self, open_mpi: Option<&OpenMpi>) -> Result<Place, Failure> {
        match (&self.prefix, open_mpi) {
            (Some(_), Some(open_mpi)) => Ok(Place::of_prefix(open_mpi)),
            (Some(_), None) => Ok(Place::of_prefix(&self.open_mpi()?)),
            (None, _) => Place::of_user().map_err(|error| Failure::failed(1, error)),
        }
    }
}

impl Ompi {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        match self.verb {
            Verb::Install { wanted, component } => {
                let open_mpi = wanted.open_mpi()?;
                let place = wanted.place(Some(&open_mpi))?;
                install::install(&open_mpi, &place, component.as_deref()).map_err(|error| Failure::failed(1, error))?;
                Ok(ExitCode::SUCCESS)
            }
            Verb::Status { wanted } => {
                let open_mpi = wanted.open_mpi()?;
                let place = wanted.place(Some(&open_mpi))?;
                Ok(if status::print(&open_mpi, &place) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            Verb::Uninstall { wanted } => {
                let place = wanted.place(None)?;
                install::uninstall(&place).map_err(|error| Failure::failed(1, error))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
