//! Reasons for which a peer ends a transfer.

use cableway_base::Rank;

/// Codes with this bit hold the number of a process.
const MEMBER: u32 = 1 << 31;

/// The peer's reason for an aborted transfer. Headers carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abort {
    /// The peer's device failed.
    Device,
    /// The peer removed the communicator before it received the message.
    CommunicatorRemoved,
    /// The peer's transport failed during the transfer.
    Transport,
    /// The peer took the message by a matched probe and dropped it.
    Discarded,
    /// The message is one of an operation of all processes of its communicator, and this one of them failed.
    MemberFailed(Rank),
    /// A reason unknown to this version.
    Other(u32),
}

impl Abort {
    pub(crate) fn code(self) -> u32 {
        match self {
            Abort::Device => 1,
            Abort::CommunicatorRemoved => 2,
            Abort::Transport => 3,
            Abort::Discarded => 4,
            Abort::MemberFailed(process) => MEMBER | process,
            Abort::Other(code) => code,
        }
    }

    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            1 => Abort::Device,
            2 => Abort::CommunicatorRemoved,
            3 => Abort::Transport,
            4 => Abort::Discarded,
            code if code & MEMBER != 0 => Abort::MemberFailed(code & !MEMBER),
            other => Abort::Other(other),
        }
    }

    /// Encodes a result: 0 is success, because no reason has this code.
    pub(crate) fn code_of(result: Result<(), Self>) -> u32 {
        result.map_or_else(Self::code, |()| 0)
    }

    /// Decodes a result.
    pub(crate) fn result(code: u32) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self::from_code(code)) }
    }
}

impl std::fmt::Display for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Abort::Device => f.write_str("its device failed"),
            Abort::CommunicatorRemoved => f.write_str("it removed the communicator"),
            Abort::Transport => f.write_str("its transport failed"),
            Abort::Discarded => f.write_str("it discarded the message"),
            Abort::MemberFailed(process) => write!(f, "process {process} of the communicator failed"),
            Abort::Other(code) => write!(f, "unknown reason {code}"),
        }
    }
}
