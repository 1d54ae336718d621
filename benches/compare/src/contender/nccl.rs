//! NCCL's point-to-point calls, through PyTorch, and its collectives, from a C program.

use std::process::Command;

use super::contract::{Contender, Description, Place, QUEUED, Sample, samples_of};
use super::open_mpi::OpenMpi;
use crate::error::Error;
use crate::plan::Series;
use crate::process::{bounded, list, output_of};

/// Where the program of collectives finds NCCL.
const LIBRARY: &str = "NCCL_LIBRARY";

pub(super) struct Nccl {
    version: String,
    /// What starts the program of collectives, which uses MPI for nothing else. None if there is no MPI.
    mpi: Option<OpenMpi>,
    /// The path of NCCL's library. None if it is unknown.
    library: Option<String>,
    /// Several operations are in a stream before it is waited for, which no call of MPI permits.
    queued: bool,
}

impl Nccl {
    pub(super) fn find(place: Place, devices: u32, queued: bool) -> Result<Self, Error> {
        if devices < 2 {
            return Err(Error::Missing("it needs two devices".to_owned()));
        }
        let python = |says: &str| {
            let said = output_of(Command::new("python3").args(["-c", says]));
            said.map_err(|_| Error::Missing("there is no PyTorch with NCCL".to_owned()))
        };
        let version =
            python("import torch; print('NCCL', *torch.cuda.nccl.version(), 'of PyTorch', torch.__version__)")?;
        let library = match std::env::var(LIBRARY) {
            Ok(path) if !path.is_empty() => Some(path),
            _ => python("import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + '/lib/libnccl.so.2')").ok(),
        };
        let (version, library) = (version.trim().to_owned(), library.map(|path| path.trim().to_owned()));
        Ok(Nccl { version, mpi: OpenMpi::ob1(place).ok(), library, queued })
    }
}

impl Contender for Nccl {
    fn name(&self) -> &'static str {
        if self.queued { QUEUED } else { "nccl" }
    }

    fn describe(&self) -> Description {
        let command = match self.queued {
            true => "mpirun -np 2 collectives nccl-queued SECONDS SIZES OPERATION",
            false => {
                "python3 benches/peers/nccl.py TEST SIZES SECONDS WINDOWS; mpirun -np 2 collectives nccl SECONDS SIZES OPERATION"
            }
        };
        let version = match std::env::var_os(LIBRARY) {
            Some(_) => format!("{}; collectives by the library that {LIBRARY} names", self.version),
            None => self.version.clone(),
        };
        Description { version, command: command.to_owned() }
    }

    /// NCCL sends contiguous messages between two devices only.
    fn takes(&self, series: &Series) -> bool {
        let test = series.test;
        let takes = if test.is_collective() {
            self.mpi.is_some() && self.library.is_some()
        } else {
            test.is_of_messages() && !self.queued
        };
        series.route.name == "devices" && takes
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        if let (true, Some(mpi), Some(library)) = (series.test.is_collective(), &self.mpi, &self.library) {
            let place = if self.queued { "nccl-queued" } else { "nccl" };
            // NVLink multicast stays off: where it fails, it fails for all users of the devices.
            let variables = [(LIBRARY, library.as_str()), ("NCCL_NVLS_ENABLE", "0")];
            return mpi.collective(series, place, seconds, &variables);
        }
        let mut command = bounded("python3");
        command.args(["-c", include_str!("../../../peers/nccl.py"), &series.test.to_string()]);
        command.arg(list(series.sizes.iter().copied())).arg(seconds.to_string());
        command.arg(list(series.sizes.iter().map(|size| series.test.window(*size))));
        Ok(samples_of(&output_of(&mut command)?))
    }
}
