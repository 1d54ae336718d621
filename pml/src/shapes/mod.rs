//! Elements of memory that another process reaches: how they are described, sent and rebuilt.
//!
//! The process that asks describes the elements as blocks that repeat at one distance. Regular elements take few blocks,
//! whatever their number. Few blocks come in the header of the ask, more come before it as the data of shapes. The owner
//! of the memory rebuilds a layout from them, so the convertor moves the bytes on both sides.
//!
//! - `wire`: blocks as bytes. `elements`: elements, their blocks and their range. `gathered`: shapes that arrive before
//!   their ask.

mod elements;
mod gathered;
mod wire;

pub(crate) use elements::{Described, Elements};
pub(crate) use gathered::{Gathered, post_shapes};
pub(crate) use wire::{BLOCK_LEN, Block, FORM_LEN, Form, MOST_BLOCKS, block_bytes, parse_blocks};
