//! `cableway run`: starts ranks on this machine.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use cableway::launcher::{Bind, Launcher};
use clap::{Args, ValueEnum};

use super::Failure;
use super::parameters::ParameterOptions;

/// Start ranks of a program on this machine
///
/// The exit code is 0, or that of the first rank that failed (128 + signal if it was killed). When a rank fails, the
/// other ranks are ended. Signals are forwarded to every rank; a second SIGINT kills them. Standard input goes to rank 0.
#[derive(Args)]
pub(super) struct Run {
    /// Number of ranks
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,

    /// Bind each rank to its own core, or to none
    #[arg(long, value_enum, default_value = "none")]
    bind: BindTo,

    /// Begin each line of output with its rank
    #[arg(long)]
    tag_output: bool,

    /// Let the other ranks continue when one fails
    #[arg(long)]
    keep_going: bool,

    /// Time between SIGTERM and SIGKILL for ranks that are ended
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    grace: Duration,

    #[command(flatten)]
    parameters: ParameterOptions,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM ARGS")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum BindTo {
    Core,
    None,
}

impl From<BindTo> for Bind {
    fn from(bind: BindTo) -> Self {
        match bind {
            BindTo::Core => Bind::Core,
            BindTo::None => Bind::None,
        }
    }
}

impl Run {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        self.parameters.resolve()?;
        let (program, arguments) = self.program.split_first().ok_or_else(|| Failure::usage("name a program"))?;
        let mut launcher = Launcher::new(self.ranks, program)
            .arguments(arguments)
            .bind(self.bind.into())
            .tag_output(self.tag_output)
            .keep_going(self.keep_going)
            .grace(self.grace);
        for (name, value) in self.parameters.variables() {
            launcher = launcher.variable(name, value);
        }
        launcher.run().map(ExitCode::from).map_err(|error| Failure::failed(error.exit_code(), error))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|_| "a number of seconds is expected".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
