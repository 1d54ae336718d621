//! MPI datatypes: the bytes of a buffer that form a message, and the convertor that moves them.
//!
//! MPI's constructors build a [`Datatype`] from [`Predefined`] ones. [`Datatype::commit`] reduces it to its canonical
//! [`Layout`], which is all that communication uses. A [`Convertor`] then packs and unpacks any range of a message's
//! bytes, by the CPU or by a device's driver, depending on the buffer's memory.
//!
//! ```
//! use cableway_common_cuda::{Devices, Location};
//! use cableway_datatype::{Convertor, Datatype, Predefined};
//!
//! // The first column of a matrix of 3 rows and 4 columns.
//! let matrix: Vec<i32> = (0..12).collect();
//! let column = Datatype::vector(3, 1, 4, &Predefined::Int.datatype())?.commit();
//! let mut packed = [0; 12];
//! // SAFETY: the matrix is host memory that lives, unwritten, as long as the convertor.
//! let mut convertor =
//!     unsafe { Convertor::for_send(&column, matrix.as_ptr().cast(), 1, Location::HOST, &Devices::none()) };
//! assert_eq!(convertor.pack_slice(&mut packed)?, 12);
//! assert_eq!(packed, [0, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0]);
//! # Ok::<(), cableway_datatype::Error>(())
//! ```

mod array;
mod assembly;
mod bounds;
mod construct;
mod convertor;
mod datatype;
mod error;
mod kept;
mod layout;
mod node;
mod normal;
mod predefined;
mod regular;
mod rows;
mod staging;
mod walk;

pub use array::{ArrayOrder, Distribution};
pub use convertor::{Convertor, Piece};
pub use datatype::Datatype;
pub use error::Error;
pub use kept::KeptLayouts;
pub use layout::{Blocks, Dimension, Layout, MAX_DIMENSIONS, Shape};
pub use predefined::Predefined;
pub use staging::{StagedBlock, Staging};
pub use walk::Block;
