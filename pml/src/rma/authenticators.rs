//! The authenticators of keys: random numbers of the system, each of which is used once.

/// The number of authenticators that are drawn at a time. A system call for each would be most of the time of a
/// registration of memory that was registered before.
const DRAWN: usize = 64;

/// Random bytes of the system.
pub(super) struct Authenticators {
    bytes: [[u8; 16]; DRAWN],
    left: usize,
}

impl Default for Authenticators {
    fn default() -> Self {
        Authenticators { bytes: [[0; 16]; DRAWN], left: 0 }
    }
}

impl Authenticators {
    /// Returns random bytes, or `None` if the system has none.
    pub(super) fn draw(&mut self) -> Option<[u8; 16]> {
        if self.left == 0 {
            self.fill()?;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.bytes[self.left]))
    }

    #[cold]
    fn fill(&mut self) -> Option<()> {
        let bytes = self.bytes.as_flattened_mut();
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        self.left = DRAWN;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_authenticator_is_used_twice() {
        let mut authenticators = Authenticators::default();
        let different: HashSet<[u8; 16]> = (0..3 * DRAWN).map(|_| authenticators.draw().unwrap()).collect();
        assert_eq!(different.len(), 3 * DRAWN);
        assert!(!different.contains(&[0; 16]));
    }
}
