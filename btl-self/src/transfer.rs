//! Describes a `get` or a `put` as a copy between two regions of this process.

use cableway_btl::{Access, Local, Packed, Region, Remote};
use cableway_common_cuda::{BlockCopy, CopyShape, Devices, MemoryClass, Packing, Strided};

use crate::copy::Pair;

/// Describes the copy between local memory and registered memory.
///
/// # Errors
/// The bytes overrun the registered memory, or no kernel can copy the blocks now.
pub(crate) fn pair(
    devices: &Devices,
    local: &Local<'_>,
    (registered, remote): (&Region, &Remote<'_>),
    access: Access,
) -> Result<Pair, String> {
    let here = region(local);
    let (other, how) = match *local {
        Local::Run(_) if remote.blocks.is_none() => (part(registered, remote.offset, here.len)?, CopyShape::Run),
        Local::Packed(Packed { user, spread, position, len, .. }) => {
            let other = part(registered, remote.offset, len)?;
            if !reaches(devices, &here, &other) || !devices.packs_between(&here.location, spread) {
                return Err("no kernel packs there at present".into());
            }
            let (spread, packed, unpack) = (spread.clone(), other.address, access == Access::RemoteRead);
            let packing = Packing { user, spread, position, packed, len: len as u64, unpack, by_engines: false };
            (other, CopyShape::Packed(Box::new(packing)))
        }
        Local::Run(_) | Local::Blocks { .. } => {
            let run = Strided::run(local.len());
            let ours = if let Local::Blocks { blocks, .. } = local { *blocks } else { run };
            let blocks = blocks((&here, ours), (registered, remote.blocks.unwrap_or(run)), local.len(), access)?;
            if !reaches(devices, &here, registered) || !devices.kernels(&here.location) {
                return Err("no kernel copies blocks there at present".into());
            }
            (*registered, CopyShape::Blocks(Box::new(blocks)))
        }
    };
    Ok(match access {
        Access::RemoteRead => Pair { to: here, from: other, how },
        Access::RemoteWrite => Pair { to: other, from: here, how },
    })
}

/// Returns the local memory. That of irregular blocks begins where their offsets count from.
fn region(local: &Local<'_>) -> Region {
    match *local {
        Local::Run(region) | Local::Blocks { region, .. } => region,
        Local::Packed(Packed { user: address, len, location, order, .. }) => Region { address, len, location, order },
    }
}

/// Returns a run of registered memory.
fn part(registered: &Region, offset: u64, len: usize) -> Result<Region, String> {
    let start = usize::try_from(offset)
        .ok()
        .filter(|start| start.checked_add(len).is_some_and(|end| end <= registered.len))
        .ok_or_else(|| format!("{len} bytes at {offset} overrun the registered {}", registered.len))?;
    Ok(Region { address: registered.address.wrapping_add(start), len, ..*registered })
}

/// Describes a copy between blocks, which must lie in their regions.
fn blocks(
    (here, ours): (&Region, Strided),
    (there, theirs): (&Region, Strided),
    len: u64,
    access: Access,
) -> Result<BlockCopy, String> {
    for (region, blocks) in [(here, &ours), (there, &theirs)] {
        if blocks.range_of(len).is_none_or(|(low, span)| low + span as u64 > region.len as u64) {
            return Err(format!("the blocks of {len} bytes do not lie in the memory of {}", region.len));
        }
    }
    Ok(match access {
        Access::RemoteRead => {
            BlockCopy { dst: here.address, dst_blocks: ours, src: there.address, src_blocks: theirs, len }
        }
        Access::RemoteWrite => {
            BlockCopy { dst: there.address, dst_blocks: theirs, src: here.address, src_blocks: ours, len }
        }
    })
}

/// Returns whether a kernel in the context of one buffer may access both.
fn reaches(devices: &Devices, here: &Region, there: &Region) -> bool {
    let place = |region: &Region| (region.location.context, region.location.device);
    let both = [here, there];
    place(here) == place(there)
        && both.iter().all(|region| region.location.class == MemoryClass::Device)
        && both.iter().all(|region| devices.kernel_reaches(&here.location, region.address))
}
