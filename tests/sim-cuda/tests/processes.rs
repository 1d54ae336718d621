//! Sharing memory and events with another process.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout};

use common::{Session, partner, pattern, start_partner};

/// `CUipcMemHandle` and `CUipcEventHandle`, which are passed by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Handle([u64; 8]);

impl Handle {
    fn of_memory(address: u64) -> Handle {
        let mut handle = Handle([0; 8]);
        ok!(cuIpcGetMemHandle(&raw mut handle, address));
        handle
    }

    fn open(self) -> (i32, u64) {
        let mut address = 0_u64;
        (cu!(cuIpcOpenMemHandle_v2(&raw mut address, self, 1_u32)), address)
    }
}

impl std::fmt::Display for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|word| write!(f, "{word:016x}"))
    }
}

impl std::str::FromStr for Handle {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = [0; 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = u64::from_str_radix(&text[16 * index..16 * index + 16], 16)?;
        }
        Ok(Handle(words))
    }
}

const LEN: usize = 100_000;
const SHARED_EVENT: u32 = 6;

/// Runs both sides of a test: the owner, and its partner with the given words.
fn together(test: &str, words: &str, owner: impl FnOnce(&mut Partner), other: impl FnOnce(&[Handle])) {
    if let Some(words) = partner() {
        let handles: Vec<Handle> = words.split(' ').map(|word| word.parse().expect("a handle")).collect();
        return other(&handles);
    }
    let mut child = start_partner(test, words);
    let stdin = child.stdin.take().expect("piped");
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut partner = Partner { stdin, stdout, said: String::new() };
    owner(&mut partner);
    drop(partner.stdin);
    partner.stdout.read_to_string(&mut partner.said).expect("the partner's output");
    assert!(child.wait().expect("the partner ends").success(), "{}", partner.said);
}

/// The other process, as the owner sees it.
struct Partner {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    said: String,
}

impl Partner {
    /// Waits until it has called [`ready`] or has ended.
    fn wait_until_ready(&mut self) {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).is_ok_and(|len| len > 0) && line.trim_end() != READY {
            self.said.push_str(&line);
            line.clear();
        }
    }

    /// Lets it continue after [`wait_for_owner`].
    fn go_on(&mut self) {
        // It may have failed before.
        let _ = writeln!(self.stdin, "go on");
    }
}

const READY: &str = "PARTNER READY";

fn ready() {
    println!("\n{READY}");
}

fn wait_for_owner() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the owner writes or ends");
}

#[test]
fn memory_is_shared_by_handle() {
    let session = Session::begin();
    let (address, bytes) = (session.alloc(LEN), pattern(LEN, 1));
    session.write(address, &bytes);
    let handle = Handle::of_memory(address);
    assert_eq!(Handle::of_memory(address + 5000), handle, "of the allocation, not the address");
    if partner().is_none() {
        assert_eq!(handle.open().0, 201, "its own memory");
    }
    together(
        "memory_is_shared_by_handle",
        &handle.to_string(),
        |_| {},
        |handles| {
            let (result, mine) = handles[0].open();
            assert_eq!(result, 0);
            assert!(session.read(mine, LEN) == pattern(LEN, 1));
            assert_eq!(handles[0].open(), (0, mine), "counted, not mapped again");
            let mut legacy = 9_u32;
            ok!(cuPointerGetAttribute(&raw mut legacy, 10, mine));
            assert_eq!(legacy, 0);
            let mut again = Handle([0; 8]);
            assert_eq!(cu!(cuIpcGetMemHandle(&raw mut again, mine)), 1);
            assert_eq!(cu!(cuMemFree_v2(mine)), 1);
            session.write(mine, &[9; LEN]);
            ok!(cuIpcCloseMemHandle(mine));
            assert!(session.read(mine, LEN) == [9; LEN]);
            ok!(cuIpcCloseMemHandle(mine));
            assert_eq!(cu!(cuIpcCloseMemHandle(mine)), 1);
            let (mut kind, mut out) = (0_u32, 0_u64);
            assert_eq!(cu!(cuPointerGetAttribute(&raw mut kind, 2, mine)), 1);
            assert_eq!(cu!(cuIpcOpenMemHandle_v2(&raw mut out, handles[0], 0_u32)), 1, "no flags");
            assert_eq!(cu!(cuIpcOpenMemHandle_v2(&raw mut out, Handle([0; 8]), 1_u32)), 1);
        },
    );
    if partner().is_none() {
        assert!(session.read(address, LEN) == [9; LEN], "what the other wrote");
    }
}

