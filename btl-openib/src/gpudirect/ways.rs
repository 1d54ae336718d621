//! Which ways into a device's memory are left.

use std::fmt;

/// How verbs come to know of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    DmaBuf,
    PeerMemory,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::DmaBuf => "dma-buf",
            Way::PeerMemory => "peer memory",
        })
    }
}

/// Of one device, in the order in which they are tried; each with what speaks against it.
#[derive(Clone, Debug)]
pub(super) struct Ways([(Way, Result<(), String>); 2]);

impl Ways {
    pub(super) fn new(dma_buf: Result<(), String>, peer_memory: Result<(), String>) -> Self {
        Ways([(Way::DmaBuf, dma_buf), (Way::PeerMemory, peer_memory)])
    }

    pub(super) fn first(&self) -> Option<Way> {
        self.0.iter().find(|(_, against)| against.is_ok()).map(|(way, _)| *way)
    }

    /// It turned out not to work. That stands.
    pub(super) fn refuse(&mut self, way: Way, reason: String) {
        if let Some((_, against)) = self.0.iter_mut().find(|(known, _)| *known == way) {
            *against = Err(reason);
        }
    }

    pub(super) fn reasons(&self) -> String {
        let reason = |(way, against): &(Way, Result<(), String>)| {
            against.as_ref().err().map(|reason| format!("by {way}: {reason}"))
        };
        self.0.iter().filter_map(reason).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_refuses_is_not_tried_again() {
        let mut ways = Ways::new(Ok(()), Ok(()));
        assert_eq!((ways.first(), ways.reasons()), (Some(Way::DmaBuf), String::new()));
        ways.refuse(Way::DmaBuf, "it does not like it".to_owned());
        assert_eq!(ways.first(), Some(Way::PeerMemory));
        ways.refuse(Way::PeerMemory, "nor that".to_owned());
        assert_eq!(ways.first(), None);
        assert_eq!(ways.reasons(), "by dma-buf: it does not like it; by peer memory: nor that");
        let ways = Ways::new(Err("too old".to_owned()), Ok(()));
        assert_eq!((ways.first(), ways.reasons()), (Some(Way::PeerMemory), "by dma-buf: too old".to_owned()));
    }
}
