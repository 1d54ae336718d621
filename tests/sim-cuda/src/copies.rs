//! Copies: `cuMemcpy*`.
//!
//! A copy is complete on return according to the driver's documentation. If that permits several behaviours, the least
//! convenient one is used:
//! - A copy to pageable memory is complete. A copy from pageable memory is staged and arrives later (of a large copy
//!   the last part).
//! - A synchronous copy from or to pinned memory is complete. One between device memories is not.
//! - A synchronous copy with `SYNC_MEMOPS` memory is complete.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::CUmemorytype;

use crate::abi::{Address, In, driver_api};
use crate::context::current;
use crate::early::Return;
use crate::error::{Error, Outcome};
use crate::landing::{Block, Keep, Landing};
use crate::space::{Extent, Kind, SPACE};
use crate::stream::{self, Stream};

/// The bytes of a copy from pageable memory that may still be in transit when the call returns.
const STAGED: usize = 1 << 20;

/// The kind of memory that a function's name implies for an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Memory that a device reaches.
    Device,
    /// Memory that may be unknown to the driver.
    Any,
}

/// The memory of one side of a copy.
enum End {
    Known(Vec<Extent>),
    Pageable(Address),
}

impl End {
    fn new(address: Address, len: usize, claim: Claim) -> Outcome<End> {
        match SPACE.get()?.read().extents(address, len)? {
            Some(extents) => Ok(End::Known(extents)),
            None if claim == Claim::Any && address != 0 => Ok(End::Pageable(address)),
            None => Err(Error::INVALID_VALUE),
        }
    }

    /// Checks whether only the copy functions can access it. Managed memory counts as host memory, because a program
    /// may read it right after a copy.
    fn is_device(&self) -> bool {
        match self {
            End::Known(extents) => {
                extents.iter().all(|extent| !extent.range.kind.is_host() && extent.range.kind != Kind::Managed)
            }
            End::Pageable(_) => false,
        }
    }

    fn is_writable_by(&self, device: c_int) -> Outcome<bool> {
        let End::Known(extents) = self else { return Ok(true) };
        extents.iter().try_fold(true, |all, extent| Ok(all && extent.range.is_writable_by(device)?))
    }

    fn is_pageable(&self) -> bool {
        matches!(self, End::Pageable(_))
    }

    fn is_synchronous(&self) -> bool {
        matches!(self, End::Known(extents) if extents.iter().any(|extent| extent.range.is_synchronous()))
    }

    /// Contiguous parts: their addresses for the copy functions, and their lengths.
    fn parts(&self, len: usize) -> Vec<(usize, usize)> {
        match self {
            End::Known(extents) => extents.iter().map(|extent| (extent.alias, extent.len)).collect(),
            End::Pageable(address) => vec![(*address, len)],
        }
    }

    fn keep(&self, keep: &mut Keep) {
        if let End::Known(extents) = self {
            keep.ranges.extend(extents.iter().map(|extent| extent.range.clone()));
        }
    }
}

/// The rows of one side of a copy: the first address, and the distance between rows.
#[derive(Clone, Copy)]
struct Rows {
    address: Address,
    pitch: usize,
    claim: Claim,
}

impl Rows {
    /// One row.
    fn line(address: Address, claim: Claim) -> Rows {
        Rows { address, pitch: 0, claim }
    }
}

fn salt() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(0x9E37_79B9, Ordering::Relaxed)
}

