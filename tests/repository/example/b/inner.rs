//! Uses its parent.

pub struct Inner;

pub fn again(inner: &Inner) {
    super::check(inner);
}
