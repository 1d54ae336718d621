//! Keeps measured figures in files of the user's cache, and lets only one process of a node measure at a time.
//!
//! Nodes often share home folders. So the lock is named after the node, and a file after what its figures hold for.
//! Containers on one node may have different node names and thus different locks. So each writer writes a new file and
//! then replaces the old one. A reader checks that the file belongs to this user, and that no other user can write it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

/// Upper limit of a valid file's size.
const MOST_BYTES: u64 = 64 << 10;
/// The suffix of files that are being written.
const NEW: &str = "new";
/// The age from which a file that was being written counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(60);

/// The folder that keeps figures.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// The lock. No other process of this node and user holds it. The end of the process releases it.
pub struct Lock {
    _file: File,
}

impl Folder {
    /// Returns the folder that the parameter `costs_folder` names, else the user's default folder. Returns `None` if
    /// there is neither.
    pub fn new(parameter: &str) -> Option<Folder> {
        if !parameter.is_empty() {
            return Some(Folder(parameter.into()));
        }
        let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(Folder(caches.join("cableway/costs")))
    }

    /// Returns the path of a file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the text of a file, or `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read, is no regular file, is too long, belongs to another user, or others can write it.
    pub fn read(&self, name: &str) -> io::Result<Option<String>> {
        load(&self.file(name))
    }

    /// Creates the folder if necessary and takes the lock. Returns `None` if another process holds it.
    ///
    /// # Errors
    /// The folder cannot be created, belongs to another user, or others can write it.
    pub fn try_lock(&self) -> io::Result<Option<Lock>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        check_owner(&self.0.metadata()?, "its folder")?;
        let path = self.0.join(format!("lock-{}", node()));
        let file = options().read(true).write(true).create(true).truncate(false).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a file, and replaces the previous one.
    ///
    /// # Errors
    /// The file cannot be written. The previous one remains then.
    pub fn write(&self, _lock: &Lock, name: &str, text: &str) -> io::Result<()> {
        let path = self.file(name);
        self.clear(&path);
        let mut number = [0_u8; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let new = path.with_extension(format!("{:016x}.{NEW}", u64::from_ne_bytes(number)));
        let written = options()
            .write(true)
            .create_new(true)
            .open(&new)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&new, &path));
        written.inspect_err(|_| drop(std::fs::remove_file(&new)))
    }

    /// Removes the unfinished files of processes that ended while they wrote this file.
    fn clear(&self, path: &Path) {
        let of_it =
            |name: &str| path.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| name.starts_with(stem));
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let new = name.to_str().is_some_and(|name| of_it(name) && name.ends_with(NEW));
            let written = entry.metadata().and_then(|metadata| metadata.modified());
            if new && written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Do not follow a link that another user may have placed there, and do not block on a pipe.
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Returns the text of a file, or `None` if it does not exist.
fn load(path: &Path) -> io::Result<Option<String>> {
    let mut file = match options().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(io::Error::other("it is not a regular file"));
    }
    check_owner(&metadata, "it")?;
    let mut text = String::new();
    (&mut file).take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Refuses paths that other users own or can write.
fn check_owner(metadata: &std::fs::Metadata, what: &str) -> io::Result<()> {
    const OTHERS_WRITE: u32 = 0o022;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("{what} belongs to another user")));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::other(format!("{what} can be written by other users")));
    }
    Ok(())
}

/// Returns the name of this node in a form that suits file names.
pub fn node() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    use super::*;

    const NAME: &str = "figures.txt";

    /// A temporary folder, removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> (Scratch, Folder) {
            let path = std::env::temp_dir().join(format!("cableway-kept-{name}-{}", std::process::id()));
            let folder = Folder::new(path.join("a/b").to_str().unwrap()).unwrap();
            (Scratch(path), folder)
        }
    }

    fn read(folder: &Folder) -> Option<String> {
        folder.read(NAME).ok().flatten()
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_one_holds_the_lock_and_files_are_replaced() {
        let (_scratch, folder) = Scratch::new("lock");
        assert_eq!(read(&folder), None, "nothing is there");
        assert!(!folder.0.exists(), "who reads makes nothing");
        let lock = folder.try_lock().unwrap().expect("nobody else has it");
        assert!(folder.try_lock().unwrap().is_none(), "taken");
        // An abandoned temporary file, and one that another process is writing.
        let [left, others] = ["00.new", "01.new"].map(|name| folder.file(NAME).with_extension(name));
        let long_ago = SystemTime::now() - 2 * ABANDONED;
        File::create(&left).unwrap().set_modified(long_ago).unwrap();
        File::create(&others).unwrap();
        for nanoseconds in ["1500", "1600"] {
            folder.write(&lock, NAME, nanoseconds).unwrap();
            assert_eq!(read(&folder).as_deref(), Some(nanoseconds));
        }
        let files: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(files.len() == 3 && !left.exists() && others.exists(), "{files:?}");
        let mode = std::fs::metadata(folder.file(NAME)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(lock);
        assert!(folder.try_lock().unwrap().is_some());
    }

    /// Writers with separate locks, as in containers.
    #[test]
    fn one_of_several_written_files_stays() {
        let (_scratch, folder) = Scratch::new("several");
        let lock = &folder.try_lock().unwrap().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let folder = &folder;
                scope.spawn(move || {
                    for round in 1..50 {
                        let text = (1000 * writer + round).to_string();
                        folder.write(lock, NAME, &text).expect("nobody is in the way");
                    }
                });
            }
        });
        let last: u64 = read(&folder).unwrap().parse().unwrap();
        assert_eq!(last % 1000, 49, "one of the last");
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "the lock and the file");
    }

    #[test]
    fn files_that_others_can_write_are_ignored() {
        let (_scratch, folder) = Scratch::new("mode");
        let lock = folder.try_lock().unwrap().unwrap();
        let file = folder.file(NAME);
        folder.write(&lock, NAME, "1500").unwrap();
        for mode in [0o622, 0o606, 0o666] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&folder), None, "{mode:o}");
        }
        // The file is replaced nevertheless.
        folder.write(&lock, NAME, "1500").unwrap();
        assert!(read(&folder).is_some());
        let elsewhere = folder.0.join("elsewhere");
        std::fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert_eq!(read(&folder), None, "a link");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, vec![b'#'; 1 << 20]).unwrap();
        assert_eq!(read(&folder), None, "too long");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(read(&folder), None, "a folder");
        assert!(folder.write(&lock, NAME, "1500").is_err());
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(folder.try_lock().is_err(), "a folder that others can write");
    }

    /// Root can give a file to another user. Such a file is ignored.
    #[test]
    fn files_of_other_users_are_ignored() {
        let (_scratch, folder) = Scratch::new("owner");
        let lock = folder.try_lock().unwrap().unwrap();
        folder.write(&lock, NAME, "1500").unwrap();
        match std::os::unix::fs::chown(folder.file(NAME), Some(4242), None) {
            Ok(()) => assert_eq!(read(&folder), None),
            Err(error) => println!("skipped: files cannot be given away here: {error}"),
        }
    }
}