/// A copy of `height` rows of `width` bytes.
fn copy(dst: Rows, src: Rows, width: usize, height: usize, stream: &Arc<Stream>, returns: Return) -> Outcome {
    if width == 0 || height == 0 {
        return Ok(());
    }
    let span = |rows: Rows| -> Outcome<usize> {
        let pitch = if height == 1 { width } else { rows.pitch };
        let before = pitch.checked_mul(height - 1).ok_or(Error::INVALID_VALUE)?;
        if pitch < width { Err(Error::INVALID_VALUE) } else { before.checked_add(width).ok_or(Error::INVALID_VALUE) }
    };
    if stream.captures_call(move |on| copy(dst, src, width, height, &stream::get(on)?, returns))? {
        return Ok(());
    }
    let (dst_len, src_len) = (span(dst)?, span(src)?);
    let to = End::new(dst.address, dst_len, dst.claim)?;
    let from = End::new(src.address, src_len, src.claim)?;

    // Measured on H200s: copies from device memory to another device's pool or mapped memory require access granted by
    // its owner.
    if from.is_device() && !to.is_writable_by(stream.context.device)? {
        return Err(Error::INVALID_VALUE);
    }

    // HIP completes copies of pageable memory.
    let staged = from.is_pageable() && to.is_device() && !cfg!(sim_hip);
    let waits = match returns {
        _ if to.is_pageable() => true,
        Return::Asynchronous => from.is_pageable() && !staged,
        Return::Synchronous => {
            !(to.is_device() && (staged || from.is_device())) || to.is_synchronous() || from.is_synchronous()
        }
    };

    let mut keep = Keep::default();
    to.keep(&mut keep);
    from.keep(&mut keep);
    let mut blocks = if height == 1 {
        line_up(&to.parts(width), &from.parts(width))
    } else {
        rows(&to.parts(dst_len), dst, &from.parts(src_len), src, width, height)?
    };
    if staged && !waits {
        if src_len > STAGED {
            blocks = copy_all_but_the_end(blocks, &to, stream)?;
        }
        stage(&mut blocks, &mut keep);
    }
    keep.note_return(returns, waits);
    stream.submit(Box::new(Landing::new(blocks, keep, salt())))?;
    if waits { stream.wait() } else { Ok(()) }
}

/// Returns the blocks of one row, whose sides may each span several parts.
fn line_up(to: &[(usize, usize)], from: &[(usize, usize)]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut to, mut from) = (to.iter().copied(), from.iter().copied());
    let (mut dst, mut src) = (to.next(), from.next());
    while let (Some((dst_at, dst_len)), Some((src_at, src_len))) = (dst, src) {
        let len = dst_len.min(src_len);
        blocks.push(Block::row(dst_at, src_at, len));
        dst = if dst_len > len { Some((dst_at + len, dst_len - len)) } else { to.next() };
        src = if src_len > len { Some((src_at + len, src_len - len)) } else { from.next() };
    }
    blocks
}

/// Returns one block for all rows.
///
/// # Errors
/// A side spans several mappings, so the rows would have to be divided.
fn rows(
    to: &[(usize, usize)],
    dst: Rows,
    from: &[(usize, usize)],
    src: Rows,
    width: usize,
    rows: usize,
) -> Outcome<Vec<Block>> {
    let ([to], [from]) = (to, from) else { return Err(Error::NOT_SUPPORTED) };
    Ok(vec![Block { dst: to.0, dst_pitch: dst.pitch, src: from.0, src_pitch: src.pitch, width, rows }])
}

/// Completes the beginning of a large copy from pageable memory. Returns the rest of it.
fn copy_all_but_the_end(blocks: Vec<Block>, to: &End, stream: &Arc<Stream>) -> Outcome<Vec<Block>> {
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    let mut left = blocks.iter().map(|block| block.width * block.rows).sum::<usize>().saturating_sub(STAGED);
    for block in blocks {
        if block.rows > 1 {
            let rows = (left / block.width).min(block.rows);
            left -= rows * block.width;
            let (dst, src) = (block.dst + rows * block.dst_pitch, block.src + rows * block.src_pitch);
            first.push(Block { rows, ..block });
            rest.push(Block { dst, src, rows: block.rows - rows, ..block });
        } else {
            let cut = left.min(block.width);
            left -= cut;
            first.push(Block::row(block.dst, block.src, cut));
            rest.push(Block::row(block.dst + cut, block.src + cut, block.width - cut));
        }
    }
    let is_something = |block: &Block| block.width > 0 && block.rows > 0;
    first.retain(is_something);
    rest.retain(is_something);
    let mut keep = Keep::default();
    to.keep(&mut keep);
    stream.submit(Box::new(Landing::new(first, keep, salt())))?;
    stream.wait()?;
    Ok(rest)
}

