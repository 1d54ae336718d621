//! The listening socket of this process, and its name.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cableway_base::fork::Origin;
use cableway_btl::Job;

use crate::card::SocketName;
use crate::connection::socket::{self, Descriptor};
use crate::inner::random;

/// The prefix and suffix of socket names in a shared folder.
const PREFIX: &str = "cableway-sm-";
const SUFFIX: &str = ".sock";

/// Listens under an unpredictable name: abstract, or in `folder` if one is named.
pub(crate) fn listen(job: &Job, folder: &str) -> io::Result<(Descriptor, SocketName, Option<Unlink>)> {
    let mut nonce = [0; 8];
    random(&mut nonce)?;
    let name = format!("{PREFIX}{}-{:016x}", job.rank, u64::from_ne_bytes(nonce));
    // Every peer may connect at once.
    let backlog = i32::try_from(job.local_size).unwrap_or(i32::MAX).clamp(64, 4096);
    if folder.is_empty() {
        let name = SocketName::Abstract(name.into_bytes());
        return Ok((socket::listen(&name, backlog)?, name, None));
    }
    sweep(Path::new(folder));
    let path = Path::new(folder).join(name + SUFFIX);
    let name = SocketName::Path(path.as_os_str().as_bytes().to_vec());
    let listener = socket::listen(&name, backlog)?;
    rustix::fs::chmod(&path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    Ok((listener, name, Some(Unlink { path, origin: Origin::here() })))
}

/// Removes the file of this process's socket when dropped, except in a forked child.
pub(crate) struct Unlink {
    path: PathBuf,
    origin: Origin,
}

impl Drop for Unlink {
    fn drop(&mut self) {
        if self.origin.is_here()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            log::debug!("sm: {} was not removed: {error}", self.path.display());
        }
    }
}

/// Removes sockets of killed processes from a shared folder. They refuse connections.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name.as_bytes().starts_with(PREFIX.as_bytes()) && name.as_bytes().ends_with(SUFFIX.as_bytes());
        if !ours {
            continue;
        }
        let path = entry.path();
        let socket = SocketName::Path(path.as_os_str().as_bytes().to_vec());
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if socket::connect(&socket).is_err_and(refused) {
            let _ = std::fs::remove_file(&path);
        }
    }
}
