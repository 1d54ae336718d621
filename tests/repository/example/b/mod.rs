//! Re-exports a child and uses `a` in a macro.

mod inner;

pub use inner::Inner;

pub fn check(_: &Inner) {
    println!("{:?}", crate::a::format_a as usize);
}

#[cfg(test)]
mod tests {
    use crate::nothing::such;
}