/// Copies the source's bytes now, and makes the blocks copy from this copy.
fn stage(blocks: &mut [Block], keep: &mut Keep) {
    let bytes = blocks.iter().map(|block| block.width * block.rows).sum();
    let mut staged = Vec::with_capacity(bytes);
    for block in blocks.iter() {
        for row in 0..block.rows {
            // SAFETY: the caller of the driver promises that its source is readable during the call.
            let source =
                unsafe { std::slice::from_raw_parts((block.src + row * block.src_pitch) as *const u8, block.width) };
            staged.extend_from_slice(source);
        }
    }
    let mut at = staged.as_ptr() as usize;
    for block in blocks {
        (block.src, block.src_pitch) = (at, block.width);
        at += block.width * block.rows;
    }
    keep.staged = staged;
}

/// A synchronous copy.
fn copy_now(dst: (Address, Claim), src: (Address, Claim), len: usize) -> Outcome {
    let stream = Stream::legacy()?;
    copy(Rows::line(dst.0, dst.1), Rows::line(src.0, src.1), len, 1, &stream, Return::Synchronous)
}

/// A copy in a stream.
pub(crate) fn copy_later(dst: (Address, Claim), src: (Address, Claim), len: usize, stream: usize) -> Outcome {
    current()?;
    let stream = stream::get(stream)?;
    copy(Rows::line(dst.0, dst.1), Rows::line(src.0, src.1), len, 1, &stream, Return::Asynchronous)
}

/// `CUDA_MEMCPY2D`, with integers for its enumerations, because a caller may pass any value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Memcpy2d {
    src_x: usize,
    src_y: usize,
    src_type: c_uint,
    src_host: Address,
    src_device: Address,
    src_array: usize,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_type: c_uint,
    dst_host: Address,
    dst_device: Address,
    dst_array: usize,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

const _: () = assert!(size_of::<Memcpy2d>() == size_of::<cudarc::driver::sys::CUDA_MEMCPY2D_st>());

/// The largest row pitch of the aligned functions.
const MAX_PITCH: usize = i32::MAX as usize;

impl Memcpy2d {
    /// Rows at any addresses: each side with its pitch.
    #[cfg(sim_hip)]
    pub(crate) fn of_rows(dst: (Address, usize), src: (Address, usize), width: usize, height: usize) -> Memcpy2d {
        let kind = CUmemorytype::CU_MEMORYTYPE_UNIFIED as c_uint;
        Memcpy2d {
            src_x: 0,
            src_y: 0,
            src_type: kind,
            src_host: 0,
            src_device: src.0,
            src_array: 0,
            src_pitch: src.1,
            dst_x: 0,
            dst_y: 0,
            dst_type: kind,
            dst_host: 0,
            dst_device: dst.0,
            dst_array: 0,
            dst_pitch: dst.1,
            width,
            height,
        }
    }

    fn ends(&self) -> Outcome<(Rows, Rows)> {
        let end = |kind: c_uint, host: Address, device: Address, x: usize, y: usize, pitch: usize| {
            const HOST: c_uint = CUmemorytype::CU_MEMORYTYPE_HOST as c_uint;
            const DEVICE: c_uint = CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
            const UNIFIED: c_uint = CUmemorytype::CU_MEMORYTYPE_UNIFIED as c_uint;
            let (base, claim) = match kind {
                HOST => (host, Claim::Any),
                DEVICE => (device, Claim::Device),
                UNIFIED => (device, Claim::Any),
                _ => return Err(Error::INVALID_VALUE),
            };
            let pitch = if pitch == 0 { self.width } else { pitch };
            let offset = y.checked_mul(pitch).and_then(|rows| rows.checked_add(x)).ok_or(Error::INVALID_VALUE)?;
            let address = base.checked_add(offset).ok_or(Error::INVALID_VALUE)?;
            Ok(Rows { address, pitch, claim })
        };
        Ok((
            end(self.dst_type, self.dst_host, self.dst_device, self.dst_x, self.dst_y, self.dst_pitch)?,
            end(self.src_type, self.src_host, self.src_device, self.src_x, self.src_y, self.src_pitch)?,
        ))
    }

