//! What the transports' tests share: processes of a job within one, what they were told, and what this process has
//! allocated.

mod allocated;
mod devices;
mod isolated;
mod node;

pub use allocated::Counting;
pub use devices::{devices, devices_with};
pub use isolated::isolated;
pub use node::{Node, PATIENCE, Seen, parameters, pattern, region, send, transfer, try_send, until};
