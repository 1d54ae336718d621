//! Fills: `cuMemset*`. They return before they are complete, except for host memory and `SYNC_MEMOPS` memory.

use std::ffi::{c_uchar, c_uint, c_ushort};

use crate::abi::{Address, driver_api};
use crate::context::current;
use crate::driver::check_initialised;
use crate::early::Return;
use crate::error::{Error, Outcome};
use crate::landing::{Fill, Keep};
use crate::space::{Extent, SPACE};
use crate::stream::{self, Stream};

/// A fill of rows of `width` elements of `size` bytes at a distance of `pitch` bytes: in a stream, or in the legacy default
/// stream by a synchronous function.
fn fill(
    address: Address,
    pitch: usize,
    value: c_uint,
    size: usize,
    width: usize,
    height: usize,
    on: Option<usize>,
) -> Outcome {
    if !address.is_multiple_of(size) {
        return Err(Error::INVALID_VALUE);
    }
    let bytes = width.checked_mul(size).ok_or(Error::INVALID_VALUE)?;
    let (stream, returns) = match on {
        Some(handle) => (stream::get(handle)?, Return::Asynchronous),
        None => (Stream::legacy()?, Return::Synchronous),
    };
    if stream.captures_call(move |on| fill(address, pitch, value, size, width, height, Some(on)))? {
        return Ok(());
    }
    check_initialised()?;
    for row in 0..if bytes == 0 { 0 } else { height } {
        let offset = row.checked_mul(pitch).ok_or(Error::INVALID_VALUE)?;
        let at = address.checked_add(offset).ok_or(Error::INVALID_VALUE)?;
        let extents = SPACE.get()?.read().extents(at, bytes)?.ok_or(Error::INVALID_VALUE)?;
        for Extent { range, alias, len } in extents {
            let waits = range.kind.is_host() || range.is_synchronous();
            let mut keep = Keep { ranges: vec![range], ..Keep::default() };
            keep.note_return(returns, waits);
            stream.submit(Box::new(Fill { dst: alias, value, size, bytes: len, _keep: keep }))?;
            if waits {
                stream.wait()?;
            }
        }
    }
    Ok(())
}

/// A fill of one row.
fn fill_line(address: Address, value: c_uint, size: usize, count: usize, on: Option<usize>) -> Outcome {
    fill(address, 0, value, size, count, 1, on)
}

driver_api! {
    3020 cuMemsetD8: fn cuMemsetD8_v2(address: Address, value: c_uchar, count: usize) {
        fill_line(address, value.into(), 1, count, None)
    }

    3020 cuMemsetD16: fn cuMemsetD16_v2(address: Address, value: c_ushort, count: usize) {
        fill_line(address, value.into(), 2, count, None)
    }

    3020 cuMemsetD32: fn cuMemsetD32_v2(address: Address, value: c_uint, count: usize) {
        fill_line(address, value, 4, count, None)
    }

    3020 cuMemsetD8Async: fn cuMemsetD8Async(address: Address, value: c_uchar, count: usize, stream: usize) {
        current()?;
        fill_line(address, value.into(), 1, count, Some(stream))
    }

    3020 cuMemsetD16Async: fn cuMemsetD16Async(address: Address, value: c_ushort, count: usize, stream: usize) {
        current()?;
        fill_line(address, value.into(), 2, count, Some(stream))
    }

    3020 cuMemsetD32Async: fn cuMemsetD32Async(address: Address, value: c_uint, count: usize, stream: usize) {
        current()?;
        fill_line(address, value, 4, count, Some(stream))
    }

    3020 cuMemsetD2D8: fn cuMemsetD2D8_v2(address: Address, pitch: usize, value: c_uchar, width: usize, height: usize) {
        fill(address, pitch, value.into(), 1, width, height, None)
    }

    3020 cuMemsetD2D8Async: fn cuMemsetD2D8Async(address: Address, pitch: usize, value: c_uchar, width: usize, height: usize, stream: usize) {
        current()?;
        fill(address, pitch, value.into(), 1, width, height, Some(stream))
    }
}
