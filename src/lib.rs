//! GPU-aware point-to-point messaging between processes, in the architecture of Open MPI.

pub mod launcher;
mod modex;

pub use modex::StartedBy;

pub use cableway_base::parameters::ENVIRONMENT_PREFIX;
pub use cableway_base::{ParameterError, Parameters, Rank, Source};
pub use cableway_btl::ModexError;
