//! The buffers of a rank: where they live, how a message lies in them, and how the CPU gets at them.

use std::fmt;
use std::sync::Arc;

use cableway::{BufferKind, Datatype, DeviceBuffer, DeviceIndex, Layout, Predefined, RawBuffer, World, parse_size};
use clap::ValueEnum;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::pattern::{self, Wrong};
use crate::cli::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemoryKind {
    /// Ordinary host memory
    Host,
    /// Page-locked host memory
    Pinned,
    /// Device memory
    Device,
    /// Device memory of the default stream-ordered pool
    Pool,
    /// Device memory of a pool that was made to be shared with other processes
    PoolShared,
    /// Device memory of the virtual memory management calls, made to be shared with other processes
    Vmm,
    /// The same, not made to be shared
    VmmPrivate,
    /// The same, made to be shared, in many small pieces
    VmmPieces,
    /// Memory that migrates between device and host
    Managed,
}

impl MemoryKind {
    fn on_device(self) -> Option<BufferKind> {
        match self {
            MemoryKind::Host => None,
            MemoryKind::Pinned => Some(BufferKind::Pinned),
            MemoryKind::Device => Some(BufferKind::Device),
            MemoryKind::Pool => Some(BufferKind::Pool),
            MemoryKind::PoolShared => Some(BufferKind::PoolShared),
            MemoryKind::Vmm => Some(BufferKind::Vmm),
            MemoryKind::VmmPrivate => Some(BufferKind::VmmPrivate),
            MemoryKind::VmmPieces => Some(BufferKind::VmmPieces),
            MemoryKind::Managed => Some(BufferKind::Managed),
        }
    }
}

/// Which device each rank uses, where one uses any.
pub(crate) struct Devices {
    pub(crate) index: [Option<DeviceIndex>; 2],
    pub(crate) simulated: bool,
}

/// `wanted` names rank 0's and rank 1's; without a name rank 1 takes the second device, if there is one.
pub(crate) fn devices(world: &World, kinds: [MemoryKind; 2], wanted: [Option<u32>; 2]) -> Result<Devices, Failure> {
    if kinds == [MemoryKind::Host; 2] {
        return Ok(Devices { index: [None; 2], simulated: false });
    }
    let failed = |error| Failure::failed(1, format!("no device memory here: {error}"));
    world.devices().initialise().map_err(failed)?;
    let facts = world.devices().facts().map_err(failed)?;
    let count = facts.devices.len();
    let mut index = [None; 2];
    for (rank, kind) in kinds.into_iter().enumerate() {
        if kind == MemoryKind::Host {
            continue;
        }
        let number = wanted[rank].unwrap_or(if count > 1 { rank as u32 } else { 0 });
        if number as usize >= count {
            return Err(Failure::usage(format!("there is no device {number}: this machine has {count}, from 0 on")));
        }
        index[rank] = Some(DeviceIndex(number));
    }
    Ok(Devices { index, simulated: facts.simulated })
}

/// How a message lies in memory.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Contiguous,
    Blocks(Blocks),
}

