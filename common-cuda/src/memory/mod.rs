//! Memory that Cableway keeps: device memory, and host memory that devices access.

mod anonymous;
mod arena;
mod bounce;
mod host_pool;
mod host_words;
mod lists;
mod mapped_file;
mod registrations;
mod scratch;
mod spread;

pub use bounce::{BounceBuffer, BouncePool};
pub use host_pool::{HostMemory, HostPool};
pub use registrations::HostRegistration;
pub use spread::{BlockList, MOST_LISTED_BLOCKS, Packing, Spread};

pub(crate) use bounce::page_size;
pub(crate) use host_words::HostWords;
pub(crate) use lists::ListMemory;
pub(crate) use mapped_file::MappedFile;
pub(crate) use registrations::{Registrar, Registrations};
pub(crate) use scratch::ScratchMemory;
