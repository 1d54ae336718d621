//! Words in host memory that streams of two processes share.
//!
//! Each process has a board for each context in which it receives: a file of words that peers of the node map. A prepared
//! operation uses one line of its receiver's board. The first line identifies the board.
//!
//! | line | bytes 0 to 7 | bytes 8 to 15 | bytes 64 to 71 |
//! |---|---|---|---|
//! | 0 | cookie | cookie | |
//! | 1 to 511 | *ready*, written by the receiver, cleared by the sender | | *done*, written by the sender, cleared by the receiver |

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use cableway_btl::process::{Found, Process};
use cableway_common_cuda::{ProgramStream, StreamWords, WordsFile};
use parking_lot::Mutex;

use super::plan::Flag;
use super::wire::{Obstacle, Place};

/// Words of a line: 128 bytes, so that the two flags are in different cache lines.
const LINE: usize = 16;
/// The word of *done* in a line.
const DONE: usize = 8;
/// Lines of a board.
const LINES: usize = 512;

const _: () = assert!(LINE * 8 == 128 && DONE * 8 == 64);

/// The boards that this process uses. They stay mapped, because unmapping may wait for streams.
#[derive(Default)]
pub(super) struct Boards {
    own: Mutex<Vec<Arc<OwnBoard>>>,
    peers: Mutex<Vec<PeerBoard>>,
}

/// A board of this process.
struct OwnBoard {
    words: Arc<StreamWords>,
    file: WordsFile,
    cookie: [u64; 2],
    used: Mutex<Vec<bool>>,
}

struct PeerBoard {
    process: Process,
    descriptor: u32,
    cookie: [u64; 2],
    words: Arc<StreamWords>,
}

/// The flags of one operation.
#[derive(Clone)]
pub(super) struct Flags {
    words: Arc<StreamWords>,
    line: usize,
}

/// A line of this process's board, which is free again when the value is dropped.
pub(super) struct Line {
    board: Arc<OwnBoard>,
    line: usize,
}

impl Boards {
    /// Takes a free line of a board of a stream's context, if there is one.
    pub(super) fn take(&self, program: &ProgramStream) -> Option<Line> {
        let own = self.own.lock();
        own.iter().filter(|board| program.shares_context(&board.words)).find_map(OwnBoard::take)
    }

    /// Makes a board for a stream's context, and takes a line of it. Registers memory with the driver.
    pub(super) fn make(&self, program: &ProgramStream) -> Result<Line, Obstacle> {
        let board = OwnBoard::new(program)?;
        self.own.lock().push(board.clone());
        OwnBoard::take(&board).ok_or(Obstacle::NoWords)
    }

    /// Maps the flags of a peer's offer into a stream's context.
    pub(super) fn flags(&self, program: &ProgramStream, place: &Place) -> Result<Flags, Obstacle> {
        let line = place.line as usize;
        if !(1..LINES).contains(&line) {
            return Err(Obstacle::NoWords);
        }
        let mut peers = self.peers.lock();
        let is_it = |board: &&PeerBoard| {
            (board.process, board.descriptor, board.cookie) == (place.process, place.descriptor, place.cookie)
                && program.shares_context(&board.words)
        };
        if let Some(board) = peers.iter().find(is_it) {
            return Ok(Flags { words: board.words.clone(), line });
        }
        let words = Arc::new(open(program, place)?);
        let Place { process, descriptor, cookie, .. } = *place;
        peers.push(PeerBoard { process, descriptor, cookie, words: words.clone() });
        Ok(Flags { words, line })
    }
}

fn open(program: &ProgramStream, place: &Place) -> Result<StreamWords, Obstacle> {
    // The watch keeps the process's number from being reused meanwhile.
    let Found::Alive(_watch) = place.process.find(&Process::own()) else { return Err(Obstacle::OtherNode) };
    let opened = WordsFile::open(place.process.pid(), place.descriptor, LINES * LINE);
    let file = opened.map_err(|error| {
        log::info!("the words of a peer's prepared operations cannot be opened: {error}");
        Obstacle::OtherNode
    })?;
    let words = program.shared_words(&file).map_err(|error| {
        log::info!("the words of a peer's prepared operations cannot be mapped: {error}");
        Obstacle::NoWords
    })?;
    if [words.load(0), words.load(1)] == place.cookie { Ok(words) } else { Err(Obstacle::NoWords) }
}

impl OwnBoard {
    fn new(program: &ProgramStream) -> Result<Arc<OwnBoard>, Obstacle> {
        let refused = |what: &dyn std::fmt::Display| {
            log::info!("words for prepared operations cannot be shared: {what}");
            Obstacle::NoWords
        };
        let file = WordsFile::new(LINES * LINE).map_err(|error| refused(&error))?;
        let words = program.shared_words(&file).map_err(|error| refused(&error))?;
        let cookie = [(); 2].map(|()| RandomState::new().build_hasher().finish());
        (0..).zip(cookie).for_each(|(word, value)| words.store(word, value));
        let mut used = vec![false; LINES];
        used[0] = true;
        Ok(Arc::new(OwnBoard { words: Arc::new(words), file, cookie, used: Mutex::new(used) }))
    }

    fn take(board: &Arc<OwnBoard>) -> Option<Line> {
        let mut used = board.used.lock();
        let line = used.iter().position(|used| !used)?;
        used[line] = true;
        let taken = Line { board: board.clone(), line };
        // Its last users have passed it.
        let flags = taken.flags();
        [Flag::Ready, Flag::Done].into_iter().for_each(|flag| flags.words.store(flags.word(flag), 0));
        Some(taken)
    }
}

impl Line {
    pub(super) fn flags(&self) -> Flags {
        Flags { words: self.board.words.clone(), line: self.line }
    }

    /// Returns what a peer needs to find the line: the descriptor, the cookie and the number.
    pub(super) fn name(&self) -> (u32, [u64; 2], u32) {
        let descriptor = self.board.file.as_fd().as_raw_fd().unsigned_abs();
        (descriptor, self.board.cookie, self.line as u32)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.board.used.lock()[self.line] = false;
    }
}

impl Flags {
    fn word(&self, flag: Flag) -> usize {
        self.line * LINE + if flag == Flag::Ready { 0 } else { DONE }
    }

    /// Returns the address of a flag as the devices of this process see it.
    pub(super) fn address(&self, flag: Flag) -> u64 {
        self.words.device_address(self.word(flag))
    }

    /// Raises a flag by the CPU, for a stream that must wait no longer.
    pub(super) fn raise(&self, flag: Flag) {
        self.words.store(self.word(flag), 1);
    }
}