#[test]
fn a_mapping_of_freed_memory_never_shows_later_data() {
    let session = Session::begin();
    let address = session.alloc(4 << 20);
    session.write(address, &[1; 64]);
    let owner = |partner: &mut Partner| {
        partner.wait_until_ready();
        ok!(cuMemFree_v2(address));
        let next = session.alloc(4 << 20);
        session.write(next, &[2; 64]);
        partner.go_on();
    };
    together(
        "a_mapping_of_freed_memory_never_shows_later_data",
        &Handle::of_memory(address).to_string(),
        owner,
        |handles| {
            let (result, mine) = handles[0].open();
            assert_eq!(result, 0);
            ready();
            wait_for_owner();
            assert_ne!(session.read(mine, 64), [2; 64]);
            ok!(cuIpcCloseMemHandle(mine));
            assert_eq!(handles[0].open().0, 800, "freed, and a large block");
        },
    );
}

#[test]
fn handles_end_with_their_process() {
    const NAME: &str = "handles_end_with_their_process";
    let session = Session::begin();
    if partner().is_some() {
        let handle = Handle::of_memory(session.alloc(LEN));
        println!("\nHANDLE {handle}");
        return;
    }
    let output = start_partner(NAME, "none").wait_with_output().expect("the partner ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let handle = text.lines().find_map(|line| line.strip_prefix("HANDLE ")).expect("the partner tells its handle");
    assert_eq!(handle.parse::<Handle>().expect("a handle").open().0, 400);
}

#[test]
fn events_are_shared_by_handle() {
    let session = Session::begin();
    let mut event = 0_usize;
    ok!(cuEventCreate(&raw mut event, SHARED_EVENT));
    let mut handle = Handle([0; 8]);
    ok!(cuIpcGetEventHandle(&raw mut handle, event));
    let mut other = handle;
    assert_eq!(cu!(cuIpcGetEventHandle(&raw mut other, session.event())), 400, "not made to be shared");
    let (address, held, word) = (session.alloc(LEN), session.stream(1), session.pinned(64));
    word.fill(0);
    let memory = Handle::of_memory(address);
    // The owner's work is held back until the partner waits.
    ok!(cuStreamWaitValue32_v2(held, word.as_mut_ptr(), 1_u32, 1_u32));
    ok!(cuMemsetD8Async(address, 5_u32, LEN, held));
    ok!(cuEventRecord(event, held));
    let release = || {
        // SAFETY: pinned memory of this test, which the stream reads as a word.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(word.as_ptr().cast_mut().cast()) };
        word.store(1, std::sync::atomic::Ordering::Release);
    };
    if partner().is_some() {
        // This process created the same objects, which it does not use.
        release();
    }
    together(
        "events_are_shared_by_handle",
        &format!("{handle} {memory}"),
        |partner| {
            partner.wait_until_ready();
            assert_eq!(cu!(cuEventQuery(event)), 600);
            release();
        },
        |handles| {
            let (mut mine, stream, seen) = (0_usize, session.stream(1), session.pinned(LEN));
            ok!(cuIpcOpenEventHandle(&raw mut mine, handles[0]));
            let (result, memory) = handles[1].open();
            assert_eq!(result, 0);
            ok!(cuStreamWaitEvent(stream, mine, 0_u32));
            ok!(cuMemcpyDtoHAsync_v2(seen.as_mut_ptr(), memory, LEN, stream));
            assert_eq!(cu!(cuStreamQuery(stream)), 600);
            ready();
            ok!(cuStreamSynchronize(stream));
            assert!(seen.iter().all(|byte| *byte == 5));
            ok!(cuEventSynchronize(mine));
            ok!(cuEventRecord(mine, stream));
            ok!(cuEventSynchronize(mine));
            ok!(cuEventDestroy_v2(mine));
        },
    );
}

/// Makes a handle whose first word is a descriptor that the partner inherits.
fn inherited(descriptor: i32) -> Handle {
    // SAFETY: duplicates a descriptor of this test; the copy is left to the processes to close by ending.
    let copy = unsafe { libc::dup(descriptor) };
    assert!(copy >= 0);
    Handle([copy as u64, 0, 0, 0, 0, 0, 0, 0])
}

#[test]
fn pools_are_shared_by_descriptor() {
    let session = Session::begin();
    // `CUmemPoolProps`: pinned, shared by descriptor, on device 0.
    let mut properties = [0_i32; 22];
    properties[..4].copy_from_slice(&[1, 1, 1, 0]);
    let (mut pool, mut descriptor, mut address) = (0_usize, -1_i32, 0_u64);
    ok!(cuMemPoolCreate(&raw mut pool, properties.as_ptr()));
    ok!(cuMemPoolExportToShareableHandle(&raw mut descriptor, pool, 1, 0_u64));
    ok!(cuMemAllocFromPoolAsync(&raw mut address, LEN, pool, 0_usize));
    session.write(address, &pattern(LEN, 7));
    let mut pointer = Handle([0; 8]);
    ok!(cuMemPoolExportPointer(&raw mut pointer, address));
    together(
        "pools_are_shared_by_descriptor",
        &format!("{} {pointer}", inherited(descriptor)),
        |_| {},
        |handles| {
            let (mut pool, mut mine, mut more, mut pointer) = (0_usize, 0_u64, 0_u64, handles[1]);
            ok!(cuMemPoolImportFromShareableHandle(&raw mut pool, handles[0].0[0] as usize, 1, 0_u64));
            ok!(cuMemPoolImportPointer(&raw mut mine, pool, &raw mut pointer));
            assert!(session.read(mine, LEN) == pattern(LEN, 7));
            session.write(mine, &[3; LEN]);
            assert_eq!(cu!(cuMemAllocFromPoolAsync(&raw mut more, LEN, pool, 0_usize)), 1, "not its owner");
            ok!(cuMemFreeAsync(mine, 0_usize));
            ok!(cuCtxSynchronize());
            ok!(cuMemPoolDestroy(pool));
        },
    );
    if partner().is_none() {
        assert!(session.read(address, LEN) == [3; LEN], "what the other wrote");
    }
}

#[test]
fn mapped_memory_is_shared_by_descriptor() {
    const BYTES: usize = 2 << 20;
    let session = Session::begin();
    let map = |handle: usize| {
        let mut base = 0_u64;
        ok!(cuMemAddressReserve(&raw mut base, BYTES, 0_usize, 0_u64, 0_u64));
        ok!(cuMemMap(base, BYTES, 0_usize, handle, 0_u64));
        let access = [1_i32, 0, 3];
        ok!(cuMemSetAccess(base, BYTES, access.as_ptr(), 1_usize));
        base
    };
    // `CUmemAllocationProp`: pinned, shared by descriptor, on device 0.
    let properties = [1_i32, 1, 1, 0, 0, 0, 0, 0];
    let (mut handle, mut descriptor) = (0_usize, -1_i32);
    ok!(cuMemCreate(&raw mut handle, BYTES, properties.as_ptr(), 0_u64));
    ok!(cuMemExportToShareableHandle(&raw mut descriptor, handle, 1, 0_u64));
    let base = map(handle);
    session.write(base, &pattern(LEN, 7));
    together(
        "mapped_memory_is_shared_by_descriptor",
        &inherited(descriptor).to_string(),
        |_| {},
        |handles| {
            let mut handle = 0_usize;
            ok!(cuMemImportFromShareableHandle(&raw mut handle, handles[0].0[0] as usize, 1));
            let mine = map(handle);
            assert!(session.read(mine, LEN) == pattern(LEN, 7));
            session.write(mine, &[3; LEN]);
        },
    );
    if partner().is_none() {
        assert!(session.read(base, LEN) == [3; LEN], "what the other wrote");
    }
}
