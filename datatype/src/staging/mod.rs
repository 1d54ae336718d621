//! Host copies of device buffers, for code that supports host memory only.
//!
//! A [`Staging`] holds the copies of one call: an *image* for each argument with a byte on a device. An image keeps
//! every byte at its offset in the program's buffer, so that the call gets the program's counts, types and
//! displacements with another address. Only the data of the types is copied, in either direction. The gaps between are
//! never read or written.

mod copies;
mod image;

use std::borrow::Borrow;

use cableway_common_cuda::{Devices, HostPool};

use self::copies::Copies;
use self::image::Image;
use crate::error::Error;
use crate::layout::Layout;

/// A part of an argument of the call.
#[derive(Clone, Debug)]
pub struct StagedBlock {
    /// The first byte without a layout, else the address to which the layout's offsets are relative.
    pub address: usize,
    /// The bytes without a layout, else the number of elements.
    pub count: u64,
    /// `None` for plain bytes.
    pub layout: Option<Layout>,
    /// The call reads it.
    pub read: bool,
    /// The call writes it.
    pub written: bool,
}

impl StagedBlock {
    /// The first byte and the one after the last; `None` for an empty block, or for one that exceeds every buffer.
    fn range(&self) -> Option<(usize, usize)> {
        let (offset, len) = match &self.layout {
            None => (0, self.count),
            Some(layout) => layout.span(self.count)?,
        };
        let start = self.address.wrapping_add_signed(isize::try_from(offset).ok()?);
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        (len != 0).then_some((start, end))
    }

    fn on_device(&self, devices: &Devices) -> bool {
        let address = std::ptr::with_exposed_provenance::<u8>(self.address);
        match &self.layout {
            None => devices.on_device(address, usize::try_from(self.count).unwrap_or(usize::MAX)),
            Some(layout) => {
                let at = layout.classify(address, self.count, devices);
                at.on_device()
                    || (!layout.in_one_allocation(address, self.count, &at, devices)
                        && layout.blocks(self.count).any(|block| {
                            let start = address.wrapping_offset(block.offset as isize);
                            devices.on_device(start, usize::try_from(block.len).unwrap_or(usize::MAX))
                        }))
            }
        }
    }
}

/// The images of one call. Dropping it frees their memory and copies nothing.
#[derive(Debug, Default)]
pub struct Staging {
    images: Vec<Image>,
}

impl Staging {
    /// Checks whether any of the blocks has a byte on a device.
    pub fn needed(blocks: impl IntoIterator<Item: Borrow<StagedBlock>>, devices: &Devices) -> bool {
        devices.present() && blocks.into_iter().any(|block| block.borrow().on_device(devices))
    }

    /// Creates an image of one argument with the address `base`. Returns the replacement address. Copies nothing yet.
    ///
    /// # Errors
    /// The image exceeds the host memory or the pool's limit.
    pub fn add(&mut self, base: usize, blocks: Vec<StagedBlock>, pool: &HostPool) -> Result<usize, Error> {
        let image = Image::new(blocks, pool)?;
        let stands_for = image.translate(base);
        self.images.push(image);
        Ok(stands_for)
    }

    /// Copies what the call reads into the images.
    ///
    /// # Safety
    /// The blocks' memory is allocated, and no code writes it meanwhile.
    ///
    /// # Errors
    /// The device refused, or memory for pieces is exhausted.
    pub unsafe fn fill(&mut self, devices: &Devices, pool: &HostPool) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy::<true>(devices, pool) }
    }

    /// Copies what the call wrote back to the program's buffers.
    ///
    /// # Safety
    /// The blocks' memory is allocated, and no other code accesses it meanwhile.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub unsafe fn drain(&mut self, devices: &Devices, pool: &HostPool) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy::<false>(devices, pool) }
    }

    /// # Safety
    /// As [`fill`](Self::fill), or [`drain`](Self::drain).
    unsafe fn copy<const IN: bool>(&mut self, devices: &Devices, pool: &HostPool) -> Result<(), Error> {
        let mut copies = Copies::new(devices);
        // SAFETY: the caller's promise; the images are part of this value.
        self.images.iter_mut().try_for_each(|image| unsafe { image.copy::<IN>(&mut copies, devices, pool) })?;
        copies.finish()
    }
}
