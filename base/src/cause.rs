//! Finds the root cause of an error.

use std::error::Error;

/// Returns the message of the innermost error, such as the loader's message for a library that cannot be loaded.
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
    fn the_innermost_message_is_returned() {
        let first = std::io::Error::other("no such file");
        assert_eq!(root_cause(&first), "no such file");
        assert_eq!(root_cause(&Failed(first)), "no such file");
    }
}
