//! Forwards the output of ranks line by line, with the rank before each line.

use std::io::{self, PipeReader, Read, Write};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes of the longest line that is forwarded whole.
const LONGEST_LINE: usize = 64 << 10;

#[derive(Clone, Copy)]
pub(super) enum Stream {
    Out,
    Err,
}

/// One stream of one rank.
pub(super) struct Source {
    pub(super) rank: u32,
    pub(super) stream: Stream,
    pub(super) pipe: PipeReader,
}

/// A thread that forwards output until every source has ended, or until it is stopped.
pub(super) struct Tagger {
    thread: JoinHandle<()>,
    stop: io::PipeWriter,
}

impl Tagger {
    pub(super) fn start(sources: Vec<Source>) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || forward(sources, &stopped))?;
        Ok(Tagger { thread, stop })
    }

    /// Forwards the bytes that are in the pipes now and ends, even if a process outside its rank's group holds one open.
    pub(super) fn finish(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            log::error!("output of the ranks is lost: the thread that forwards it panicked");
        }
    }
}

fn forward(sources: Vec<Source>, stopped: &PipeReader) {
    let mut open: Vec<_> = sources.into_iter().map(|source| (source, Line::default())).collect();
    let mut stopping = false;
    while !open.is_empty() {
        let mut fds = vec![PollFd::new(stopped, PollFlags::empty())];
        fds.extend(open.iter().map(|(source, _)| PollFd::new(&source.pipe, PollFlags::IN)));
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, stopping.then_some(&no_time)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return log::error!("output of the ranks is lost: {error}"),
        }
        let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        if stopping && !ready.contains(&true) {
            break;
        }
        stopping = !fds[0].revents().is_empty();
        let mut ready = ready.into_iter();
        open.retain_mut(|(source, line)| !ready.next().unwrap_or(false) || read_some(source, line));
    }
    for (source, mut line) in open {
        line.end(&source);
    }
}

/// Forwards available output of one source. Returns whether more may come.
fn read_some(source: &mut Source, line: &mut Line) -> bool {
    let mut bytes = [0; 16 << 10];
    match source.pipe.read(&mut bytes) {
        Ok(0) => {
            line.end(source);
            false
        }
        // The reader of the launcher's output is gone. Closing the pipe tells the rank.
        Ok(count) => line.add(source, &bytes[..count]).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::Interrupted,
    }
}

/// The beginning of a line whose end has not been read.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    fn add(&mut self, source: &Source, bytes: &[u8]) -> io::Result<()> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.0.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.0.len() >= LONGEST_LINE {
                self.tag(source.rank, &mut whole);
            }
        }
        put_out(source.stream, &whole)
    }

    fn end(&mut self, source: &Source) {
        let mut whole = Vec::new();
        if !self.0.is_empty() {
            self.tag(source.rank, &mut whole);
        }
        // The error cannot be reported: stdout is the stream that failed.
        let _ = put_out(source.stream, &whole);
    }

    fn tag(&mut self, rank: u32, whole: &mut Vec<u8>) {
        whole.extend_from_slice(format!("[{rank}] ").as_bytes());
        whole.append(&mut self.0);
        if !whole.ends_with(b"\n") {
            whole.push(b'\n');
        }
    }
}

fn put_out(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match stream {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        Stream::Err => io::stderr().lock().write_all(bytes),
    }
}
