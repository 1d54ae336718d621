//! Words of host memory that streams exchange with the CPU, or with streams of other processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway_base::fork::Unshared;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use super::program_stream::ProgramStream;
use crate::copies::CopyQueue;
use crate::driver::Failure;
use crate::error::DeviceError;
use crate::memory::HostWords;

/// The driver registers whole pages.
const PAGE: usize = 4096;

/// Without these seals another process could make accesses here fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The type that fstatfs(2) reports for a memfd of ordinary pages (`TMPFS_MAGIC` in linux/magic.h).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// A file of words that processes of one node share.
pub struct WordsFile {
    file: Unshared<OwnedFd>,
    pub(super) count: usize,
}

impl WordsFile {
    /// Makes a file of `count` words of zero.
    ///
    /// # Errors
    /// The system refused.
    pub fn new(count: usize) -> io::Result<WordsFile> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = Unshared::open(|| rustix::fs::memfd_create("cableway-stream-words", flags))?;
        rustix::fs::ftruncate(&*file, len_of(count) as u64)?;
        rustix::fs::fcntl_add_seals(&*file, SEALS)?;
        Ok(WordsFile { file, count })
    }

    /// Opens a file of another process by its number and its descriptor. Both may mean something else by now.
    ///
    /// # Errors
    /// As [`of_peer`](Self::of_peer).
    pub fn open(process: u32, descriptor: u32, count: usize) -> io::Result<WordsFile> {
        let path = format!("/proc/{process}/fd/{descriptor}");
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        WordsFile::of_peer(rustix::fs::open(path, flags, Mode::empty())?, count)
    }

    /// Accepts a file of another process, if it is one as [`new`](Self::new) makes it with this count.
    ///
    /// # Errors
    /// It is not, or the system refused.
    pub fn of_peer(file: OwnedFd, count: usize) -> io::Result<WordsFile> {
        let invalid = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return invalid("the peer's file of words is not sealed");
        }
        // A memfd of huge pages can be sealed as well, but an access to it faults if no huge page is free.
        if rustix::fs::fstatfs(&file)?.f_type != TMPFS_MAGIC {
            return invalid("the peer's file of words is not in a tmpfs");
        }
        if rustix::fs::fstat(&file)?.st_size != len_of(count) as i64 {
            return invalid("the peer's file of words has another size");
        }
        Ok(WordsFile { file: Unshared::new(file), count })
    }

    /// Returns the bytes that are mapped.
    pub(super) fn len(&self) -> usize {
        len_of(self.count)
    }
}

impl AsFd for WordsFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl ProgramStream {
    /// Allocates words of zero that this stream and the CPU exchange.
    ///
    /// # Errors
    /// The driver does not register host memory.
    pub fn words(&self, count: usize) -> Result<StreamWords, DeviceError> {
        let context = &self.queue.workspace.context;
        let made = context.enter().and_then(|_scope| HostWords::new(context.driver, len_of(count)));
        let words = made.map_err(|failure| self.error(failure))?;
        Ok(StreamWords { queue: self.queue.clone(), words, count })
    }

    /// Maps words that processes share, so that streams of this context and the CPU access them.
    ///
    /// # Errors
    /// The system does not map the file, or the driver does not register it.
    pub fn shared_words(&self, file: &WordsFile) -> Result<StreamWords, DeviceError> {
        register(&self.queue, file).map_err(|failure| self.error(failure))
    }

    /// Checks whether words were allocated for a stream of the same context.
    pub fn shares_context(&self, words: &StreamWords) -> bool {
        words.is_of(&self.queue)
    }
}

/// Maps words that processes share, so that a context and the CPU access them.
pub(super) fn register(queue: &Arc<CopyQueue>, file: &WordsFile) -> Result<StreamWords, Failure> {
    let context = &queue.workspace.context;
    let _scope = context.enter()?;
    let words = HostWords::of_file(context.driver, file.as_fd(), file.len())?;
    Ok(StreamWords { queue: queue.clone(), words, count: file.count })
}

/// Returns the bytes of so many words.
fn len_of(count: usize) -> usize {
    (count.max(1) * size_of::<AtomicU64>()).next_multiple_of(PAGE)
}

/// Words of 64 bits in host memory that a device accesses, too. Reads and writes by the CPU are atomic.
pub struct StreamWords {
    queue: Arc<CopyQueue>,
    words: HostWords,
    count: usize,
}

impl StreamWords {
    /// Reads a word. What the stream did before it wrote the word is visible after that.
    ///
    /// # Panics
    /// There is no such word.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Writes a word, after all that this thread did before.
    ///
    /// # Panics
    /// There is no such word.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Asks the driver whether streams and kernels may still write to the words.
    ///
    /// # Errors
    /// The context is destroyed, or a kernel has faulted there.
    pub fn check(&self) -> Result<(), DeviceError> {
        let workspace = &self.queue.workspace;
        let of_context = || format!("context {}", workspace.context.id);
        workspace.check().map_err(|failure| workspace.context.error(failure, of_context()))
    }

    /// Returns the address of a word as the device sees it.
    ///
    /// # Panics
    /// There is no such word.
    pub fn device_address(&self, index: usize) -> u64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        self.words.device() + (index * size_of::<AtomicU64>()) as u64
    }

    /// Returns the address of a word as the CPU sees it. Words that are accessed through it are not atomic.
    ///
    /// # Panics
    /// There is no such word.
    pub fn address(&self, index: usize) -> *mut u8 {
        self.word(index).as_ptr().cast()
    }

    pub(super) fn is_of(&self, queue: &Arc<CopyQueue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: within the memory, which is aligned to a page, lives as long as `self` and is accessed atomically.
        unsafe { AtomicU64::from_ptr(self.words.address::<u64>().add(index)) }
    }
}

impl Drop for StreamWords {
    /// The stream has passed its operations on them, or its context is destroyed.
    fn drop(&mut self) {
        let context = &self.queue.workspace.context;
        if let Ok(_scope) = context.enter() {
            self.words.destroy(context.driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sealed_file_of_the_right_size_is_accepted() {
        let made = WordsFile::new(1000).unwrap();
        let again = || made.as_fd().try_clone_to_owned().unwrap();
        assert!(WordsFile::of_peer(again(), 1000).is_ok());
        assert!(WordsFile::of_peer(again(), 4000).is_err());
        let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, len_of(1000) as u64).unwrap();
        assert!(WordsFile::of_peer(unsealed, 1000).is_err());
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(WordsFile::of_peer(plain.into(), 1000).is_err());
    }
}
