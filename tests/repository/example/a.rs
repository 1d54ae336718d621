//! Uses `b` through its re-export.

use crate::b::{self, Inner};

pub struct A(Inner);

pub fn format_a(inner: Inner) -> A {
    b::check(&inner);
    A(inner)
}
