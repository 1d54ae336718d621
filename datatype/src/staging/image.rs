//! The host copy of one argument.

use std::ptr::with_exposed_provenance_mut;

use cableway_common_cuda::{Devices, HostMemory, HostPool, Location};

use super::StagedBlock as Block;
use super::copies::Copies;
use crate::convertor::Convertor;
use crate::error::Error;
use crate::layout::Layout;

/// Strided data passes through packed pieces of this size.
const PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Image {
    memory: HostMemory,
    /// The address of the image's first byte in the program's memory.
    start: usize,
    blocks: Vec<Block>,
}

impl Image {
    /// Memory for the whole range from the blocks' first byte to their last.
    pub(super) fn new(blocks: Vec<Block>, pool: &HostPool) -> Result<Image, Error> {
        let ranges = || blocks.iter().filter_map(Block::range);
        let start = ranges().map(|(start, _)| start).min().unwrap_or(0);
        let end = ranges().map(|(_, end)| end).max().unwrap_or(start);
        let memory = take(pool, (end - start).max(1))?;
        Ok(Image { memory, start, blocks: joined(blocks) })
    }

    /// Returns the image's address for the program's `address`, which may lie outside of it.
    pub(super) fn translate(&self, address: usize) -> usize {
        (self.memory.address() as usize).wrapping_add(address.wrapping_sub(self.start))
    }

    /// Copies what the call reads into the image (`IN`), or back what it wrote. Copies of blocks without a layout are
    /// added to `copies`.
    ///
    /// # Safety
    /// The blocks' memory is allocated, and no other code accesses it or the image until `copies` are finished.
    pub(super) unsafe fn copy<const IN: bool>(
        &mut self,
        copies: &mut Copies<'_>,
        devices: &Devices,
        pool: &HostPool,
    ) -> Result<(), Error> {
        for block in self.blocks.iter().filter(|block| if IN { block.read } else { block.written }) {
            let Some((start, end)) = block.range() else { continue };
            match &block.layout {
                None => {
                    let program = with_exposed_provenance_mut::<u8>(start);
                    let image = with_exposed_provenance_mut::<u8>(self.translate(start));
                    // SAFETY: the caller's promise; the image holds every block.
                    unsafe { copies.add::<IN>(program, image, end - start) }?;
                }
                // SAFETY: the caller's promise.
                Some(layout) => unsafe { self.copy_strided::<IN>(block, layout, devices, pool) }?,
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn copy_strided<const IN: bool>(
        &self,
        block: &Block,
        layout: &Layout,
        devices: &Devices,
        pool: &HostPool,
    ) -> Result<(), Error> {
        let program = with_exposed_provenance_mut::<u8>(block.address);
        let image = with_exposed_provenance_mut::<u8>(self.translate(block.address));
        let at = layout.classify(program, block.count, devices);
        let (from, from_at, to, to_at) =
            if IN { (program, at, image, Location::HOST) } else { (image, Location::HOST, program, at) };
        // SAFETY: as in `copy`; the locations are those of the buffers.
        let (mut source, mut sink) = unsafe {
            (
                Convertor::for_send(layout, from, block.count, from_at, devices),
                Convertor::for_receive(layout, to, block.count, to_at, devices),
            )
        };
        let len = usize::try_from(source.packed_size()).unwrap_or(usize::MAX).clamp(1, PIECE);
        let piece = take(pool, len)?;
        while source.remaining() != 0 {
            // SAFETY: the piece holds `len` bytes, and only this function uses it.
            unsafe {
                let packed = source.pack(piece.address(), len)?;
                sink.unpack(piece.address(), packed)?;
            }
        }
        Ok(())
    }
}

fn take(pool: &HostPool, len: usize) -> Result<HostMemory, Error> {
    pool.take(len).ok_or(Error::NoMemory { len: len as u64, limit: pool.limit() as u64 })
}

/// Joins blocks without a layout and with the same access that adjoin or overlap: usually those of a vector, or one that
/// goes to several processes. So copies in one direction never overlap.
fn joined(blocks: Vec<Block>) -> Vec<Block> {
    let (mut plain, typed): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.layout.is_none());
    plain.retain(|block| block.count != 0);
    plain.sort_by_key(|block| (!block.read, !block.written, block.address));
    let mut out: Vec<Block> = Vec::new();
    for block in plain {
        if let Some(last) = out.last_mut()
            && (last.read, last.written) == (block.read, block.written)
            && block.address as u64 <= last.address as u64 + last.count
        {
            let end = block.address as u64 + block.count;
            last.count = last.count.max(end - last.address as u64);
        } else {
            out.push(block);
        }
    }
    out.extend(typed);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(address: usize, count: u64) -> Block {
        Block { address, count, layout: None, read: true, written: false }
    }

    #[test]
    fn what_adjoins_or_overlaps_is_joined_and_gaps_are_not() {
        let ranges = |blocks| joined(blocks).iter().map(|block| (block.address, block.count)).collect::<Vec<_>>();
        assert_eq!(ranges(vec![bytes(16, 4), bytes(20, 4), bytes(25, 1)]), [(16, 8), (25, 1)]);
        assert_eq!(ranges(vec![bytes(16, 4), bytes(20, 0), bytes(20, 4)]), [(16, 8)]);
        assert_eq!(ranges(vec![bytes(24, 8), bytes(16, 12), bytes(18, 2), bytes(40, 1)]), [(16, 16), (40, 1)]);
        let written = Block { read: false, written: true, ..bytes(20, 4) };
        assert_eq!(ranges(vec![bytes(16, 4), written]), [(16, 4), (20, 4)]);
    }
}
