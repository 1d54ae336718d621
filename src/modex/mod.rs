//! Finds the other processes of the job: through the built-in launcher, or through PMIx if another launcher (`mpirun`,
//! `prterun`, `srun`) started this process. A process without a launcher is a job of its own.

mod builtin;
mod pmix;
mod singleton;
mod support;
pub(crate) mod wire;

use std::sync::Arc;

use cableway_btl::{Modex, ModexError};

use support::modex_error;

/// The launcher that started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartedBy {
    /// `cableway run`, or a [`Launcher`](crate::launcher::Launcher) of a program.
    Cableway,
    /// A launcher with PMIx.
    Pmix,
    /// No launcher: a job of one process.
    Nobody,
}

impl StartedBy {
    /// Detects the launcher by this process's environment.
    pub fn detect() -> Self {
        if std::env::var_os(builtin::SOCKET_VARIABLE).is_some() {
            StartedBy::Cableway
        } else if ["PMIX_NAMESPACE", "PMIX_RANK"].iter().all(|name| std::env::var_os(name).is_some()) {
            StartedBy::Pmix
        } else {
            StartedBy::Nobody
        }
    }

    /// Joins the job. A process started by a launcher can join once.
    ///
    /// # Errors
    /// The launcher cannot be reached, this process has joined before, or `srun` started several processes without PMIx,
    /// so that each would be a separate job.
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

/// Checks that this process is really alone. Slurm starts tasks without PMIx by default, and each task would otherwise
/// become a job of one process.
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

/// Returns the name of the PMIx library on the loader's path, or `None` if there is none.
pub fn pmix_library() -> Option<&'static str> {
    pmix::library()
}
