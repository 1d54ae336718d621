//! The folder that keeps costs of devices. A file is named after its device.

use std::io;
use std::path::PathBuf;

use cableway_base::kept::{self, Lock};

use super::text::{self, Content, Key, UnusableFile};

/// The folder that keeps costs.
#[derive(Clone, Debug)]
pub(crate) struct Folder(kept::Folder);

impl Folder {
    /// As [`kept::Folder::new`].
    pub(crate) fn new(parameter: &str) -> Option<Folder> {
        kept::Folder::new(parameter).map(Folder)
    }

    /// Returns the path of a device's file.
    pub(crate) fn file(&self, key: &Key) -> PathBuf {
        self.0.file(&text::file_name(&key.uuid))
    }

    /// Reads the figures of a device. Returns `None` if there are none or they are not usable, with one warning.
    pub(crate) fn read(&self, key: &Key) -> Option<Content> {
        let path = self.file(key);
        let fault = match self.0.read(&text::file_name(&key.uuid)) {
            Ok(None) => return None,
            Ok(Some(text)) => match text::read(&text, key) {
                Ok(content) => return Some(content),
                Err(UnusableFile::Outdated(reason)) => {
                    log::info!("{}: {reason}; the costs of copies are measured again", path.display());
                    return None;
                }
                Err(UnusableFile::Malformed(reason)) => reason,
            },
            Err(error) => error.to_string(),
        };
        cableway_base::warn_once(&format!("costs/{}", path.display()), || {
            format!("{} is ignored, and the costs of copies are measured again: {fault}", path.display())
        });
        None
    }

    /// As [`kept::Folder::try_lock`].
    pub(crate) fn try_lock(&self) -> io::Result<Option<Lock>> {
        self.0.try_lock()
    }

    /// Writes the costs of a device, and replaces the previous file.
    pub(crate) fn write(&self, lock: &Lock, key: &Key, content: &Content) -> io::Result<()> {
        self.0.write(lock, &text::file_name(&key.uuid), &text::write(key, content))
    }
}
