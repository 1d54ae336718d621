//! Why something failed, where an error only says that it did.

use std::error::Error;

/// The words of the error that began it: of a library that cannot be loaded, the loader's.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut first = error;
    while let Some(source) = first.source() {
        first = source;
    }
    first.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("it failed")]
    struct Failed(#[source] std::io::Error);

    #[test]
    fn the_first_error_speaks() {
        let first = std::io::Error::other("no such file");
        assert_eq!(root_cause(&first), "no such file");
        assert_eq!(root_cause(&Failed(first)), "no such file");
    }
}
