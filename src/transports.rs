//! Which transports a process uses.

use std::sync::Arc;

use cableway_base::{Parameters, nearest};
use cableway_btl::{Btl, Job};
use cableway_common_cuda::Devices;

use crate::{Error, ErrorKind};

/// What the parameter `btl` may name.
#[cfg(feature = "openib")]
pub(crate) const NAMES: [&str; 4] = ["self", "sm", "tcp", "openib"];
/// What the parameter `btl` may name.
#[cfg(not(feature = "openib"))]
pub(crate) const NAMES: [&str; 3] = ["self", "sm", "tcp"];

/// Sets up the transports that the parameter `btl` names, or all of them. `self` is always among them: nothing else
/// carries messages of a process to itself.
pub(crate) fn open(job: &Job, parameters: &Parameters, devices: &Devices) -> Result<Vec<Arc<dyn Btl>>, Error> {
    let chosen = choose(&parameters.btl)?;
    let mut btls: Vec<Arc<dyn Btl>> = vec![cableway_btl_self::SelfLoop::new(job, parameters, devices)];
    if chosen.contains(&"sm") && job.local_size > 1 {
        btls.push(cableway_btl_sm::SharedMemory::new(job, parameters, devices)?);
    }
    if chosen.contains(&"tcp") && job.size > 1 {
        btls.push(cableway_btl_tcp::Tcp::new(job, parameters, devices)?);
    }
    #[cfg(feature = "openib")]
    if chosen.contains(&"openib") && job.size > 1 {
        btls.extend(
            cableway_btl_openib::Openib::open(job, parameters, devices)?.into_iter().map(|btl| btl as Arc<dyn Btl>),
        );
    }
    Ok(btls)
}

/// Refuses parameters that name a transport which does not exist, as [`World::init`](crate::World::init) would.
///
/// # Errors
/// [`ErrorKind::UnknownTransport`].
pub fn check_transports(parameters: &Parameters) -> Result<(), Error> {
    choose(&parameters.btl).map(drop)
}

fn choose(list: &str) -> Result<Vec<&'static str>, Error> {
    let names: Vec<_> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return Ok(NAMES.to_vec());
    }
    let known = |name: &str| NAMES.into_iter().find(|known| *known == name);
    let unknown = |name: &str| ErrorKind::UnknownTransport { name: name.to_owned(), nearest: nearest(name, NAMES) };
    Ok(names.into_iter().map(|name| known(name).ok_or_else(|| unknown(name))).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn names_are_checked() {
        assert_eq!(choose("").unwrap(), super::NAMES);
        assert_eq!(choose("tcp, self").unwrap(), ["tcp", "self"]);
        assert!(choose("tpc").unwrap_err().to_string().contains("'tcp'"));
        assert!(choose("ib,sm").unwrap_err().to_string().contains("self, sm, tcp"));
        assert_eq!(choose("openib,sm").is_ok(), cfg!(feature = "openib"));
    }
}
