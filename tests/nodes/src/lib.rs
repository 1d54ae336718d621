//! Shared by the transports' tests: several processes of a job within one process, their events, and the memory that
//! this process has allocated. And processes that tests start.

mod allocated;
mod devices;
mod isolated;
mod node;
mod processes;

pub use allocated::Counting;
pub use devices::{devices, devices_with};
pub use isolated::isolated;
pub use node::{Node, PATIENCE, Seen, parameters, pattern, region, send, transfer, try_send, until};
pub use processes::{collect, wait_for};