/// An element of a datatype of blocks that are apart.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// As the option gives it.
    name: String,
    layout: Layout,
    /// Each block's offset and length, in bytes, ascending.
    blocks: Arc<[(u64, u64)]>,
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Reads `vector:BLOCK:STRIDE:COUNT` and `indexed:BLOCK:COUNT:SEED`.
pub(crate) fn parse_datatype(text: &str) -> Result<Blocks, String> {
    let expected = || {
        "vector:BLOCK:STRIDE:COUNT or indexed:BLOCK:COUNT:SEED is expected, such as vector:64:256:16 or \
         indexed:8:1000:1"
            .to_owned()
    };
    let parts: Vec<_> = text.split(':').collect();
    let [kind, block, second, third] = parts[..] else { return Err(expected()) };
    let block = parse_size(block)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| expected());
    let stride = if kind == "vector" { parse_size(second)? } else { 0 };
    let (count, seed) = match kind {
        "vector" => (number(third)?, 0),
        "indexed" => (number(second)?, number(third)?),
        _ => return Err(expected()),
    };
    /// What a process lists in a moment.
    const MOST: u64 = 1 << 24;
    if block == 0 || count == 0 {
        return Err("a datatype without data cannot be sent: block and count begin at 1".to_owned());
    }
    if count > MOST {
        return Err(format!("{count} blocks are too many: at most {MOST} make one of a message's elements"));
    }
    let signed = |value: u64| i64::try_from(value).map_err(|_| format!("{value} does not fit"));
    let bytes = Predefined::Byte.datatype();
    let (offsets, datatype): (Vec<u64>, _) = if kind == "vector" {
        if stride < block {
            return Err(format!("blocks of {block} bytes, {stride} apart, overlap and cannot be received"));
        }
        let offsets = (0..count).map(|index| index.saturating_mul(stride)).collect();
        (offsets, Datatype::vector(signed(count)?, signed(block)?, signed(stride)?, &bytes))
    } else {
        let offsets: Vec<u64> = scattered(block, seed).take(count as usize).collect();
        let places = offsets.iter().map(|offset| signed(*offset)).collect::<Result<Vec<i64>, _>>()?;
        (offsets, Datatype::hindexed_block(signed(block)?, &places, &bytes))
    };
    let layout = datatype.map_err(|error| error.to_string())?.commit();
    let blocks = offsets.into_iter().map(|offset| (offset, block)).collect();
    Ok(Blocks { name: text.to_owned(), layout, blocks })
}

/// Where blocks begin with gaps of one to three blocks between them, as good as random.
fn scattered(block: u64, seed: u64) -> impl Iterator<Item = u64> {
    let (mut state, mut at) = (seed, 0_u64);
    std::iter::from_fn(move || {
        // Knuth's linear congruential generator, of which the high bits are good.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = at;
        at = at.saturating_add(block.saturating_mul(2 + (state >> 33) % 3));
        Some(offset)
    })
}

impl Blocks {
    fn size(&self) -> u64 {
        self.layout.size()
    }

    fn extent(&self) -> u64 {
        self.layout.true_extent()
    }
}

impl Shape {
    /// Sizes that whole elements have, none twice.
    pub(crate) fn round_up(&self, sizes: &[u64]) -> Vec<u64> {
        let Shape::Blocks(blocks) = self else { return sizes.to_vec() };
        let mut sizes: Vec<_> = sizes.iter().map(|size| size.next_multiple_of(blocks.size())).collect();
        sizes.dedup();
        sizes
    }

    /// Bytes of memory from the first to the last of a message's, gaps included.
    fn span(&self, size: u64) -> usize {
        let span = match self {
            Shape::Contiguous => size,
            Shape::Blocks(blocks) => size / blocks.size() * blocks.extent(),
        };
        usize::try_from(span).unwrap_or(usize::MAX)
    }

    /// The pieces of a message: offset in memory, length.
    fn pieces(&self, size: u64) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        let Shape::Blocks(blocks) = self else {
            return Box::new((size != 0).then_some((0, size as usize)).into_iter());
        };
        let extent = blocks.extent();
        Box::new((0..size / blocks.size()).flat_map(move |element| {
            let piece = move |&(offset, len): &(u64, u64)| ((element * extent + offset) as usize, len as usize);
            blocks.blocks.iter().map(piece)
        }))
    }
}

/// One page, so that buffers begin at one.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

enum Storage {
    Host(Vec<Page>),
    Device(DeviceBuffer),
}

/// Room for the messages of one direction, each in a slot of its own size.
pub(crate) struct Memory {
    storage: Storage,
    shape: Shape,
    /// What the CPU prepares for a device, and looks at from it.
    staging: Vec<u8>,
}

/// What lies between and in pieces before a message is received.
const POISON: u8 = 0xa5;

impl Memory {
    pub(crate) fn new(
        world: &World,
        kind: MemoryKind,
        device: Option<DeviceIndex>,
        shape: Shape,
        bytes: u64,
    ) -> Result<Self, Failure> {
        let len = shape.span(bytes).max(1);
        let storage = match (kind.on_device(), device) {
            (Some(kind), Some(device)) => {
                let buffer = DeviceBuffer::new(world.devices(), device, kind, len);
                Storage::Device(buffer.map_err(|error| Failure::failed(1, error))?)
            }
            _ => Storage::Host(vec![Page([0; 4096]); len.div_ceil(size_of::<Page>())]),
        };
        Ok(Memory { storage, shape, staging: Vec::new() })
    }

