//! Host copies of device buffers, for code that only knows host memory.
//!
//! A [`Staging`] holds the copies of one call: an *image* for each of its arguments that has a byte on a device. An image
//! keeps every byte at the offset that it has in the program's buffer, so that the call gets the program's own counts,
//! types and displacements with another address. Only the data of the types is copied, in either direction: what lies
//! between is never read and never written.

mod image;

use cableway_common_cuda::{Devices, HostPool};

use self::image::Image;
use crate::error::Error;
use crate::layout::Layout;

/// A part of an argument of the call.
#[derive(Clone, Debug)]
pub struct StagedBlock {
    /// The first byte if there is no layout, else what the layout's offsets are relative to.
    pub address: usize,
    /// Bytes if there is no layout, else elements.
    pub count: u64,
    /// `None` for plain bytes.
    pub layout: Option<Layout>,
    /// The call reads it.
    pub read: bool,
    /// The call writes it.
    pub written: bool,
}

impl StagedBlock {
    /// The first byte and the one after the last; none of an empty block, or of one that no buffer can hold.
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
            None => devices.classify(address, usize::try_from(self.count).unwrap_or(usize::MAX)).on_device(),
            Some(layout) => {
                let at = layout.classify(address, self.count, devices);
                at.on_device()
                    || (!layout.in_one_allocation(address, self.count, &at, devices)
                        && layout.blocks(self.count).any(|block| {
                            let start = address.wrapping_offset(block.offset as isize);
                            devices.classify(start, usize::try_from(block.len).unwrap_or(usize::MAX)).on_device()
                        }))
            }
        }
    }
}

/// The images of one call. Dropping it gives their memory back, copying nothing.
#[derive(Debug, Default)]
pub struct Staging {
    images: Vec<Image>,
}

impl Staging {
    /// Checks whether any of the blocks has a byte on a device.
    pub fn needed(blocks: &[StagedBlock], devices: &Devices) -> bool {
        devices.present() && blocks.iter().any(|block| block.on_device(devices))
    }

    /// Makes an image of one argument, whose address is `base`; returns the address that stands for it. Nothing is
    /// copied yet.
    ///
    /// # Errors
    /// More host memory than there is, or than the pool may have.
    pub fn add(&mut self, base: usize, blocks: Vec<StagedBlock>, pool: &HostPool) -> Result<usize, Error> {
        let image = Image::new(blocks, pool)?;
        let stands_for = image.translate(base);
        self.images.push(image);
        Ok(stands_for)
    }

    /// Copies what the call reads into the images.
    ///
    /// # Safety
    /// The blocks' memory is allocated, and nothing writes it meanwhile.
    ///
    /// # Errors
    /// The device refused, or there is no memory for pieces.
    pub unsafe fn fill(&mut self, devices: &Devices, pool: &HostPool) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        self.images.iter_mut().try_for_each(|image| unsafe { image.fill(devices, pool) })
    }

    /// Copies what the call wrote back to the program's buffers.
    ///
    /// # Safety
    /// The blocks' memory is allocated, and nothing else touches it meanwhile.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub unsafe fn drain(&mut self, devices: &Devices, pool: &HostPool) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        self.images.iter_mut().try_for_each(|image| unsafe { image.drain(devices, pool) })
    }
}