    fn run(&self, stream: &Arc<Stream>, returns: Return, max_pitch: usize) -> Outcome {
        let (dst, src) = self.ends()?;
        if self.height > 1 && dst.pitch.max(src.pitch) > max_pitch {
            return Err(Error::INVALID_VALUE);
        }
        copy(dst, src, self.width, self.height, stream, returns)
    }
}

const ANY: Claim = Claim::Any;
const DEVICE: Claim = Claim::Device;

driver_api! {
    4000 cuMemcpy: fn cuMemcpy(dst: Address, src: Address, len: usize) {
        copy_now((dst, ANY), (src, ANY), len)
    }

    3020 cuMemcpyHtoD: fn cuMemcpyHtoD_v2(dst: Address, src: Address, len: usize) {
        copy_now((dst, DEVICE), (src, ANY), len)
    }

    3020 cuMemcpyDtoH: fn cuMemcpyDtoH_v2(dst: Address, src: Address, len: usize) {
        copy_now((dst, ANY), (src, DEVICE), len)
    }

    3020 cuMemcpyDtoD: fn cuMemcpyDtoD_v2(dst: Address, src: Address, len: usize) {
        copy_now((dst, DEVICE), (src, DEVICE), len)
    }

    4000 cuMemcpyAsync: fn cuMemcpyAsync(dst: Address, src: Address, len: usize, stream: usize) {
        copy_later((dst, ANY), (src, ANY), len, stream)
    }

    3020 cuMemcpyHtoDAsync: fn cuMemcpyHtoDAsync_v2(dst: Address, src: Address, len: usize, stream: usize) {
        copy_later((dst, DEVICE), (src, ANY), len, stream)
    }

    3020 cuMemcpyDtoHAsync: fn cuMemcpyDtoHAsync_v2(dst: Address, src: Address, len: usize, stream: usize) {
        copy_later((dst, ANY), (src, DEVICE), len, stream)
    }

    3020 cuMemcpyDtoDAsync: fn cuMemcpyDtoDAsync_v2(dst: Address, src: Address, len: usize, stream: usize) {
        copy_later((dst, DEVICE), (src, DEVICE), len, stream)
    }

    4000 cuMemcpyPeer: fn cuMemcpyPeer(dst: Address, _dst_context: usize, src: Address, _src_context: usize, len: usize) {
        copy_now((dst, DEVICE), (src, DEVICE), len)
    }

    4000 cuMemcpyPeerAsync: fn cuMemcpyPeerAsync(dst: Address, _dst_context: usize, src: Address, _src_context: usize, len: usize, stream: usize) {
        copy_later((dst, DEVICE), (src, DEVICE), len, stream)
    }

    3020 cuMemcpy2D: fn cuMemcpy2D_v2(copy: In<Memcpy2d>) {
        copy.get()?.run(&Stream::legacy()?, Return::Synchronous, MAX_PITCH)
    }

    3020 cuMemcpy2DUnaligned: fn cuMemcpy2DUnaligned_v2(copy: In<Memcpy2d>) {
        copy.get()?.run(&Stream::legacy()?, Return::Synchronous, usize::MAX)
    }

    3020 cuMemcpy2DAsync: fn cuMemcpy2DAsync_v2(copy: In<Memcpy2d>, stream: usize) {
        current()?;
        copy.get()?.run(&stream::get(stream)?, Return::Asynchronous, MAX_PITCH)
    }
}