    /// The message of `size` bytes in `slot`, to be sent.
    pub(crate) fn message(&self, slot: u32, size: u64) -> RawBuffer<'_> {
        // SAFETY: the memory is not written to as long as `self` is borrowed.
        unsafe { self.view(slot, size) }
    }

    /// `count` messages to be sent at a time: a slot each, or all the first one.
    pub(crate) fn messages(&self, count: u32, size: u64, shared: bool) -> Vec<RawBuffer<'_>> {
        (0..count).map(|slot| self.message(if shared { 0 } else { slot }, size)).collect()
    }

    /// Room for `count` messages at a time: in a slot each, or all in the first one, where nobody will look.
    pub(crate) fn rooms(&mut self, count: u32, size: u64, shared: bool) -> Vec<RawBuffer<'_>> {
        let slot = |number| if shared { 0 } else { number };
        // SAFETY: the memory is borrowed exclusively. Slots do not overlap; where one is shared, its bytes, of which any
        // are valid, are looked at by nobody.
        (0..count).map(|number| unsafe { self.view(slot(number), size) }).collect()
    }

    /// # Safety
    /// As [`RawBuffer::new`] says about access; the memory itself lives as long as `self`.
    unsafe fn view(&self, slot: u32, size: u64) -> RawBuffer<'_> {
        let address = self.address(slot, size).cast();
        // SAFETY: within the allocation, and the caller's promise.
        unsafe {
            match &self.shape {
                Shape::Contiguous => RawBuffer::new(address, size),
                Shape::Blocks(blocks) => RawBuffer::typed(address, size / blocks.size(), &blocks.layout),
            }
        }
    }

    fn address(&self, slot: u32, size: u64) -> *mut u8 {
        let (base, len) = match &self.storage {
            Storage::Host(pages) => (pages.as_ptr().cast::<u8>().cast_mut(), size_of_val(&pages[..])),
            Storage::Device(buffer) => (buffer.as_device_ptr(), buffer.len()),
        };
        let range = self.slot(slot, size);
        assert!(range.end <= len, "slot {slot} for {size} bytes ends beyond the buffer of {len}");
        base.wrapping_add(range.start)
    }

    fn slot(&self, slot: u32, size: u64) -> std::ops::Range<usize> {
        let span = self.shape.span(size);
        let start = slot as usize * span;
        start..start + span
    }

    /// Makes the message in `slot` that of `number`. For device memory by one copy from ordinary host memory, whose end
    /// the driver orders before work in the default stream only, as a program's own `cudaMemcpy` would be.
    pub(crate) fn fill(&mut self, slot: u32, size: u64, number: u64) -> Result<(), Failure> {
        let shape = self.shape.clone();
        self.change(slot, size, |bytes| {
            let mut at = 0;
            for (offset, len) in shape.pieces(size) {
                pattern::fill(&mut bytes[offset..offset + len], number, at);
                at += len as u64;
            }
        })
    }

    /// Makes the message in `slot` none.
    pub(crate) fn poison(&mut self, slot: u32, size: u64) -> Result<(), Failure> {
        self.change(slot, size, |bytes| bytes.fill(POISON))
    }

    fn change(&mut self, slot: u32, size: u64, change: impl FnOnce(&mut [u8])) -> Result<(), Failure> {
        let range = self.slot(slot, size);
        match &mut self.storage {
            Storage::Host(pages) => change(&mut pages.as_mut_bytes()[range]),
            Storage::Device(buffer) => {
                self.staging.clear();
                self.staging.resize(range.len(), POISON);
                change(&mut self.staging);
                buffer.copy_from_host(range.start, &self.staging).map_err(|error| Failure::failed(1, error))?;
            }
        }
        Ok(())
    }

    /// What is wrong in `slot` with message `number`, which was received over poison.
    pub(crate) fn verify(&mut self, slot: u32, size: u64, number: u64) -> Result<Option<Fault>, Failure> {
        let range = self.slot(slot, size);
        let bytes = match &self.storage {
            Storage::Host(pages) => &pages.as_bytes()[range],
            Storage::Device(buffer) => {
                self.staging.resize(range.len(), 0);
                buffer.copy_to_host(range.start, &mut self.staging).map_err(|error| Failure::failed(1, error))?;
                &self.staging[..]
            }
        };
        let (mut at, mut gap) = (0, 0);
        for (offset, len) in self.shape.pieces(size) {
            if let Some(touched) = bytes[gap..offset].iter().position(|&byte| byte != POISON) {
                return Ok(Some(Fault::Gap { at: gap + touched, found: bytes[gap + touched] }));
            }
            if let Some(wrong) = pattern::first_wrong(&bytes[offset..offset + len], number, at) {
                return Ok(Some(Fault::Data(wrong)));
            }
            at += len as u64;
            gap = offset + len;
        }
        Ok(None)
    }
}

