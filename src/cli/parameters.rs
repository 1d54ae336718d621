//! Options that several commands share: parameters and the folder of the device driver.

use std::path::{Path, PathBuf};

use cableway::{Parameters, Source};
use clap::Args;

use super::Failure;

#[derive(Args)]
pub(super) struct ParameterOptions {
    /// Set a parameter (`cableway info --all` lists them); may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Folder to load libcuda.so.1 from, instead of the loader's path
    #[arg(long, value_name = "DIR")]
    cuda_libdir: Option<PathBuf>,
}

impl ParameterOptions {
    /// Returns the parameters of this process. Those of the command line replace those of the environment.
    pub(super) fn resolve(&self) -> Result<Parameters, Failure> {
        let mut parameters = Parameters::from_environment().map_err(Failure::usage)?;
        for assignment in &self.set {
            parameters.assign(assignment, Source::CommandLine).map_err(Failure::usage)?;
        }
        cableway::check_transports(&parameters).map_err(Failure::usage)?;
        if let Some(folder) = &self.cuda_libdir
            && !folder.is_dir()
        {
            return Err(Failure::usage(format!("--cuda-libdir: '{}' is not a folder", folder.display())));
        }
        Ok(parameters)
    }

    /// Resolves parameters as [`resolve`](Self::resolve) does, with the transports of the option `--btl`.
    pub(super) fn resolve_with(&self, btl: Option<&str>) -> Result<Parameters, Failure> {
        let mut parameters = self.resolve()?;
        if let Some(btl) = btl {
            parameters.set("btl", btl, Source::CommandLine).map_err(Failure::usage)?;
            cableway::check_transports(&parameters).map_err(Failure::usage)?;
        }
        Ok(parameters)
    }

    pub(super) fn cuda_libdir(&self) -> Option<&Path> {
        self.cuda_libdir.as_deref()
    }

    /// Returns the parameters as environment variables for processes to start.
    pub(super) fn variables(&self) -> Vec<(String, std::ffi::OsString)> {
        let assignments = self.set.iter().filter_map(|assignment| assignment.split_once('='));
        let mut variables: Vec<_> = assignments
            .map(|(name, value)| {
                let name = format!("{}{}", cableway::ENVIRONMENT_PREFIX, name.trim().to_ascii_uppercase());
                (name, value.trim().into())
            })
            .collect();
        variables.extend(self.cuda_libdir.as_ref().map(|folder| (cableway::LIBDIR_VARIABLE.to_owned(), folder.into())));
        variables
    }
}
