/// Adjacent bytes of a user's buffer, wherever it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first byte.
    pub address: *mut u8,
    /// How many.
    pub len: usize,
}