/// A message that did not arrive as it was sent.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A byte of the message.
    Data(Wrong),
    /// A byte between the message's pieces, which should not have been touched.
    Gap { at: usize, found: u8 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Data(Wrong { at, found, expected }) => {
                write!(f, "its first wrong byte is byte {at}, {found:#04x} instead of {expected:#04x}")
            }
            Fault::Gap { at, found } => {
                write!(f, "byte {at} of its memory, in a gap of the datatype, was overwritten with {found:#04x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn datatypes() {
        let vector = parse_datatype("vector:64:256:16").unwrap();
        assert_eq!((vector.size(), vector.extent()), (1024, 15 * 256 + 64));
        assert_eq!(vector.to_string(), "vector:64:256:16");
        for wrong in [
            "vector:64:32:2",
            "vector:0:1:1",
            "vector:1:1:0",
            "vector:1:1",
            "array:1:1:1",
            "vector:1:1:x",
            "vector:1:1:99999999999",
            "indexed:8:0:1",
            "indexed:0:8:1",
            "indexed:8:8",
            "indexed:16E:8:1",
        ] {
            assert!(parse_datatype(wrong).is_err(), "{wrong}");
        }
        let indexed = parse_datatype("indexed:8:1000:7").unwrap();
        assert_eq!((indexed.size(), indexed.to_string()), (8000, "indexed:8:1000:7".to_owned()));
        let gaps = indexed.blocks.windows(2).map(|pair| pair[1].0 - pair[0].0).collect::<HashSet<_>>();
        assert_eq!(gaps, HashSet::from([16, 24, 32]));
        assert!(format!("{:?}", indexed.layout).contains("shape: Irregular"), "{:?}", indexed.layout);
        let again = parse_datatype("indexed:8:1000:7").unwrap();
        assert!(indexed.layout == again.layout, "both ranks have the same");

        let shape = Shape::Blocks(parse_datatype("vector:2:3:2").unwrap());
        assert_eq!(shape.round_up(&[1, 2, 4, 5, 8]), [4, 8]);
        assert_eq!(shape.span(8), 10);
        assert_eq!(shape.pieces(8).collect::<Vec<_>>(), [(0, 2), (3, 2), (5, 2), (8, 2)]);
        assert_eq!(Shape::Contiguous.pieces(0).count(), 0);
        assert_eq!(Shape::Contiguous.pieces(5).collect::<Vec<_>>(), [(0, 5)]);
    }

    #[test]
    fn faults_in_data_and_gaps_are_found() {
        let shape = Shape::Blocks(parse_datatype("vector:2:3:2").unwrap());
        let mut memory = Memory { storage: Storage::Host(vec![Page([0; 4096])]), shape, staging: Vec::new() };
        memory.poison(1, 8).unwrap();
        assert!(matches!(memory.verify(1, 8, 5).unwrap(), Some(Fault::Data(_))));
        memory.fill(1, 8, 5).unwrap();
        assert!(memory.verify(1, 8, 5).unwrap().is_none());
        let Storage::Host(pages) = &mut memory.storage else { unreachable!("made above") };
        pages[0].0[10 + 2] = 0;
        assert!(matches!(memory.verify(1, 8, 5).unwrap(), Some(Fault::Gap { at: 2, found: 0 })));
        let message = memory.verify(1, 8, 6).unwrap().unwrap().to_string();
        assert!(message.contains("byte 0"), "{message}");
    }
}
