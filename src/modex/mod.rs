//! How this process finds the others of its job: through the built-in launcher, through PMIx where another launcher
//! (`mpirun`, `prterun`, `srun`) started it, or not at all because it is alone.

mod builtin;
mod pmix;
mod singleton;
mod support;
pub(crate) mod wire;

use std::sync::Arc;

use cableway_btl::{Modex, ModexError};

use support::modex_error;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartedBy {
    /// `cableway run`, or a [`Launcher`](crate::launcher::Launcher) of a program.
    Cableway,
    /// A launcher that offers PMIx.
    Pmix,
    /// Nobody who knows of jobs: a job of one process.
    Nobody,
}

impl StartedBy {
    /// Reads this process's environment.
    pub fn detect() -> Self {
        if std::env::var_os(builtin::SOCKET_VARIABLE).is_some() {
            StartedBy::Cableway
        } else if ["PMIX_NAMESPACE", "PMIX_RANK"].iter().all(|name| std::env::var_os(name).is_some()) {
            StartedBy::Pmix
        } else {
            StartedBy::Nobody
        }
    }

    /// Joins the job. With a launcher this can be done once in the life of a process.
    ///
    /// # Errors
    /// The launcher cannot be reached, this process has joined before, or `srun` started it with others but offers no
    /// PMIx: each would be a job of its own.
    pub fn join(self) -> Result<Arc<dyn Modex>, ModexError> {
        Ok(match self {
            StartedBy::Cableway => Arc::new(builtin::BuiltIn::join()?),
            StartedBy::Pmix => Arc::new(pmix::Pmix::join()?),
            StartedBy::Nobody => {
                alone()?;
                Arc::new(singleton::Singleton::new()?)
            }
        })
    }
}

/// Whether this process is by itself indeed: Slurm starts tasks without PMIx unless it is told otherwise, and programs
/// would take themselves for as many jobs of one process.
fn alone() -> Result<(), ModexError> {
    const TASKS: &str = "SLURM_STEP_NUM_TASKS";
    match std::env::var(TASKS).ok().and_then(|tasks| tasks.parse::<u32>().ok()) {
        Some(tasks) if tasks > 1 => Err(modex_error(
            format!("joining the job of the {tasks} tasks that srun started"),
            format!("they have no PMIx to find each other by; use `srun --mpi=pmix`, or unset {TASKS} for jobs of one"),
        )),
        _ => Ok(()),
    }
}

pub(crate) use support::{random_job_id, random_secret};

pub(crate) use builtin::{LOCAL_RANK_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE, SOCKET_VARIABLE, announce};

/// The PMIx library that a job of another launcher would be joined through; none if it is not installed.
pub fn pmix_library() -> Option<&'static str> {
    pmix::library()
}
