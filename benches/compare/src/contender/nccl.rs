//! NCCL's point-to-point calls, through PyTorch.

use std::process::Command;

use super::contract::{Contender, Description, Sample, samples_of};
use crate::error::Error;
use crate::plan::Series;
use crate::process::{bounded, output_of};

pub(super) struct Nccl {
    version: String,
}

impl Nccl {
    pub(super) fn find(devices: u32) -> Result<Self, Error> {
        if devices < 2 {
            return Err(Error::Missing("it needs two devices".to_owned()));
        }
        let says = "import torch; print('NCCL', *torch.cuda.nccl.version(), 'of PyTorch', torch.__version__)";
        let version = output_of(Command::new("python3").args(["-c", says]));
        let version = version.map_err(|_| Error::Missing("there is no PyTorch with NCCL".to_owned()))?;
        Ok(Nccl { version: version.trim().to_owned() })
    }
}

impl Contender for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn describe(&self) -> Description {
        Description {
            version: self.version.clone(),
            command: "python3 benches/peers/nccl.py TEST SIZES SECONDS WINDOWS".to_owned(),
        }
    }

    /// NCCL sends contiguous messages between two devices only.
    fn takes(&self, series: &Series) -> bool {
        series.route.name == "devices" && !series.test.is_of_mpi()
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        let list =
            |numbers: &mut dyn Iterator<Item = u64>| numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let mut command = bounded("python3");
        command.args(["-c", include_str!("../../../peers/nccl.py"), &series.test.to_string()]);
        command.arg(list(&mut series.sizes.iter().copied())).arg(seconds.to_string());
        command.arg(list(&mut series.sizes.iter().map(|size| series.test.window(*size))));
        Ok(samples_of(&output_of(&mut command)?))
    }
}
