//! A crate for the test of paths to read. It is not compiled.

mod a;
mod b;

pub use a::{A, format_a};
pub use b::Inner;
