//! The first byte of every header.

pub(crate) const MATCH: u8 = 1;
pub(crate) const RENDEZVOUS: u8 = 2;
pub(crate) const GET: u8 = 3;
pub(crate) const ACK: u8 = 4;
pub(crate) const PUT: u8 = 5;
pub(crate) const FRAGMENT: u8 = 6;
pub(crate) const FIN: u8 = 7;
pub(crate) const PUT_FIN: u8 = 8;
pub(crate) const CREDIT: u8 = 9;
pub(crate) const ABORT: u8 = 10;
pub(crate) const RESUME: u8 = 11;
// Messages of several headers: see `batch`.
pub(crate) const PUTS: u8 = 12;
pub(crate) const PUT_FINS: u8 = 13;
pub(crate) const FINS: u8 = 14;
// 15 was an early RTR, which is not used any more.
