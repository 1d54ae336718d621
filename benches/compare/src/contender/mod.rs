//! The programs that are measured. Each knows how to run a series and to read what it printed.

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

/// The program of that name, made ready to run.
///
/// # Errors
///
/// It is not on this machine and could not be built; the message says what would bring it.
pub(crate) fn find(name: &str, place: Place, subject: &Subject) -> Result<Box<dyn Contender>, Error> {
    match name {
        "cableway" => Ok(Box::new(cableway::Cableway::new(place, &subject.command)?)),
        "cableway-mpi" => Ok(Box::new(open_mpi::OpenMpi::cableway(place, subject.component.clone())?)),
        "ob1" => Ok(Box::new(open_mpi::OpenMpi::ob1(place)?)),
        "ucx" => Ok(Box::new(ucx::Ucx::find(place)?)),
        "nccl" => Ok(Box::new(nccl::Nccl::find(subject.devices)?)),
        #[cfg(feature = "cuda")]
        "copies" => Ok(Box::new(copies::Copies::find(place, subject.devices)?)),
        other => Err(Error::Missing(format!("no program is called '{other}'; there are {}", PROGRAMS.join(", ")))),
    }
}
