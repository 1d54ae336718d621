//! LibGDSync's calls (`include/gdsync.h`), as far as they mean something without its network card.
//!
//! - `answer`: errors. `descriptor`: what programs describe. `post`: how a stream or the host gets it. `memory`: memory
//!   for words. `absent`: calls that need a queue pair.

mod absent;
mod answer;
mod descriptor;
mod memory;
mod post;
