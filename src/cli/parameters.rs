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

    /// Folder to load libamdhip64.so from, instead of the loader's path
    #[arg(long, value_name = "DIR")]
    hip_libdir: Option<PathBuf>,
}

impl ParameterOptions {
    /// Returns the parameters of this process. Those of the command line replace those of the environment.
    pub(super) fn resolve(&self) -> Result<Parameters, Failure> {
        let mut parameters = Parameters::from_environment().map_err(Failure::usage)?;
        for assignment in &self.set {
            parameters.assign(assignment, Source::CommandLine).map_err(Failure::usage)?;
        }
        cableway::check_transports(&parameters).map_err(Failure::usage)?;
        for (option, folder) in [("--cuda-libdir", &self.cuda_libdir), ("--hip-libdir", &self.hip_libdir)] {
            if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_dir()) {
                return Err(Failure::usage(format!("{option}: '{}' is not a folder", folder.display())));
            }
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

    /// Returns the folders of driver libraries.
    pub(super) fn libdirs(&self) -> Vec<&Path> {
        [&self.cuda_libdir, &self.hip_libdir].into_iter().filter_map(|folder| folder.as_deref()).collect()
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
        let named = [(cableway::LIBDIR_VARIABLE, &self.cuda_libdir), (cableway::HIP_LIBDIR_VARIABLE, &self.hip_libdir)];
        for (variable, folder) in named {
            variables.extend(folder.as_ref().map(|folder| (variable.to_owned(), folder.into())));
        }
        variables
    }
}
