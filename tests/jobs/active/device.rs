//! Active messages between host and device memory.

use std::sync::Arc;

use cableway::{ActiveMessage, BufferKind, DeviceBuffer, DeviceIndex, Devices, Poster, World};
use parking_lot::Mutex;

use super::{Findings, Outcome, content, expect};
use crate::support::{Driver, finish, kinds, libdir_option, role_job, transports};

const SIZES: [usize; 6] = [0, 8, 8116, 8117, 65_536, 1 << 20];

pub(super) fn every_pairing() {
    let folder = Driver::find().folder;
    let folder = folder.to_string_lossy();
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        finish(&mut role_job(2, &[libdir_option(), &folder, "--set", &btl], "am_device")).assert_success();
    }
}

/// Returns the kinds of memory. `None` is memory of the host.
fn places() -> Vec<Option<BufferKind>> {
    std::iter::once(None).chain(kinds().into_iter().map(Some)).collect()
}

/// Allocates device memory with this content. The smallest allocation has a byte.
fn allocate(devices: &Devices, kind: BufferKind, content: &[u8]) -> Result<DeviceBuffer, cableway::DeviceError> {
    let mut memory = DeviceBuffer::new(devices, DeviceIndex(0), kind, content.len().max(1))?;
    memory.copy_from_host(0, content)?;
    Ok(memory)
}

fn read(memory: &DeviceBuffer, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    match memory.copy_to_host(0, &mut bytes) {
        Ok(()) => bytes,
        Err(error) => error.to_string().into_bytes(),
    }
}

/// Rank 0 posts from every kind of memory. The handler of rank 1 allocates the kind of memory that the header names,
/// and receives into it.
pub(super) fn pairings() -> Outcome {
    let world = World::init()?;
    world.devices().initialise()?;
    let findings = Findings::default();
    let (seen, devices) = (findings.clone(), world.devices().clone());
    world.am_handler(1, move |message| land(message, &devices, &seen))?;
    let done = Arc::new(Mutex::new(false));
    let ended = done.clone();
    world.am_handler(2, move |_| *ended.lock() = true)?;
    world.communicator().barrier()?;
    if world.rank() == 1 {
        let expected = places().len() * places().len() * SIZES.len();
        world.progress_until(|| findings.count() == expected);
        findings.check()?;
        world.post_am(0, 2, b"", [0_u8; 0])?;
    } else {
        for (from, to) in places().into_iter().flat_map(|from| (0..places().len()).map(move |to| (from, to))) {
            for len in SIZES {
                post(&world, from, to, len, &findings)?;
            }
        }
        world.progress_until(|| *done.lock());
        world.flush_am();
        findings.check()?;
    }
    Ok(world.communicator().barrier()?)
}

/// Posts a message whose header names the place to land and the length, and checks that its data comes back unchanged.
fn post(world: &World, from: Option<BufferKind>, to: usize, len: usize, findings: &Findings) -> Outcome {
    let header: Vec<u8> = [to as u32, len as u32].into_iter().flat_map(u32::to_le_bytes).collect();
    let (poster, findings, data): (Poster, _, _) = (world.poster(), findings.clone(), content(9, len));
    match from {
        None => poster.post_then(1, 1, &header, data, move |data, result| {
            findings.note(result.is_ok() && data == content(9, len), || format!("{len} bytes of the host changed"));
        })?,
        Some(kind) => {
            let memory = allocate(world.devices(), kind, &data)?;
            poster.post_then(1, 1, &header, memory, move |memory, result| {
                let right = result.is_ok() && read(&memory, len) == content(9, len);
                findings.note(right, || format!("{len} bytes of {kind:?} changed"));
            })?;
        }
    }
    Ok(())
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(u32::MAX, |word| u32::from_le_bytes(*word))
}

fn land(message: ActiveMessage<'_>, devices: &Devices, findings: &Findings) {
    let (bytes, failed, findings) = (message.len(), findings.clone(), findings.clone());
    let words: Vec<usize> = message.header().chunks(4).map(|word| u32_of(word) as usize).collect();
    let (place, len) = (places()[words[0]], words[1]);
    let check = move |found: Vec<u8>, result: Result<u64, cableway::Error>| {
        let right = expect(result.map_err(|error| error.to_string()), Ok(bytes)).is_ok() && found == content(9, len);
        findings.note(right, || format!("{bytes} bytes to {place:?} are damaged"));
    };
    match place {
        None => message.receive(vec![0_u8; bytes as usize], move |mut memory, result| {
            memory.truncate(len);
            check(memory, result);
        }),
        Some(kind) => match allocate(devices, kind, &vec![0xee; bytes as usize]) {
            Ok(memory) => message.receive(memory, move |memory, result| check(read(&memory, len), result)),
            Err(error) => failed.note(false, || format!("no room for {bytes} bytes to {place:?}: {error}")),
        },
    }
}
