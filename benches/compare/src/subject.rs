//! What a comparison measures.

use std::path::PathBuf;

/// The Cableway to measure, and the devices of this machine.
pub struct Subject {
    /// The `cableway` command.
    pub command: PathBuf,
    /// The component for this machine's Open MPI, or why there is none.
    pub component: Result<PathBuf, String>,
    /// The number of devices.
    pub devices: u32,
    /// Whether the devices are simulated. Figures about simulated devices are meaningless.
    pub simulated: bool,
}
