//! The methods that may still register a device's memory.

use std::fmt;

/// A method to register device memory with verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistrationMethod {
    DmaBuf,
    PeerMemory,
}

impl fmt::Display for RegistrationMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RegistrationMethod::DmaBuf => "dma-buf",
            RegistrationMethod::PeerMemory => "peer memory",
        })
    }
}

/// The methods for one device in the order of attempts, each with the reason against it.
#[derive(Clone, Debug)]
pub(super) struct RegistrationMethods([(RegistrationMethod, Result<(), String>); 2]);

impl RegistrationMethods {
    pub(super) fn new(dma_buf: Result<(), String>, peer_memory: Result<(), String>) -> Self {
        RegistrationMethods([(RegistrationMethod::DmaBuf, dma_buf), (RegistrationMethod::PeerMemory, peer_memory)])
    }

    pub(super) fn first(&self) -> Option<RegistrationMethod> {
        self.0.iter().find(|(_, against)| against.is_ok()).map(|(method, _)| *method)
    }

    /// Rules a method out for good.
    pub(super) fn refuse(&mut self, method: RegistrationMethod, reason: String) {
        if let Some((_, against)) = self.0.iter_mut().find(|(known, _)| *known == method) {
            *against = Err(reason);
        }
    }

    pub(super) fn reasons(&self) -> String {
        let reason = |(method, against): &(RegistrationMethod, Result<(), String>)| {
            against.as_ref().err().map(|reason| format!("by {method}: {reason}"))
        };
        self.0.iter().filter_map(reason).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_method_is_not_tried_again() {
        let mut methods = RegistrationMethods::new(Ok(()), Ok(()));
        assert_eq!((methods.first(), methods.reasons()), (Some(RegistrationMethod::DmaBuf), String::new()));
        methods.refuse(RegistrationMethod::DmaBuf, "it does not like it".to_owned());
        assert_eq!(methods.first(), Some(RegistrationMethod::PeerMemory));
        methods.refuse(RegistrationMethod::PeerMemory, "nor that".to_owned());
        assert_eq!(methods.first(), None);
        assert_eq!(methods.reasons(), "by dma-buf: it does not like it; by peer memory: nor that");
        let methods = RegistrationMethods::new(Err("too old".to_owned()), Ok(()));
        assert_eq!(
            (methods.first(), methods.reasons()),
            (Some(RegistrationMethod::PeerMemory), "by dma-buf: too old".to_owned())
        );
    }
}
