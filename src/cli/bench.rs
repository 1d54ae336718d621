//! `cableway bench`: figures beside the peers'.

use std::path::PathBuf;
use std::process::ExitCode;

use cableway::{Devices, Parameters};
use cableway_compare::{Comparison, Subject};
use clap::{Args, Subcommand};

use super::Failure;
use super::ompi::component_for_this_machine;

/// Measure beside other programs
#[derive(Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Print figures beside those of the MPI, UCX and NCCL that this machine has, taken in one run
    ///
    /// Latency, message rate and bandwidth of host memory, and of device memory where there are devices; every program in
    /// turn, several times over. Leave the machine alone meanwhile. UCX comes from PyPI where it is not there yet.
    Compare {
        #[command(flatten)]
        compare: Comparison,
        /// The component for Open MPI to measure [default: what lies beside this executable or in ../lib/cableway]
        #[arg(long, value_name = "FILE")]
        component: Option<PathBuf>,
    },
}

impl Bench {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let What::Compare { compare, component } = self.what;
        let command =
            std::env::current_exe().map_err(|error| Failure::failed(1, format!("this executable: {error}")))?;
        let component = component.map_or_else(component_for_this_machine, Ok);
        let (devices, simulated) = devices();
        let subject = Subject { command, component, devices, simulated };
        compare.execute(&subject).map_err(|error| Failure::failed(1, error))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// How many devices can be used here, none without a driver, and whether they are simulated.
fn devices() -> (u32, bool) {
    let devices = Devices::open(&Parameters::default());
    let facts = devices.initialise().and_then(|()| devices.facts());
    facts.map_or((0, false), |facts| (facts.devices.len() as u32, facts.simulated))
}
