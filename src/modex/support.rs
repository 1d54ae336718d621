//! Helpers of every way to join a job: secrets, names and errors.

use cableway_btl::ModexError;

/// Returns 32 bytes from the system's random generator.
pub(crate) fn random_secret() -> std::io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    let mut filled = 0;
    while filled < secret.len() {
        filled += rustix::rand::getrandom(&mut secret[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(secret)
}

/// Returns a job name that no other job of this user has.
pub(crate) fn random_job_id() -> std::io::Result<String> {
    let random = random_secret()?;
    Ok(random[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(super) fn modex_error(what: impl Into<String>, reason: impl std::fmt::Display) -> ModexError {
    ModexError { what: what.into(), reason: reason.to_string() }
}
