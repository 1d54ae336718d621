//! The programs under measurement. Each runs a series and reads the figures that its program prints.

mod build;
mod cableway;
mod contract;
#[cfg(feature = "cuda")]
mod copies;
mod nccl;
mod open_mpi;
mod ucx;

use crate::Subject;
use crate::error::Error;

pub(crate) use contract::{Contender, FLOOR, PEERS, PROGRAMS, Place};

/// Finds or builds the program of that name.
///
/// # Errors
///
/// The program is not on this machine and cannot be built. The message says how to install it.
pub(crate) fn find(name: &str, place: Place, subject: &Subject) -> Result<Box<dyn Contender>, Error> {
    match name {
        "cableway" => Ok(Box::new(cableway::Cableway::new(place, &subject.command)?)),
        "cableway-mpi" => Ok(Box::new(open_mpi::OpenMpi::cableway(place, subject.component.clone())?)),
        "ob1" => Ok(Box::new(open_mpi::OpenMpi::ob1(place)?)),
        "ucx" => Ok(Box::new(ucx::Ucx::find(place)?)),
        "nccl" => Ok(Box::new(nccl::Nccl::find(place, subject.devices, false)?)),
        contract::QUEUED => Ok(Box::new(nccl::Nccl::find(place, subject.devices, true)?)),
        #[cfg(feature = "cuda")]
        "copies" => Ok(Box::new(copies::Copies::find(place, subject.devices)?)),
        other => Err(Error::Missing(format!("unknown program '{other}': choose from {}", PROGRAMS.join(", ")))),
    }
}
