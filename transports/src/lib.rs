//! Opens the transports of a process, by one rule for the library and the Open MPI component.

use std::sync::Arc;

use cableway_base::{Parameters, nearest};
use cableway_btl::{Btl, Job};
use cableway_common_cuda::Devices;

/// The names that the parameter `btl` accepts.
#[cfg(feature = "openib")]
pub const NAMES: [&str; 4] = ["self", "sm", "tcp", "openib"];
/// The names that the parameter `btl` accepts.
#[cfg(not(feature = "openib"))]
pub const NAMES: [&str; 3] = ["self", "sm", "tcp"];

/// The reason why transports were not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The parameter `btl` names a transport that does not exist.
    #[error("there is no transport '{name}': {}", hint(*.nearest))]
    Unknown {
        /// The given name.
        name: String,
        /// The known name that is nearest to it.
        nearest: Option<&'static str>,
    },
    /// A transport could not be set up.
    #[error("a transport could not be set up: {0}")]
    Transport(#[from] cableway_btl::Error),
}

fn hint(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("did you mean '{name}'?"),
        None => format!("use {}", NAMES.join(", ")),
    }
}

/// Says how a job may grow after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The job keeps its processes. A network is opened for any job of several processes, because containers may
    /// separate processes of one node.
    Fixed,
    /// The job may spawn processes on its nodes, or connect to some, as MPI jobs do. A job on one node opens no network
    /// unless the parameter `btl` names one, so that `MPI_Init` costs no more than the job needs.
    Spawns,
}

/// Opens the transports that the parameter `btl` names, or all that the job can use. `self` is always included, because
/// no other transport carries messages of a process to itself.
///
/// # Errors
/// An unknown name, or a transport that cannot be set up.
pub fn open(job: &Job, growth: Growth, parameters: &Parameters, devices: &Devices) -> Result<Vec<Arc<dyn Btl>>, Error> {
    let named = named(&parameters.btl)?;
    let wanted = |name| named.as_ref().is_none_or(|named| named.contains(&name));
    let (others_on_node, network) = match growth {
        Growth::Fixed => (job.local_size > 1, job.size > 1),
        Growth::Spawns => (true, job.local_size < job.size || named.is_some()),
    };
    let mut btls: Vec<Arc<dyn Btl>> = vec![cableway_btl_self::SelfLoop::new(job, parameters, devices)];
    if wanted("sm") && others_on_node {
        btls.push(cableway_btl_sm::SharedMemory::new(job, parameters, devices)?);
    }
    if wanted("tcp") && network {
        btls.push(cableway_btl_tcp::Tcp::new(job, parameters, devices)?);
    }
    #[cfg(feature = "openib")]
    if wanted("openib") && network {
        let modules = cableway_btl_openib::Openib::open(job, parameters, devices)?;
        btls.extend(modules.into_iter().map(|btl| btl as Arc<dyn Btl>));
    }
    Ok(btls)
}

/// Checks that the parameter `btl` names transports that exist.
///
/// # Errors
/// [`Error::Unknown`].
pub fn check(parameters: &Parameters) -> Result<(), Error> {
    named(&parameters.btl).map(drop)
}

/// The transports that a list names; none if it is empty.
fn named(list: &str) -> Result<Option<Vec<&'static str>>, Error> {
    let names: Vec<_> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let known = |name: &str| NAMES.into_iter().find(|known| *known == name);
    let unknown = |name: &str| Error::Unknown { name: name.to_owned(), nearest: nearest(name, NAMES) };
    let named = names.into_iter().map(|name| known(name).ok_or_else(|| unknown(name)));
    let named: Vec<_> = named.collect::<Result<_, _>>()?;
    Ok((!named.is_empty()).then_some(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(named("").unwrap(), None);
        assert_eq!(named("tcp, self").unwrap().unwrap(), ["tcp", "self"]);
        assert!(named("tpc").unwrap_err().to_string().contains("'tcp'"));
        assert!(named("ib,sm").unwrap_err().to_string().contains("self, sm, tcp"));
        assert_eq!(named("openib,sm").is_ok(), cfg!(feature = "openib"));
    }

    #[test]
    fn a_job_on_one_node_opens_what_it_needs() {
        let names = |local_size, size, growth, list: &str| {
            let job = Job::new("t".into(), [0; 32], 0, size, local_size);
            let mut parameters = Parameters::default();
            parameters.set_internal("btl", list).unwrap();
            let opened = open(&job, growth, &parameters, &Devices::none());
            opened.unwrap().iter().map(|btl| btl.name()).collect::<Vec<_>>().join(",")
        };
        let without_verbs = "self,sm,tcp";
        assert_eq!(names(1, 1, Growth::Fixed, without_verbs), "self");
        assert_eq!(names(2, 2, Growth::Fixed, without_verbs), "self,sm,tcp");
        assert_eq!(names(1, 2, Growth::Fixed, without_verbs), "self,tcp");
        assert_eq!(names(2, 2, Growth::Fixed, "sm"), "self,sm");
        assert_eq!(names(1, 1, Growth::Spawns, ""), "self,sm");
        assert_eq!(names(2, 2, Growth::Spawns, ""), "self,sm");
        assert_eq!(names(2, 2, Growth::Spawns, without_verbs), "self,sm,tcp");
    }
}
