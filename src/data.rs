//! Plain data.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Plain data: any bytes are a valid value, and any value can be read as bytes. Implemented for every type with
/// `zerocopy`'s traits; derive them with `#[derive(FromBytes, IntoBytes, Immutable)]`.
pub trait Data: FromBytes + IntoBytes + Immutable {}

impl<T: FromBytes + IntoBytes + Immutable> Data for T {}
