//! Carries out one-sided operations.

use cableway_btl::{Error, Region};
use cableway_common_cuda::{BlockCopy, Completion, Direction, Order, Packing, Spread, Strided, Within};

use super::Net;

/// How a one-sided operation copies.
#[derive(Clone)]
pub(super) enum Copying {
    Plain,
    /// A kernel packs the blocks from this position on into the other region, or unpacks them.
    Packed {
        spread: Spread,
        position: u64,
        unpack: bool,
    },
    /// This number of bytes in blocks at regular distances.
    Strided {
        to: Strided,
        from: Strided,
        len: u64,
    },
    /// The kernel could not start.
    Revoked,
}
impl Net {
    /// Makes a one-sided operation's copies.
    pub(super) fn carry_out(&self, copy: &Copying, to: &Region, from: &Region) -> Result<(), Error> {
        match copy {
            // SAFETY: both regions are registered or lent until completed.
            Copying::Plain => unsafe { self.devices.copy(to.address, from.address, to.len) }.unwrap(),
            Copying::Packed { spread, position, unpack } => {
                let (user, packed) = if *unpack { (to, from) } else { (from, to) };
                let len = user.len as u64;
                let mut batch = self.devices.batch(&user.location, Direction::DeviceToDevice, Order::None).unwrap();
                batch.reachable(Within::OneDevice);
                let (position, user, packed, unpack) = (*position, user.address, packed.address, *unpack);
                // SAFETY: as above, for every block.
                unsafe {
                    let spread = spread.clone();
                    batch.copy_packed(Packing { user, spread, position, packed, len, unpack, by_engines: false });
                }
                if let Err(error) = batch.finish().and_then(Completion::wait) {
                    assert!(error.wants_kernel(), "{error}");
                    let reason = error.to_string();
                    return Err(Error::Unavailable { btl: "net", operation: "packed", reason });
                }
            }
            Copying::Strided { to: into, from: out_of, len } => {
                let local = if to.location.on_device() { to } else { from };
                let mut batch = self.devices.batch(&local.location, Direction::DeviceToDevice, local.order).unwrap();
                let (dst, src, len) = (to.address, from.address.cast_const(), *len);
                // SAFETY: as above.
                unsafe { batch.copy_blocks(BlockCopy { dst, dst_blocks: *into, src, src_blocks: *out_of, len }) };
                batch.finish().unwrap().wait().unwrap();
            }
            Copying::Revoked => {
                let reason = "no kernel could start".into();
                return Err(Error::Unavailable { btl: "net", operation: "packed", reason });
            }
        }
        Ok(())
    }
}
