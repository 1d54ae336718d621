//! Messages whose length does not fit in 32 bits.

use std::error::Error;
use std::os::fd::AsFd;
use std::ptr::null_mut;

use cableway::{EngineError, RawBuffer, World};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::support::{Role, Test, finish, role_job};

pub(crate) const TESTS: &[Test] = &[
    ("huge::a_message_of_five_gib_arrives", || {
        run("btl=sm", "five_gib");
        run("btl=tcp", "five_gib");
    }),
    ("huge::a_truncated_message_reports_its_length_of_five_gib", || {
        run("btl=sm", "five_gib_truncated");
        run("btl=tcp", "five_gib_truncated");
    }),
];

pub(crate) const ROLES: &[Role] = &[("five_gib", five_gib), ("five_gib_truncated", five_gib_truncated)];

type Outcome = Result<(), Box<dyn Error>>;

fn run(btl: &str, role: &str) {
    finish(&mut role_job(2, &["--set", btl], role)).assert_success();
}

const PIECE: usize = 32 << 20;
const PIECES: usize = 160;
const TAIL: usize = 4096;
const LEN: usize = PIECE * PIECES + TAIL;
const _: () = assert!(LEN > 5 << 30);

/// A range of `LEN` bytes whose pieces are all the same memory, except the tail. So it needs only the memory of one
/// piece.
struct Range {
    address: *mut u8,
}

impl Range {
    fn new() -> Result<Range, Box<dyn Error>> {
        let piece = rustix::fs::memfd_create("piece", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&piece, PIECE as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, over parts of which others are laid; nobody else knows of it.
        unsafe {
            let whole = rustix::mm::mmap_anonymous(null_mut(), LEN, access, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
            for index in 0..PIECES {
                let at = whole.cast::<u8>().add(index * PIECE).cast();
                rustix::mm::mmap(at, PIECE, access, MapFlags::SHARED | MapFlags::FIXED, piece.as_fd(), 0)?;
            }
            Ok(Range { address: whole.cast() })
        }
    }

    fn bytes(&mut self, from: usize, len: usize) -> &mut [u8] {
        assert!(from + len <= LEN);
        // SAFETY: within the mapping, which is never unmapped; overlapping borrows are not made.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(from), len) }
    }

    fn buffer(&mut self) -> RawBuffer<'_> {
        // SAFETY: the mapping stays, and is borrowed meanwhile.
        unsafe { RawBuffer::new(self.address.cast(), LEN as u64) }
    }
}

fn fill(bytes: &mut [u8], seed: usize) {
    bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 7 + (index >> 8) + seed) as u8);
}

fn five_gib() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let mut range = Range::new()?;
    if world.rank() == 0 {
        fill(range.bytes(0, PIECE), 1);
        fill(range.bytes(LEN - TAIL, TAIL), 2);
        return Ok(on.send(&range.buffer(), 1, 0)?);
    }
    let status = on.recv(&mut range.buffer(), 0, 0)?;
    let (mut piece, mut tail) = (vec![0; PIECE], vec![0; TAIL]);
    fill(&mut piece, 1);
    fill(&mut tail, 2);
    let right = status.bytes == LEN as u64 && *range.bytes(0, PIECE) == piece && *range.bytes(LEN - TAIL, TAIL) == tail;
    if right { Ok(()) } else { Err(format!("the message came damaged: {status:?}").into()) }
}

fn five_gib_truncated() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    if world.rank() == 0 {
        return Ok(on.ssend(&Range::new()?.buffer(), 1, 0)?);
    }
    let mut room = vec![1_u8; 1 << 20];
    let error = on.recv(&mut room, 0, 0).err().ok_or("nothing was truncated")?;
    match error.engine_error() {
        Some(&EngineError::Truncated { sent, capacity: 1_048_576, .. }) if sent == LEN as u64 => Ok(()),
        _ => Err(error.into()),
    }
}
