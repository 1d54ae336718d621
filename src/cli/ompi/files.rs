//! Files and links, replaced atomically, and errors that name them.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Replaces a file atomically: readers see the old content or the new one.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<(), String> {
    // Follow a link, so that the file is replaced and the link stays.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|error| failure("making", folder, error))?;
    let fresh = beside(&path);
    let written = fs::write(&fresh, bytes).and_then(|()| {
        if let Ok(old) = fs::metadata(&path) {
            fs::set_permissions(&fresh, old.permissions())?;
        }
        fs::rename(&fresh, &path)
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&fresh);
        failure("writing", &path, error)
    })
}

pub(super) fn link(path: &Path, object: &Path) -> Result<(), String> {
    let fresh = beside(path);
    let _ = fs::remove_file(&fresh);
    let made = std::os::unix::fs::symlink(object, &fresh).and_then(|()| fs::rename(&fresh, path));
    made.map_err(|error| failure("linking", path, error))
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

pub(super) fn remove(path: &Path, removed: &mut Vec<PathBuf>) -> Result<(), String> {
    match fs::remove_file(path) {
        Ok(()) => {
            removed.push(path.to_owned());
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failure("removing", path, error)),
    }
}

/// Describes a file operation that failed.
pub(super) fn failure(doing: &str, path: &Path, error: io::Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied => "; use sudo to change a prefix, or --user to install for yourself",
        _ => "",
    };
    format!("{doing} {}: {error}{remedy}", path.display())
}
