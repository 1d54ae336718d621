//! The codes that functions return, and the errors behind them.

use std::ffi::{CStr, c_int};

use cableway::{CollectiveError, EngineError, ErrorKind};

use crate::status::Status;

macro_rules! codes {
    ($( $name:ident = $value:literal $text:literal, )+) => {
        /// A code as `cableway.h` numbers it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub(crate) enum Code { $( $name = $value, )+ }

        impl Code {
            /// Every code with its name in Rust.
            #[cfg(test)]
            pub(crate) const ALL: &[(&str, Code)] = &[ $( (stringify!($name), Code::$name), )+ ];
        }

        /// Returns what a code means.
        fn meaning(code: c_int) -> &'static CStr {
            match code {
                $( $value => $text, )+
                _ => c"no code of this library",
            }
        }
    };
}

codes! {
    Success = 0 c"success",
    ErrArgument = 1 c"an argument is null, out of range or does not fit the others",
    ErrHandle = 2 c"a handle is null, of another kind, or was freed",
    ErrRank = 3 c"the communicator has no such rank",
    ErrTag = 4 c"the tag is negative",
    ErrTruncated = 5 c"the message is longer than the buffer to receive into",
    ErrPeerFailed = 6 c"the other process died or was disconnected",
    ErrPeerLeft = 7 c"the other process has left the job",
    ErrUnreachable = 8 c"no transport reaches the other process",
    ErrAborted = 9 c"the other process aborted the transfer",
    ErrDevice = 10 c"a device or its driver failed, or there is none",
    ErrDatatype = 11 c"the arguments describe no datatype, or a message of it is too large",
    ErrOperation = 12 c"the operation is not defined for elements of this type",
    ErrMismatch = 13 c"the arguments of the members do not fit together",
    ErrParameter = 14 c"there is no such parameter, or its value is invalid",
    ErrJob = 15 c"the job cannot be joined",
    ErrTransport = 16 c"a transport failed",
    ErrSystem = 17 c"a system call failed",
    ErrNoMemory = 18 c"there is not enough memory",
    ErrFinalized = 19 c"the process has left the job",
    ErrForked = 20 c"the process is a forked child of a process of the job",
    ErrUnfinished = 21 c"the process left the job before all its messages were handed over",
    ErrInternal = 22 c"the library has a fault and cannot be used any more",
    ErrOther = 23 c"another error",
    ErrAccess = 24 c"the owner of registered memory refused an access, or the key is wrong",
}

/// Why a function fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// What failed, for people.
    pub(crate) text: String,
    /// The message that was truncated, if one was.
    pub(crate) truncated: Option<Status>,
}

impl Failure {
    #[cold]
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), truncated: None }
    }

    #[cold]
    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(Code::ErrArgument, text)
    }
}

impl From<cableway::Error> for Failure {
    #[cold]
    fn from(error: cableway::Error) -> Failure {
        let truncated = match error.engine_error() {
            Some(&EngineError::Truncated { source_rank, tag, sent, .. }) => {
                Some(Status::failed((source_rank, tag, sent), Code::ErrTruncated as c_int))
            }
            _ => None,
        };
        Failure { code: of(error.kind()), text: error.to_string(), truncated }
    }
}

fn of(kind: &ErrorKind) -> Code {
    match kind {
        ErrorKind::Parameter(_) => Code::ErrParameter,
        ErrorKind::Transport(_) => Code::ErrTransport,
        ErrorKind::Modex(_) => Code::ErrJob,
        ErrorKind::Engine(source) | ErrorKind::Message { source, .. } => of_engine(source),
        ErrorKind::Collective { source, .. } => of_collective(source),
        ErrorKind::BadCollective { .. } | ErrorKind::BadBuffer(_) => Code::ErrArgument,
        ErrorKind::Device(_) | ErrorKind::DeviceOrder(_) => Code::ErrDevice,
        ErrorKind::Datatype(_) => Code::ErrDatatype,
        ErrorKind::System { .. } => Code::ErrSystem,
        _ => Code::ErrOther,
    }
}

fn of_collective(error: &CollectiveError) -> Code {
    match error {
        CollectiveError::Message(source) => of_engine(source),
        CollectiveError::Device(_) => Code::ErrDevice,
        CollectiveError::NotDefined { .. } => Code::ErrOperation,
        CollectiveError::NoSuchRoot { .. } => Code::ErrRank,
        CollectiveError::WrongLength { .. }
        | CollectiveError::WrongSum { .. }
        | CollectiveError::TooManyElements { .. } => Code::ErrArgument,
        CollectiveError::OtherLength { .. } => Code::ErrMismatch,
        CollectiveError::NoMemory { .. } => Code::ErrNoMemory,
        _ => Code::ErrOther,
    }
}

fn of_engine(error: &EngineError) -> Code {
    match error {
        EngineError::PeerFailed { .. } => Code::ErrPeerFailed,
        EngineError::PeerLeft { .. } => Code::ErrPeerLeft,
        EngineError::Unreachable { .. } => Code::ErrUnreachable,
        EngineError::Truncated { .. } => Code::ErrTruncated,
        EngineError::PeerAborted { .. } => Code::ErrAborted,
        EngineError::Device { .. }
        | EngineError::Stream(_)
        | EngineError::StreamContext(_)
        | EngineError::OneConnection => Code::ErrDevice,
        EngineError::Datatype(_) => Code::ErrDatatype,
        EngineError::Btl(_) => Code::ErrTransport,
        EngineError::Modex(_) => Code::ErrJob,
        EngineError::NoSuchRank { .. } => Code::ErrRank,
        EngineError::BadTag { .. } => Code::ErrTag,
        EngineError::Refused { .. } | EngineError::OutsideRegistration { .. } | EngineError::BadWord { .. } => {
            Code::ErrAccess
        }
        EngineError::MisalignedWord { .. }
        | EngineError::ForeignSignal { .. }
        | EngineError::NotContiguous
        | EngineError::UnequalBuffers { .. }
        | EngineError::TooManyBlocks { .. }
        | EngineError::BadRegistration { .. }
        | EngineError::HeaderTooLong { .. }
        | EngineError::HandlerInUse { .. }
        | EngineError::BadRequest { .. }
        | EngineError::NotCapturable { .. } => Code::ErrArgument,
        EngineError::PreparedEnded { .. } => Code::ErrAborted,
        EngineError::NoThread { .. } => Code::ErrSystem,
        EngineError::Forked => Code::ErrForked,
        EngineError::Finalized => Code::ErrFinalized,
        _ => Code::ErrOther,
    }
}

/// Returns what a code means, as text that is never freed.
#[unsafe(no_mangle)]
extern "C" fn cableway_error_string(code: c_int) -> *const std::ffi::c_char {
    meaning(code).as_ptr()
}
